# SPDX-License-Identifier: Apache-2.0
"""Finding the user's module inside what wraps it."""

from __future__ import annotations

import torch

from accelerate import prepared_module
from accelerate._placeholders import placeholders_for


def is_compiled_module(module: torch.nn.Module) -> bool:
    """Whether `torch.compile` made this module."""
    return prepared_module.is_compiled_module(module)


def extract_model_from_parallel(
    model: torch.nn.Module,
    keep_fp32_wrapper: bool = True,
    keep_torch_compile: bool = True,
    recursive: bool = False,
) -> torch.nn.Module:
    """The user's module inside a prepared one, inside `DistributedDataParallel` and
    `DataParallel`, in any nesting.

    A compiled module stays compiled, around the module found, unless `keep_torch_compile` is
    False. Unless `keep_fp32_wrapper`, the module computes in the precision of its weights again.
    `recursive` also unwraps the children, in place.
    """
    model = prepared_module.unwrap(model)
    if keep_torch_compile and is_compiled_module(model):
        inner = extract_model_from_parallel(
            model._orig_mod, keep_fp32_wrapper, recursive=recursive
        )
        prepared_module.replace_in_compiled(model, inner)
        if not keep_fp32_wrapper:
            prepared_module.take_off_precision(model)
        return model
    model = _unwrap(model, keep_torch_compile)
    if not keep_fp32_wrapper:
        prepared_module.take_off_precision(model)
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
        inner = prepared_module.unwrap(model)
        if isinstance(inner, containers):
            inner = inner.module
        elif not keep_torch_compile and is_compiled_module(inner):
            inner = inner._orig_mod
        if inner is model:
            return model
        model = inner


__getattr__ = placeholders_for(__name__)
