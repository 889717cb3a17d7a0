# SPDX-License-Identifier: Apache-2.0
"""The replacements of `prepare(..., fuse=True)` inside transformers' models. Operators that take
many passes over memory are replaced by operators of `accelerate.kernels`. Results agree up to
rounding.

A piece is a module that is recognised by its class, its submodules and the arguments of its
forward. It changes in place to one of our types. Parameters, names, hooks and `__class__` are
unchanged, and copies have the old type. If a call needs something that a fused forward skips, such
as a hook on a submodule that is not called, the forward of the original class runs."""

from accelerate._fuse.plan import Plan

__all__ = ["Plan"]
