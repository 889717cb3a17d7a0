# SPDX-License-Identifier: Apache-2.0
"""What `prepare(..., fuse=True)` replaces inside of transformers' models: operators of many passes
over memory by those of `accelerate.kernels`, whose results agree to rounding.

A piece that is known exactly (its class, its parts, what its forward takes) becomes a module of a
type of ours, in place: parameters, names, hooks and `__class__` stay, and copies are of the old
type. Where a call needs something that a fused forward leaves out, say a hook on a part that it
does not call, the forward of the class runs."""

from accelerate._fuse.plan import Plan

__all__ = ["Plan"]
