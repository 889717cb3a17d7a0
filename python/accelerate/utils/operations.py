# SPDX-License-Identifier: Apache-2.0
"""Collectives and device transfers for nested values (docs/guide_python.md).

Before a collective runs, the processes compare their values. If they do not match, every process
raises `MismatchError`, which names the process that differs."""

from __future__ import annotations

import ctypes
import functools
import io
import pickle
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from accelerate import state as _state
from accelerate._base import debug as _debug
from accelerate._base import trees as _trees
from accelerate._placeholders import placeholders_for
from accelerate.errors import MismatchError, UsageError, in_one_line
from accelerate.utils.dataclasses import TensorInformation

# The original's name for an error that it raises only in debug mode.
DistributedOperationException = MismatchError


def _group() -> Any:
    return _state.PartialState().group


def _is_alone() -> bool:
    return _group().is_solo


def is_torch_tensor(tensor: Any) -> bool:
    return isinstance(tensor, torch.Tensor)


def is_namedtuple(data: Any) -> bool:
    return _trees.is_named_tuple(data)


def honor_type(obj: Any, generator: Iterable) -> Any:
    """Returns the items of `generator` in a container with the type of `obj`."""
    return _trees.like(obj, generator)


def recursively_apply(
    func: Callable,
    data: Any,
    *args: Any,
    test_type: Callable[[Any], bool] = is_torch_tensor,
    error_on_other_type: bool = False,
    **kwargs: Any,
) -> Any:
    """Applies `func` to each leaf that `test_type` accepts, and keeps the structure. Other leaves
    are unchanged, or raise TypeError."""

    def apply(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return _trees.like(value, map(apply, value))
        if isinstance(value, Mapping):
            return _trees.with_values(value, {key: apply(item) for key, item in value.items()})
        if test_type(value):
            return func(value, *args, **kwargs)
        if error_on_other_type:
            raise TypeError(
                f"Unsupported types ({type(value)}) passed to "
                f"`{getattr(func, '__name__', 'recursively_apply')}`. Only nested list/tuple/dicts of "
                f"objects that are valid for `{test_type.__name__}` should be passed."
            )
        return value

    return apply(data)


def send_to_device(
    tensor: Any,
    device: Any,
    non_blocking: bool = False,
    skip_keys: str | list[str] | None = None,
) -> Any:
    """Returns the same structure, with everything that can be moved on `device`. Entries named in
    `skip_keys` are unchanged."""
    if isinstance(tensor, torch.Tensor):
        return tensor.to(device, non_blocking=non_blocking)
    if hasattr(tensor, "to"):
        try:
            return tensor.to(device, non_blocking=non_blocking)
        except TypeError:
            return tensor.to(device)
    if isinstance(tensor, (list, tuple)):
        return _trees.like(
            tensor, (send_to_device(item, device, non_blocking, skip_keys) for item in tensor)
        )
    if isinstance(tensor, Mapping):
        skipped = [skip_keys] if isinstance(skip_keys, str) else skip_keys or ()
        moved = {
            key: item if key in skipped else send_to_device(item, device, non_blocking, skip_keys)
            for key, item in tensor.items()
        }
        return _trees.with_values(tensor, moved)
    return tensor


def structure_of(tensor: Any, where: str) -> str:
    """Returns a string that processes compare. If the value is not supported, the other processes
    also raise an error."""
    try:
        return _trees.structure_of(tensor, where)
    except UsageError as error:
        report_failure(error)
        raise


def gather(tensor: Any) -> Any:
    """Concatenates each tensor over all processes along its first dimension, in process order.
    First dimensions may differ, and a scalar counts as one row. On a single process, returns the
    value unchanged."""
    if _is_alone():
        return tensor
    structure = structure_of(tensor, "gather")
    return _trees.with_tensors(tensor, _group().all_gather(_trees.tensors_of(tensor), structure))


def gather_object(object: Any) -> Any:  # noqa: A002, the original's name
    """Returns the concatenation of the lists of all processes. On a single process, returns the
    list unchanged."""
    if _is_alone():
        return object
    try:
        own = pickle.dumps(object)
    except Exception as error:
        report_failure(error)
        raise
    # Sent as a tensor, so that it can be compared with the values of a process that passes tensors.
    own_bytes = torch.frombuffer(bytearray(own), dtype=torch.uint8)
    (rows,) = _group().all_gather([own_bytes], "objects")
    stream = io.BytesIO(ctypes.string_at(rows.data_ptr(), rows.numel()))
    return [item for _ in range(_group().world_size) for item in pickle.load(stream)]


def report_failure(error: Exception) -> None:
    """Call this before this process raises an error while others communicate. The others then raise
    `MismatchError` with the cause instead of waiting."""
    if not _is_alone():
        _group().report_failure(in_one_line(error))


def broadcast(tensor: Any, from_process: int = 0) -> Any:
    """Overwrites the tensors of all other processes with those of `from_process`, and returns
    them."""
    if not _is_alone():
        structure = structure_of(tensor, "broadcast")
        _group().broadcast(_trees.tensors_of(tensor), structure, from_process)
    return tensor


def broadcast_object_list(object_list: list, from_process: int = 0) -> list:
    """Replaces the items of the list with those of `from_process`, and returns the list."""
    if not _is_alone():
        object_list[:] = pickle.loads(
            _group().broadcast_bytes(pickle.dumps(object_list), from_process)
        )
    return object_list


def reduce(tensor: Any, reduction: str = "mean", scale: float = 1.0) -> Any:
    """Returns the sum ("sum" or "none"), mean or maximum of each tensor over all processes, in new
    tensors. `scale` is for TPUs, which this package does not support."""
    if scale != 1.0:
        _debug.warn(
            f"[reduce] scale={scale} has no effect, because it only applies to TPUs. Multiply the "
            "result instead",
            stacklevel=2,
        )
    reductions = {"none": "sum", "sum": "sum", "mean": "mean", "max": "max"}
    if reduction not in reductions:
        error = UsageError(
            f"[reduce] Unknown reduction '{reduction}'. Expected one of: {', '.join(reductions)}"
        )
        report_failure(error)
        raise error
    if _is_alone():
        return tensor
    structure = structure_of(tensor, "reduce")
    return _trees.with_tensors(
        tensor, _group().reduce(_trees.tensors_of(tensor), structure, reductions[reduction])
    )


def pad_across_processes(
    tensor: Any, dim: int = 0, pad_index: int = 0, pad_first: bool = False
) -> Any:
    """Pads each tensor along `dim` with `pad_index` to the largest size on any process. Tensors
    without that dimension are unchanged. Nested tensors are also unchanged, and cause a warning."""
    tensors = _trees.tensors_of(tensor)
    if any(t.is_nested for t in tensors):
        _debug.warn(
            "Cannot pad nested tensors without more information. Leaving unprocessed.",
            CannotPadNestedTensorWarning,
            stacklevel=2,
        )
        plain = [t for t in tensors if not t.is_nested]
        padded = iter(pad_across_processes(plain, dim, pad_index, pad_first))
        return _trees.with_tensors(tensor, [t if t.is_nested else next(padded) for t in tensors])
    if _is_alone():
        return tensor
    structure = structure_of(tensor, "pad_across_processes")
    if dim >= 0:
        padded = _group().pad_across_processes(tensors, structure, dim, pad_index, pad_first)
        return _trees.with_tensors(tensor, padded)
    # A negative `dim` is a different dimension in each tensor, so move it to the front.
    moved = [t.movedim(dim, 0) for t in tensors if t.dim() >= -dim]
    padded = iter(_group().pad_across_processes(moved, structure, 0, pad_index, pad_first))
    return _trees.with_tensors(
        tensor, [next(padded).movedim(0, dim) if t.dim() >= -dim else t for t in tensors]
    )


def slice_tensors(
    data: Any,
    tensor_slice: Any,
    process_index: int | None = None,
    num_processes: int | None = None,
) -> Any:
    """Returns the same structure with `tensor_slice` of each tensor."""
    return _trees.map_tensors(data, lambda tensor: tensor[tensor_slice])


def concatenate(data: Any, dim: int = 0) -> Any:
    """Concatenates the tensors of a list of equal structures along `dim`. Other values raise
    TypeError, unless there is only one structure."""
    first = data[0]
    if isinstance(first, (list, tuple)):
        return _trees.like(first, (concatenate(list(items), dim) for items in zip(*data)))
    if isinstance(first, Mapping):
        joined = {key: concatenate([item[key] for item in data], dim) for key in first}
        return _trees.with_values(first, joined)
    if isinstance(first, torch.Tensor):
        return torch.cat(data, dim=dim)
    if isinstance(data, (list, tuple)) and len(data) == 1:
        return first
    raise TypeError(f"Can only concatenate tensors but got {type(first)}")


def find_batch_size(data: Any) -> int:
    """Returns the size of the first dimension of the first tensor in `data`."""
    for tensor in _trees.tensors_of(data):
        return tensor.shape[0]
    raise ValueError(
        "[find_batch_size] The data contains no tensors, so it has no batch size. Pass data with at "
        "least one tensor"
    )


def ignorant_find_batch_size(data: Any) -> int | None:
    """Like `find_batch_size`, but returns None if no tensor has a first dimension."""
    try:
        return find_batch_size(data)
    except (ValueError, TypeError, IndexError):
        return None


def find_device(data: Any) -> torch.device | None:
    """Returns the device of the first tensor in `data`, or None if there is no tensor."""
    for tensor in _trees.tensors_of(data):
        return tensor.device
    return None


def listify(data: Any) -> Any:
    """Returns the same structure with lists of numbers instead of tensors."""

    def to_list(tensor: torch.Tensor) -> Any:
        tensor = tensor.detach().cpu()
        # NumPy and lists do not support bfloat16.
        return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).tolist()

    return _trees.map_tensors(data, to_list)


def convert_to_fp32(tensor: Any) -> Any:
    """Returns the same structure with half-precision tensors converted to fp32."""
    half = (torch.float16, torch.bfloat16)
    return _trees.map_tensors(tensor, lambda t: t.float() if t.dtype in half else t)


class ConvertOutputsToFp32:
    """Wraps a function and converts its half-precision outputs to fp32."""

    def __init__(self, model_forward: Callable) -> None:
        self.model_forward = model_forward
        functools.update_wrapper(self, model_forward)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return convert_to_fp32(self.model_forward(*args, **kwargs))

    def __getstate__(self) -> Any:
        raise pickle.PicklingError(
            "Cannot pickle a prepared model with automatic mixed precision. Please unwrap the "
            "model with `Accelerator.unwrap_model(model)` before pickling it."
        )


def convert_outputs_to_fp32(model_forward: Callable) -> Callable:
    """Returns the function, with its half-precision outputs converted to fp32."""
    converted = ConvertOutputsToFp32(model_forward)

    def forward(*args: Any, **kwargs: Any) -> Any:
        return converted(*args, **kwargs)

    forward.__wrapped__ = converted
    return forward


# --- descriptions of tensors --------------------------------------------------------------------

# In the order in which the original numbers them, starting at 1.
_NUMBERED_DTYPES = (
    torch.float,
    torch.double,
    torch.half,
    torch.bfloat16,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.bool,
)
TENSOR_TYPE_TO_INT = {dtype: number for number, dtype in enumerate(_NUMBERED_DTYPES, 1)}
TENSOR_INT_TO_DTYPE = dict(enumerate(_NUMBERED_DTYPES, 1))


def is_tensor_information(tensor_info: Any) -> bool:
    return isinstance(tensor_info, TensorInformation)


def get_data_structure(data: Any) -> Any:
    """Returns the same structure with a `TensorInformation` instead of each tensor."""
    return _trees.map_tensors(data, lambda tensor: TensorInformation(tensor.shape, tensor.dtype))


def get_shape(data: Any) -> Any:
    """Returns the same structure with the shape of each tensor, as a list."""
    return _trees.map_tensors(data, lambda tensor: list(tensor.shape))


def initialize_tensors(data_structure: Any) -> Any:
    """Returns the same structure with an empty tensor instead of each `TensorInformation`."""

    def empty(info: TensorInformation) -> torch.Tensor:
        return torch.empty(*info.shape, dtype=info.dtype)

    return recursively_apply(empty, data_structure, test_type=is_tensor_information)


def is_torch_xpu_tensor(tensor: Any, *args: Any) -> bool:
    return isinstance(tensor, torch.Tensor) and tensor.device.type == "xpu"


# --- checks that the original makes only in debug mode, and this package always -----------------


def verify_operation(function: Callable) -> Callable:
    """Returns the function unchanged, because collectives always compare values across
    processes."""
    return function


def chained_operation(function: Callable) -> Callable:
    """Wraps the function so that its `DistributedOperationException` names the operation."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except DistributedOperationException as error:
            raise DistributedOperationException(
                f"Error found while calling `{function.__module__}.{function.__name__}`. Please see "
                "the earlier error for more details."
            ) from error

    return wrapper


def GatheredParameters(  # noqa: N802, the original's name
    params: Any, modifier_rank: int | None = None, fwd_module: Any = None, enabled: bool = True
) -> AbstractContextManager[None]:
    """Does nothing, because DeepSpeed does not shard the parameters."""
    return nullcontext()


class CannotPadNestedTensorWarning(UserWarning):
    """Warns that a nested tensor has no single length to pad to."""


__getattr__ = placeholders_for(__name__)
