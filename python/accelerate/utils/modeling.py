# SPDX-License-Identifier: Apache-2.0
"""Sizes of models, memory of devices, and loading modules tensor by tensor, as needed for a single
device."""

from __future__ import annotations

import json
import warnings
from collections import defaultdict
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from accelerate import hooks as _hooks
from accelerate._placeholders import placeholders_for
from accelerate._state import files as _files
from accelerate.state import AcceleratorState
from accelerate.utils.constants import WEIGHTS_INDEX_NAME as WEIGHTS_INDEX_NAME
from accelerate.utils.dataclasses import AutocastKwargs, CustomDtype, DistributedType
from accelerate.utils.imports import is_mps_available, is_peft_available
from accelerate.utils.memory import clear_device_cache
from accelerate.utils.other import extract_model_from_parallel


def is_peft_model(model: Any) -> bool:
    """Whether the module, or the module inside it, is a model of PEFT."""
    if not is_peft_available():
        return False
    from peft import PeftModel

    return isinstance(extract_model_from_parallel(model), PeftModel)


# --- sizes --------------------------------------------------------------------------------------

_UNITS = {"GIB": 2**30, "MIB": 2**20, "KIB": 2**10, "GB": 10**9, "MB": 10**6, "KB": 10**3}
_CUSTOM_SIZES = {CustomDtype.FP8: 1, CustomDtype.INT4: 1 / 2, CustomDtype.INT2: 1 / 4}


def convert_file_size_to_int(size: int | str) -> int:
    """Bytes of "5MB" (10**6), "5MiB" (2**20) or "5Mb" (bits)."""
    if isinstance(size, int) and size >= 0:
        return size
    text = str(size)
    for unit, factor in _UNITS.items():
        if text.upper().endswith(unit):
            try:
                num_bytes = int(float(text[: -len(unit)]) * factor)
            except ValueError:
                break
            if num_bytes >= 0:
                return num_bytes // 8 if text.endswith("b") else num_bytes
    raise ValueError(
        f"`size` {size} is not in a valid format. Use an integer for bytes, or a string with an "
        "unit (like '5.0GB')."
    )


def dtype_byte_size(dtype: torch.dtype | CustomDtype) -> float:
    """Bytes per element. A bool takes an eighth, as if it was packed."""
    if dtype == torch.bool:
        return 1 / 8
    if isinstance(dtype, CustomDtype):
        return _CUSTOM_SIZES[dtype]
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"`dtype` is not a valid dtype: {dtype}.")
    return dtype.itemsize


def id_tensor_storage(tensor: torch.Tensor) -> tuple[torch.device, int, int]:
    """Identifies a tensor's memory: equal exactly if two tensors share it."""
    storage = tensor.untyped_storage()
    return tensor.device, storage.data_ptr(), storage.nbytes()


def _as_dtype(dtype: Any) -> Any:
    return getattr(torch, dtype.replace("torch.", "")) if isinstance(dtype, str) else dtype


def _is_never_cast(dtype: torch.dtype) -> bool:
    return not dtype.is_floating_point and not dtype.is_complex


def compute_module_sizes(
    model: torch.nn.Module,
    dtype: str | torch.dtype | None = None,
    special_dtypes: dict[str, str | torch.dtype] | None = None,
    buffers_only: bool = False,
) -> dict[str, float]:
    """Bytes of each module and tensor by name, with the total under "". Tensors are counted in the
    dtype that `special_dtypes` has for them, or in `dtype` if that is smaller than their own."""
    wanted = None if dtype is None else dtype_byte_size(_as_dtype(dtype))
    special = {name: _as_dtype(kind) for name, kind in (special_dtypes or {}).items()}
    tensors = model.named_buffers() if buffers_only else named_module_tensors(model, recurse=True)
    sizes: dict[str, float] = defaultdict(int)
    for name, tensor in tensors:
        each = dtype_byte_size(special.get(name, tensor.dtype))
        if name not in special and wanted is not None and not _is_never_cast(tensor.dtype):
            each = min(wanted, each)
        components = name.split(".")
        for depth in range(len(components) + 1):
            sizes[".".join(components[:depth])] += tensor.numel() * each
    return sizes


def compute_module_total_buffer_size(
    model: torch.nn.Module,
    dtype: str | torch.dtype | None = None,
    special_dtypes: dict[str, str | torch.dtype] | None = None,
) -> float:
    """Bytes of all buffers."""
    return compute_module_sizes(model, dtype, special_dtypes, buffers_only=True).get("", 0)


def get_max_layer_size(
    modules: list[tuple[str, Any]],
    module_sizes: dict[str, float],
    no_split_module_classes: list[str],
) -> tuple[float, list[str]]:
    """The size of the largest layer among these modules, and the names of all layers of that size.
    A layer is a module without submodules, or one whose class must not be split."""
    largest, names = 0, []
    left = list(modules)
    while left:
        name, module = left.pop(0)
        children = list(module.named_children()) if isinstance(module, torch.nn.Module) else []
        if children and module.__class__.__name__ not in no_split_module_classes:
            left[:0] = [(f"{name}.{inner}", child) for inner, child in children]
        elif module_sizes[name] > largest:
            largest, names = module_sizes[name], [name]
        elif module_sizes[name] == largest:
            names.append(name)
    return largest, names


# --- devices ------------------------------------------------------------------------------------


def check_device_same(first_device: torch.device, second_device: torch.device) -> bool:
    """Whether the devices are the same. A device without an index is the first of its kind."""

    def numbered(device: torch.device) -> tuple[str, int]:
        return device.type, device.index or 0

    return numbered(first_device) == numbered(second_device)


def _accelerator() -> Any:
    """torch's module for the available kind of accelerator; None if there is none."""
    device = torch.accelerator.current_accelerator(check_available=True)
    return None if device is None else torch.get_device_module(device)


def _free_memory_of_machine() -> int:
    with open("/proc/meminfo", encoding="ascii") as file:
        for line in file:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    raise RuntimeError("[get_max_memory] /proc/meminfo has no MemAvailable. Use Linux 3.14 or newer")


def get_max_memory(
    max_memory: dict[int | str, int | float | str] | None = None,
) -> dict[int | str, int | float]:
    """Free bytes of each accelerator by index, and of the machine ("cpu"). If `max_memory` is
    given, returns its values in bytes, accelerators first. Sizes with a unit are also converted in
    the given dictionary."""
    if max_memory is None:
        return _free_memory()
    sizes: dict[Any, Any] = max_memory
    for device, size in sizes.items():
        if isinstance(size, str):
            sizes[device] = convert_file_size_to_int(size)
    numbers = sorted(device for device in sizes if isinstance(device, int))
    module = _accelerator()
    num_there = 0 if module is None else module.device_count()
    for number in numbers:
        if not 0 <= number < num_there:
            warnings.warn(
                f"Device {number} is not available, available devices are "
                f"{list(range(num_there))}",
                stacklevel=2,
            )
    known = [*numbers, *(name for name in ("mps", "cpu", "disk") if name in sizes)]
    for device in sizes:
        if device not in known:
            raise ValueError(
                f"Device {device} is not recognized, available devices are integers(for GPU/XPU), "
                "'mps', 'cpu' and 'disk'"
            )
    return {device: sizes[device] for device in known}


def _free_memory() -> dict[int | str, int]:
    if is_mps_available():
        return {"mps": _free_memory_of_machine()}
    memory: dict[int | str, int] = {}
    module = _accelerator()
    shares_memory = False
    for number in range(0 if module is None else module.device_count()):
        try:
            memory[number] = module.mem_get_info(number)[0]
        except RuntimeError as error:
            warnings.warn(
                f"[get_max_memory] Device {number} seems unavailable: {error}", stacklevel=3
            )
            continue
        properties = module.get_device_properties(number)
        shares_memory = shares_memory or bool(getattr(properties, "is_integrated", False))
    if not shares_memory:
        memory["cpu"] = _free_memory_of_machine()
    return memory


def clean_device_map(device_map: dict[str, Any], module_name: str = "") -> dict[str, Any]:
    """Simplifies the map in place: one entry for modules that are entirely on one device."""
    prefix = f"{module_name}." if module_name else ""
    inside = [name for name in device_map if name.startswith(prefix)]
    devices = {device_map[name] for name in inside}
    if len(inside) > 1 and len(devices) == 1:
        for name in inside:
            del device_map[name]
        device_map[module_name] = devices.pop()
    depth = len(module_name.split(".")) + 1 if module_name else 1
    children = [
        name for name in device_map if name.startswith(prefix) and len(name) > len(module_name)
    ]
    for child in {".".join(name.split(".")[:depth]) for name in children}:
        clean_device_map(device_map, child)
    return device_map


def check_device_map(model: torch.nn.Module, device_map: dict[str, Any]) -> None:
    """Raises if the map has no device for a tensor of the model. Warns about names that are not in
    the model."""
    modules = dict(model.named_modules())
    unknown = [name for name in device_map if name != "" and name not in modules]
    if unknown:
        warnings.warn(
            f"The following device_map keys do not match any submodules in the model: {unknown}",
            stacklevel=2,
        )
    if "" in device_map:
        return
    left = [
        name
        for name in model.state_dict()
        if not any(name == prefix or name.startswith(f"{prefix}.") for prefix in device_map)
    ]
    if left:
        raise ValueError(
            "The device_map provided does not give any device for the following parameters: "
            f"{', '.join(left)}"
        )


# --- tensors of a module ------------------------------------------------------------------------


def get_non_persistent_buffers(
    module: torch.nn.Module, recurse: bool = False, fqns: bool = False
) -> set[str]:
    """Names of buffers that are not part of the module's state. With `recurse`, includes the
    buffers of submodules, and with `fqns` uses full names."""
    if not recurse:
        return set(module._non_persistent_buffers_set)
    return {
        f"{prefix}.{name}" if fqns and prefix else name
        for prefix, submodule in module.named_modules()
        for name in submodule._non_persistent_buffers_set
    }


def named_module_tensors(
    module: torch.nn.Module,
    include_buffers: bool = True,
    recurse: bool = False,
    remove_non_persistent: bool = False,
) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters and buffers by name."""
    yield from module.named_parameters(recurse=recurse)
    if not include_buffers:
        return
    left_out = get_non_persistent_buffers(module, recurse) if remove_non_persistent else set()
    for name, buffer in module.named_buffers(recurse=recurse):
        if name not in left_out:
            yield name, buffer


_QUANTIZED = ("Int8Params", "FP4Params", "Params4bit", "QTensor", "QBitsTensor")


def set_module_tensor_to_device(
    module: torch.nn.Module,
    tensor_name: str,
    device: int | str | torch.device,
    value: torch.Tensor | None = None,
    dtype: str | torch.dtype | None = None,
    fp16_statistics: torch.Tensor | None = None,
    tied_params_map: dict[int, dict[torch.device, torch.Tensor]] | None = None,
    non_blocking: bool = False,
    clear_cache: bool = True,
) -> None:
    """Moves a parameter or buffer of the module to the device, with this value if given, and in
    `dtype` or else its current dtype.

    `tied_params_map` maps the address of a tensor with several names to its copies on devices.
    Existing copies are reused, and new copies are added."""
    *path, name = tensor_name.split(".")
    for step in path:
        module = getattr(module, step)
    if name not in module._parameters and name not in module._buffers:
        raise ValueError(f"{module} does not have a parameter or a buffer named {name}.")
    old = getattr(module, name)
    copies = _copies(tied_params_map, value, old)
    if copies is not None and device in copies:
        module._parameters[name] = copies[device]
        return
    is_empty = torch.device(device).type == "meta"
    if old.device.type == "meta" and not is_empty and value is None:
        raise ValueError(f"{name} is on the meta device, we need a `value` to put in on {device}.")
    kind = type(module._parameters.get(name))
    if fp16_statistics is not None or kind.__name__ in _QUANTIZED:
        raise NotImplementedError(
            f"[set_module_tensor_to_device] The quantized tensor '{tensor_name}' is not supported. "
            "Load the model without quantization"
        )
    if value is not None and old.shape != value.shape:
        raise ValueError(
            f'Trying to set a tensor of shape {value.shape} in "{name}" (which has shape '
            f"{old.shape}), this looks incorrect."
        )
    new = _converted(old, value, dtype, is_empty).to(device, non_blocking=non_blocking)
    if name in module._buffers:
        module._buffers[name] = new
    elif value is not None or new is not old:
        _put_parameter(module, name, new, old)
    if clear_cache and torch.device(device).type not in ("cpu", "meta"):
        clear_device_cache()
    if copies is not None:
        copies[device] = getattr(module, name)


def _copies(
    tied: dict[int, dict[torch.device, torch.Tensor]] | None,
    value: torch.Tensor | None,
    old: torch.Tensor,
) -> dict[torch.device, torch.Tensor] | None:
    for tensor in (value, old):
        if tied is not None and tensor is not None and tensor.data_ptr() in tied:
            return tied[tensor.data_ptr()]
    return None


def _converted(
    old: torch.Tensor, value: torch.Tensor | None, dtype: Any, is_empty: bool
) -> torch.Tensor:
    if value is None:
        may_cast = is_empty and dtype is not None and not _is_never_cast(old.dtype)
        return old.detach().to(_as_dtype(dtype)) if may_cast else old
    if dtype is None:
        return value.to(old.dtype)
    return value if _is_never_cast(value.dtype) else value.to(_as_dtype(dtype))


def _put_parameter(
    module: torch.nn.Module, name: str, new: torch.Tensor, old: torch.Tensor
) -> None:
    kind = type(module._parameters[name])
    with torch.no_grad():
        parameter = kind(new.detach(), requires_grad=old.requires_grad)
    if hasattr(old, "_is_hf_initialized"):
        parameter._is_hf_initialized = old._is_hf_initialized
    module._parameters[name] = parameter


# --- precision ----------------------------------------------------------------------------------


def get_mixed_precision_context_manager(
    native_amp: bool = False, autocast_kwargs: AutocastKwargs | None = None
) -> AbstractContextManager[Any]:
    """torch's autocast in the precision of the run. Does nothing if `native_amp` is false."""
    if not native_amp:
        return nullcontext()
    state = AcceleratorState()
    options = {} if autocast_kwargs is None else autocast_kwargs.to_kwargs()
    dtypes = {"fp16": torch.float16, "bf16": torch.bfloat16}
    return torch.autocast(state.device.type, dtypes.get(state.mixed_precision), **options)


def get_grad_scaler(distributed_type: DistributedType | None = None, **kwargs: Any) -> Any:
    """A torch gradient scaler, for losses that no `Accelerator` scales."""
    device = torch.accelerator.current_accelerator(check_available=True)
    return torch.amp.GradScaler("cuda" if device is None else device.type, **kwargs)


# --- weights ------------------------------------------------------------------------------------


def find_tied_parameters(model: torch.nn.Module, **kwargs: Any) -> list[list[str]]:
    """The names of each parameter with several names, sorted."""
    names: dict[int, list[str]] = defaultdict(list)
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names[id(parameter)].append(name)
    return [sorted(group) for group in names.values() if len(group) > 1]


def has_offloaded_params(module: torch.nn.Module) -> bool:
    """Whether a hook moves the module's weights to its device on use."""
    hook = getattr(module, "_hf_hook", None)
    return isinstance(hook, _hooks.AlignDevicesHook) and hook.offload


def load_state_dict(
    checkpoint_file: str, device_map: dict[str, int | str | torch.device] | None = None
) -> dict[str, torch.Tensor]:
    """The tensors of a safetensors file, or of a `torch.save` file on the CPU. `device_map` maps
    names of modules to the devices of their tensors. Other tensors stay on the CPU."""
    if not checkpoint_file.endswith(".safetensors"):
        return torch.load(checkpoint_file, map_location="cpu", weights_only=True)
    metadata = _metadata_of(checkpoint_file)
    if metadata is None:
        warnings.warn(
            f"The safetensors archive passed at {checkpoint_file} does not contain metadata. Make "
            "sure to save your model with the `save_pretrained` method. Defaulting to 'pt' "
            "metadata.",
            stacklevel=2,
        )
    elif metadata.get("format") not in ("pt", "tf", "flax"):
        raise OSError(
            f"The safetensors archive passed at {checkpoint_file} does not contain the valid "
            "metadata. Make sure you save your model with the `save_pretrained` method."
        )
    elif metadata["format"] != "pt":
        raise ValueError(
            f"The checkpoint passed was saved with {metadata['format']}, we need a the pt format."
        )
    tensors = _files.load_tensors(checkpoint_file)
    if device_map is None:
        return tensors
    is_of_one = len(set(device_map.values())) == 1
    for name, tensor in tensors.items():
        for module, device in device_map.items():
            if is_of_one or name == module or name.startswith(f"{module}."):
                tensors[name] = tensor if device == "disk" else tensor.to(device)
    return tensors


def _metadata_of(path: str) -> dict[str, str] | None:
    """The metadata in the header of a safetensors file."""
    with open(path, "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        return json.loads(file.read(size)).get("__metadata__")


__getattr__ = placeholders_for(__name__)
