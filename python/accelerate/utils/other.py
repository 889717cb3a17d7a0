# SPDX-License-Identifier: Apache-2.0
"""Finding the user's module inside what wraps it; files that one process writes for all."""

from __future__ import annotations

import codecs
import os
import sys
from typing import Any

import torch

from accelerate import _files, prepared_module
from accelerate._placeholders import placeholders_for
from accelerate.errors import UsageError
from accelerate.state import PartialState


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


def clean_state_dict_for_safetensors(state_dict: dict[str, Any]) -> dict[str, Any]:
    """The tensors as a safetensors file holds them: each once, under its first name, in one piece
    of memory."""
    tensors, _ = _files.without_aliases(state_dict)
    return {
        name: value.contiguous() if isinstance(value, torch.Tensor) else value
        for name, value in tensors.items()
    }


def save(
    obj: Any, f: Any, save_on_each_node: bool = False, safe_serialization: bool = False
) -> None:
    """Writes the object on the main process, or with `save_on_each_node` on the first process of
    each machine; other processes go on. As `torch.save` does, or a dictionary of tensors as a
    safetensors file. `f` is a path, whose file appears when it is whole, or for pickles an object
    with `write`."""
    state = PartialState()
    if not (state.is_local_main_process if save_on_each_node else state.is_main_process):
        return
    is_path = isinstance(f, (str, os.PathLike))
    if safe_serialization:
        if not is_path or not isinstance(obj, dict):
            raise UsageError(
                f"[save] got a {type(obj).__name__} for a {type(f).__name__} with "
                "safe_serialization=True, expected a dictionary of tensors and a path"
            )
        _files.save_tensors(obj, f)
    elif is_path:
        _files.save_pickle(obj, f)
    else:
        torch.save(obj, f)


def load(f: Any, map_location: Any = None, **kwargs: Any) -> Any:
    """As `torch.load`, by default with `weights_only`, which runs no code; NumPy's arrays count as
    weights."""
    kwargs.setdefault("weights_only", True)
    with torch.serialization.safe_globals(_safe_globals() if kwargs["weights_only"] else []):
        return torch.load(f, map_location=map_location, **kwargs)


def _safe_globals() -> list[Any]:
    """What states of generators need: arrays are numbers."""
    try:
        import numpy
    except ImportError:
        return []
    core = sys.modules.get("numpy._core") or numpy.core
    return [
        core.multiarray._reconstruct,
        numpy.ndarray,
        numpy.dtype,
        numpy.dtypes.UInt32DType,
        codecs.encode,
    ]


__getattr__ = placeholders_for(__name__)
