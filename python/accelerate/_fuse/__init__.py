# SPDX-License-Identifier: Apache-2.0
"""What `prepare(..., fuse=True)` replaces inside transformers' models: operators with many passes
over memory, by those of `accelerate.kernels`, whose results agree up to rounding.

A known piece (recognised by its class, its submodules and the arguments of its forward) becomes a
module of one of our types, in place: parameters, names, hooks and `__class__` are unchanged, and
copies have the old type. If a call needs something that a fused forward skips, such as a hook on a
submodule that it does not call, the forward of the class runs."""

from accelerate._fuse.plan import Plan

__all__ = ["Plan"]
