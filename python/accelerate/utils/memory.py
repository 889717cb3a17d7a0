# SPDX-License-Identifier: Apache-2.0
"""Frees memory, and runs a function with the largest batch that fits."""

from __future__ import annotations

import functools
import gc
import inspect
from collections.abc import Callable
from typing import Any

from accelerate import _C
from accelerate._placeholders import placeholders_for

# Error messages of the allocators for CUDA, ROCm, XPU, MPS, CPU and HPU, and of cuDNN for batches
# that are too large.
_TOO_LARGE = (
    " out of memory.",
    "MPS backend out of memory",
    "cuDNN error: CUDNN_STATUS_NOT_SUPPORTED.",
    "DefaultCPUAllocator: can't allocate memory",
    "FATAL ERROR :: MODULE:PT_DEVMEM Allocation failed",
)


def clear_device_cache(garbage_collection: bool = False) -> None:
    """Releases cached device memory. With `garbage_collection`, first collects garbage (slow)."""
    if garbage_collection:
        gc.collect()
    _C.clear_device_cache()


def release_memory(*objects: Any) -> list[None]:
    """Returns one `None` per object. Assign them to the variables to release the objects: `model,
    optimizer = release_memory(model, optimizer)`. Also collects garbage and releases cached device
    memory.
    """
    released: list[None] = [None] * len(objects)
    del objects
    clear_device_cache(garbage_collection=True)
    return released


def should_reduce_batch_size(exception: Exception) -> bool:
    """Whether this is a RuntimeError about insufficient memory."""
    if not isinstance(exception, RuntimeError) or len(exception.args) != 1:
        return False
    return any(text in str(exception.args[0]) for text in _TOO_LARGE)


def find_executable_batch_size(
    function: Callable[..., Any] | None = None,
    starting_batch_size: int = 128,
    reduce_batch_size_fn: Callable[[], int] | None = None,
) -> Callable[..., Any]:
    """A decorator for a function whose first parameter is the batch size. Callers omit this
    argument.

    If memory runs out, the function is called again with 0.9 times the size (rounded down), or with
    the result of `reduce_batch_size_fn()`. If the size reaches 0, a RuntimeError is raised. Later
    calls start with the size that worked. Other errors are passed on.
    """
    if function is None:
        return functools.partial(
            find_executable_batch_size,
            starting_batch_size=starting_batch_size,
            reduce_batch_size_fn=reduce_batch_size_fn,
        )
    batch_size = starting_batch_size

    def run_once(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[bool, Any]:
        try:
            return True, function(batch_size, *args, **kwargs)
        except Exception as error:
            if not should_reduce_batch_size(error):
                raise
            return False, None

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        nonlocal batch_size
        _check_no_batch_size(function, args)
        while batch_size != 0:
            # The traceback of the failed call, which keeps its tensors alive, is released only
            # here.
            clear_device_cache(garbage_collection=True)
            finished, result = run_once(args, kwargs)
            if finished:
                return result
            batch_size = reduce_batch_size_fn() if reduce_batch_size_fn else int(batch_size * 0.9)
        raise RuntimeError(
            "[find_executable_batch_size] No executable batch size found, reached zero. "
            f"{_name(function)} does not fit into memory with any batch size"
        )

    return wrapper


def _check_no_batch_size(function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    parameters = inspect.signature(function).parameters.values()
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if len(args) >= len(names):
        called = _name(function)
        raise TypeError(
            f"[find_executable_batch_size] {called} takes at most {len(names) - 1} arguments, but "
            f"got {len(args)}. The batch size is passed for you. Call "
            f"{called}({', '.join(names[1:])})"
        )


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", repr(function))


__getattr__ = placeholders_for(__name__)
