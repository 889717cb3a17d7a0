# SPDX-License-Identifier: Apache-2.0
"""Finding the user's module inside what wraps it."""

from __future__ import annotations

import sys

import torch

from accelerate._placeholders import placeholders_for


def is_compiled_module(module: torch.nn.Module) -> bool:
    """Whether `torch.compile` made this module."""
    # The compiler is slow to import; where nobody has, nothing is compiled.
    compiler = sys.modules.get("torch._dynamo.eval_frame")
    return compiler is not None and isinstance(module, compiler.OptimizedModule)


def extract_model_from_parallel(
    model: torch.nn.Module,
    keep_fp32_wrapper: bool = True,
    keep_torch_compile: bool = True,
    recursive: bool = False,
) -> torch.nn.Module:
    """The user's module inside a prepared one, inside `DistributedDataParallel` and
    `DataParallel`, in any nesting.

    A compiled module stays compiled, around the module found, unless `keep_torch_compile` is
    False. `recursive` also unwraps the children, in place. `keep_fp32_wrapper` makes no
    difference: preparing a module does not replace its `forward`.
    """
    if keep_torch_compile and is_compiled_module(model):
        model._orig_mod = extract_model_from_parallel(model._orig_mod, recursive=recursive)
        return model
    model = _unwrap(model, keep_torch_compile)
    if recursive:
        for name, child in list(model.named_children()):
            inner = extract_model_from_parallel(
                child, keep_torch_compile=keep_torch_compile, recursive=True
            )
            setattr(model, name, inner)
    return model


def _unwrap(model: torch.nn.Module, keep_torch_compile: bool) -> torch.nn.Module:
    containers = (torch.nn.parallel.DistributedDataParallel, torch.nn.DataParallel)
    while True:
        inner = _unwrap_prepared(model)
        if isinstance(inner, containers):
            inner = inner.module
        elif not keep_torch_compile and is_compiled_module(inner):
            inner = inner._orig_mod
        if inner is model:
            return model
        model = inner


def _unwrap_prepared(model: torch.nn.Module) -> torch.nn.Module:
    # Nothing is prepared where nobody has imported what prepares.
    prepared = sys.modules.get("accelerate.prepared_module")
    return model if prepared is None else prepared.unwrap(model)


__getattr__ = placeholders_for(__name__)
