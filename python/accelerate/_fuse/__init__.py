# SPDX-License-Identifier: Apache-2.0
"""The modules that `prepare(..., fuse=True)` replaces in transformers' models. Operators that take
many passes over memory are replaced with operators of `accelerate.kernels`. Results agree up to
rounding.

A piece is a module that is recognised by its class, its submodules and the arguments of its
`forward`. Its type is changed in place. Parameters, names, hooks and `__class__` are unchanged, and
copies have the original type. If a call needs something that a fused `forward` skips, such as a
hook on a submodule that is not called, the `forward` of the original class runs."""

from accelerate._fuse.plan import Plan

__all__ = ["Plan"]
