# SPDX-License-Identifier: Apache-2.0
"""Functions that find the user's module inside wrappers, compile its blocks, and write files on one
process. Also contains small helper functions."""

from __future__ import annotations

import codecs
import functools
import os
import platform
import re
import socket
import sys
import warnings
from typing import Any

import torch

from accelerate._base.verification import RECORDER
from accelerate._models import prepared_module
from accelerate._placeholders import placeholders_for
from accelerate._state import files as _files
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
    """Returns the user's module inside a prepared module, or inside any nesting of
    `DistributedDataParallel` and `DataParallel`.

    If the module was compiled, the result is also compiled, unless `keep_torch_compile` is False.
    Unless `keep_fp32_wrapper` is set, the module computes in the precision of its weights again.
    `recursive` also unwraps the children, in place.
    """
    model = prepared_module.unwrap(model)
    if keep_torch_compile and is_compiled_module(model):
        inner = extract_model_from_parallel(model._orig_mod, keep_fp32_wrapper, recursive=recursive)
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
    """Returns the tensors for a safetensors file. They are contiguous, and each tensor appears
    once, under its first name."""
    tensors, _ = _files.without_aliases(state_dict)
    return {
        name: value.contiguous() if isinstance(value, torch.Tensor) else value
        for name, value in tensors.items()
    }


def save(
    obj: Any, f: Any, save_on_each_node: bool = False, safe_serialization: bool = False
) -> None:
    """Writes the object on the main process or, with `save_on_each_node`, on the first process of
    each machine. Other processes do not wait. Uses `torch.save`. With `safe_serialization`, it
    writes a dictionary of tensors to a safetensors file instead. `f` is a path, which is written
    atomically. For pickles, it can also be an object with `write`."""
    state = PartialState()
    is_writer = state.is_local_main_process if save_on_each_node else state.is_main_process
    if not is_writer or RECORDER is not None:
        return  # `accelerate verify` leaves no files.
    is_path = isinstance(f, (str, os.PathLike))
    if safe_serialization:
        if not is_path or not isinstance(obj, dict):
            raise UsageError(
                "[save] safe_serialization=True needs a dictionary of tensors and a path, but got "
                f"objects of type {type(obj).__name__} and {type(f).__name__}"
            )
        _files.save_tensors(obj, f)
    elif is_path:
        _files.save_pickle(obj, f)
    else:
        torch.save(obj, f)


def load(f: Any, map_location: Any = None, **kwargs: Any) -> Any:
    """Like `torch.load`, by default with `weights_only`, which runs no code. NumPy arrays are
    allowed."""
    kwargs.setdefault("weights_only", True)
    with torch.serialization.safe_globals(_safe_globals() if kwargs["weights_only"] else []):
        return torch.load(f, map_location=map_location, **kwargs)


def _safe_globals() -> list[Any]:
    """Returns the classes that are needed to load the states of generators, which contain
    arrays."""
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


# --- compiled parts -----------------------------------------------------------------------------


def is_repeated_blocks(module: torch.nn.Module) -> bool:
    """Whether the module is a list of modules of the same class."""
    if not isinstance(module, torch.nn.ModuleList) or len(module) == 0:
        return False
    return all(isinstance(block, module[0].__class__) for block in module)


def has_repeated_blocks(module: torch.nn.Module) -> bool:
    """Whether the module contains such a list at any level."""
    return any(is_repeated_blocks(submodule) for submodule in module.modules())


def has_compiled_regions(module: torch.nn.Module) -> bool:
    """Whether a part of the module was compiled with `torch.compile`."""
    return any(
        is_compiled_module(submodule) or submodule._compiled_call_impl is not None
        for submodule in module.modules()
    )


def compile_regions(module: torch.nn.Module, **compile_kwargs: Any) -> torch.nn.Module:
    """Compiles the blocks of a module one by one, in place. Repeated blocks share their code, so
    this takes as long as compiling one of them. Returns the module."""
    if is_repeated_blocks(module):
        for block in module:
            block.compile(**compile_kwargs)
    elif has_repeated_blocks(module):
        for child in module.children():
            compile_regions(child, **compile_kwargs)
    else:
        module.compile(**compile_kwargs)
    return module


# --- small helpers ------------------------------------------------------------------------------


def wait_for_everyone() -> None:
    """Waits until all processes have called it."""
    PartialState().wait_for_everyone()


def recursive_getattr(obj: Any, attr: str) -> Any:
    """Returns the attribute with a dotted name."""
    return functools.reduce(getattr, attr.split("."), obj)


def merge_dicts(source: dict, destination: dict) -> dict:
    """Returns `destination` with the entries of `source`, merged recursively."""
    for key, value in source.items():
        if isinstance(value, dict):
            merge_dicts(value, destination.setdefault(key, {}))
        else:
            destination[key] = value
    return destination


def get_pretty_name(obj: Any) -> str:
    """Returns the name of a function or class, or of the class of an object."""
    for named in (obj, type(obj)):
        for name in ("__qualname__", "__name__"):
            if hasattr(named, name):
                return getattr(named, name)
    return str(obj)


def get_module_children_bottom_up(model: torch.nn.Module, return_fqns: bool = False) -> list:
    """Returns all modules, with children before their parents and the model last. With
    `return_fqns`, returns pairs of names and modules."""
    stack, ordered = [("", model)], []
    while stack:
        prefix, module = stack.pop()
        ordered.append((prefix, module))
        for name, child in module.named_children():
            stack.append((f"{prefix}.{name}" if prefix else name, child))
    ordered.reverse()
    return ordered if return_fqns else [module for _, module in ordered]


def model_has_dtensor(model: torch.nn.Module) -> bool:
    """Whether torch has sharded a parameter over devices."""
    from torch.distributed.tensor import DTensor

    return any(isinstance(parameter, DTensor) for parameter in model.parameters())


def get_model_tp_size(model: torch.nn.Module) -> int | None:
    """Returns the number of devices over which transformers has sharded the layers of the model, or
    None if they are not sharded."""
    size = getattr(model, "tp_size", None)
    config = getattr(getattr(model, "config", None), "distributed_config", None)
    if size is not None:
        return size
    return config.get("tp_size") if isinstance(config, dict) else getattr(config, "tp_size", None)


def is_port_in_use(port: int | None = None) -> bool:
    """Whether a program listens on this port of this machine. The default is 29500."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        return probe.connect_ex(("localhost", 29500 if port is None else port)) == 0


def get_free_port() -> int:
    """Returns a port of this machine that is currently free."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]


def convert_bytes(size: float) -> str:
    """Returns the size in the largest unit in which it is at least 1."""
    for unit in ("bytes", "KB", "MB", "GB", "TB"):
        if size < 1024.0:
            return f"{round(size, 2)} {unit}"
        size /= 1024.0
    return f"{round(size, 2)} PB"


def check_os_kernel() -> None:
    """Warns if the Linux kernel is older than 5.5, because processes may then hang."""
    info = platform.uname()
    numbers = re.match(r"(\d+)\.(\d+)", info.release)
    if info.system == "Linux" and numbers and tuple(map(int, numbers.groups())) < (5, 5):
        warnings.warn(
            f"Detected kernel version {info.release}, which is below the recommended minimum of "
            "5.5.0. This can cause the process to hang. Upgrade the kernel to the minimum version "
            "or higher.",
            stacklevel=2,
        )


__getattr__ = placeholders_for(__name__)
