# SPDX-License-Identifier: Apache-2.0
"""Sizes of models and device maps. Python walks torch's modules, because their classes may define
what they contain. The engine adds up the sizes and chooses the devices."""

from __future__ import annotations

import logging
import warnings
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch

from accelerate import _C
from accelerate._offload.module_tensors import (
    as_dtype,
    find_tied_parameters,
    is_never_cast,
)
from accelerate.utils.dataclasses import CustomDtype
from accelerate.utils.imports import is_mps_available

logger = logging.getLogger("accelerate.utils.modeling")

Dtype = str | torch.dtype | CustomDtype
Memory = dict[int | str, int | float | str]

# --- sizes --------------------------------------------------------------------------------------

_UNITS = {"GIB": 2**30, "MIB": 2**20, "KIB": 2**10, "GB": 10**9, "MB": 10**6, "KB": 10**3}
_CUSTOM_SIZES = {CustomDtype.FP8: 1, CustomDtype.INT4: 1 / 2, CustomDtype.INT2: 1 / 4}


def convert_file_size_to_int(size: int | str) -> int:
    """Returns the number of bytes for a size such as "5MB" (10**6 bytes), "5MiB" (2**20 bytes) or
    "5Mb" (10**6 bits)."""
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
    """Returns the number of bytes per element. A bool counts as an eighth of a byte, as if it were
    packed."""
    if dtype == torch.bool:
        return 1 / 8
    if isinstance(dtype, CustomDtype):
        return _CUSTOM_SIZES[dtype]
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"`dtype` is not a valid dtype: {dtype}.")
    return dtype.itemsize


def _as_number(size: float) -> float:
    return int(size) if float(size).is_integer() else size


def _dtype_sizes(
    dtype: Dtype | None, special_dtypes: dict[str, Any] | None
) -> tuple[float | None, dict[str, float]]:
    each = None if dtype is None else dtype_byte_size(as_dtype(dtype))
    special = {name: dtype_byte_size(as_dtype(d)) for name, d in (special_dtypes or {}).items()}
    return each, special


class _Tree:
    """The description of modules for the engine. Shared modules are described once."""

    def __init__(self, children: Iterable[tuple[str, Any]], root: torch.nn.Module | None = None):
        self._rows: list[tuple] = [("", [], [], [])]
        self._indices: dict[int, int] = {}
        if root is not None:
            self._rows[0] = self._described(root)
        else:
            modules = [(name, m) for name, m in children if isinstance(m, torch.nn.Module)]
            self._rows[0][3].extend((name, self._add(module)) for name, module in modules)
        self.engine = _C.ModuleTree(self._rows)

    def index(self, module: Any) -> int:
        """Returns the index of a module, or 0 for a tensor."""
        return self._indices.get(id(module), 0)

    def _add(self, module: torch.nn.Module) -> int:
        if id(module) not in self._indices:
            index = self._indices[id(module)] = len(self._rows)
            self._rows.append(())
            self._rows[index] = self._described(module)
        return self._indices[id(module)]

    def _described(self, module: torch.nn.Module) -> tuple:
        parameters = module.named_parameters(recurse=False, remove_duplicate=False)
        buffers = module.named_buffers(recurse=False, remove_duplicate=False)
        children = [(n, m) for n, m in module._modules.items() if m is not None]
        return (
            type(module).__name__,
            [_tensor_row(name, tensor) for name, tensor in parameters],
            [_tensor_row(name, tensor) for name, tensor in buffers],
            [(name, self._add(child)) for name, child in children],
        )


def _tensor_row(name: str, tensor: torch.Tensor) -> tuple[str, int, float, float, bool]:
    is_cast = not is_never_cast(tensor.dtype)
    return name, id(tensor), tensor.numel(), dtype_byte_size(tensor.dtype), is_cast


def _tree_of(model: torch.nn.Module) -> _Tree:
    return _Tree((), model)


def compute_module_sizes(
    model: torch.nn.Module,
    dtype: Dtype | None = None,
    special_dtypes: dict[str, Dtype] | None = None,
    buffers_only: bool = False,
) -> dict[str, float]:
    """Returns the bytes of each module and tensor by name, and the total under "". A tensor is
    counted in its dtype in `special_dtypes`, or else in `dtype` if that is smaller than its own
    dtype."""
    sizes: dict[str, float] = defaultdict(int)
    entries = _tree_of(model).engine.sizes(*_dtype_sizes(dtype, special_dtypes), buffers_only)
    sizes.update((name, _as_number(size)) for name, size in entries)
    return sizes


def compute_module_total_buffer_size(
    model: torch.nn.Module,
    dtype: Dtype | None = None,
    special_dtypes: dict[str, Dtype] | None = None,
) -> float:
    """Returns the bytes of all buffers."""
    return compute_module_sizes(model, dtype, special_dtypes, buffers_only=True).get("", 0)


Parts = list[tuple[str, Any]]


def get_max_layer_size(
    modules: Parts, module_sizes: dict[str, float], no_split_module_classes: list[str]
) -> tuple[float, list[str]]:
    """Returns the size of the largest layer among these modules, and the names of all layers of
    that size. A layer is a module without submodules, or one whose class must not be split."""
    tree = _Tree(modules)
    parts = [(name, tree.index(module)) for name, module in modules]
    size, names = tree.engine.largest_layer(
        parts, list(module_sizes.items()), set(no_split_module_classes)
    )
    return _as_number(size), names


def get_module_leaves(module_sizes: dict[str, float]) -> list[str]:
    """Returns the names that have no other names below them."""
    return _C.leaves_of(list(module_sizes))


def calculate_maximum_sizes(model: torch.nn.Module) -> tuple[float, tuple[float, list[str]]]:
    """Returns the bytes of the model, and the result of `get_max_layer_size` for it. Modules that
    transformers marks as unsplittable count as layers."""
    sizes = compute_module_sizes(model)
    unsplit = getattr(model, "_no_split_modules", None) or []
    parts = [
        *model.named_parameters(recurse=False),
        *model.named_children(),
        *model.named_buffers(recurse=False),
    ]
    largest = get_max_layer_size(parts, sizes, list(unsplit))
    return sizes[""], largest


def get_module_size_with_ties(
    tied_params: list[str],
    module_size: float,
    module_sizes: dict[str, float],
    modules_to_treat: Parts,
) -> tuple[float, list[str], list[Any]]:
    """Returns the bytes of a module together with the modules that share parameters with it, the
    names of these modules, and the modules. `tied_params` contains the names of the shared
    parameters in them."""
    size, indices = _C.size_with_ties(
        tied_params,
        module_size,
        list(module_sizes.items()),
        [name for name, _ in modules_to_treat],
    )
    tied = [modules_to_treat[index] for index in indices]
    return _as_number(size), [name for name, _ in tied], [module for _, module in tied]


def fallback_allocate(
    modules: Parts,
    module_sizes: dict[str, float],
    size_limit: int | str,
    no_split_module_classes: list[str] | None = None,
    tied_parameters: list[list[str]] | None = None,
) -> tuple[str | None, Any, Parts]:
    """Returns the name of the first module of at most `size_limit` bytes, this module, and the
    other modules. Larger modules are split. The modules that contain the result are replaced with
    their contents."""
    try:
        limit = convert_file_size_to_int(size_limit)
    except ValueError:
        return None, None, modules
    tree = _Tree(modules)
    found = tree.engine.find_fitting(
        [(name, tree.index(module)) for name, module in modules],
        list(module_sizes.items()),
        limit,
        set(no_split_module_classes or ()),
        tied_parameters or [],
    )
    if found is None:
        return None, None, modules
    known = dict(modules)

    def part(name: str) -> Any:
        if name in known:
            return known[name]
        around, _, last = name.rpartition(".")
        return getattr(part(around), last)

    name, rest = found
    return name, part(name), [(other, part(other)) for other in rest]


# --- devices ------------------------------------------------------------------------------------


def _accelerator() -> Any:
    """Returns torch's module for the available kind of accelerator, or None if there is no
    accelerator."""
    device = torch.accelerator.current_accelerator(check_available=True)
    return None if device is None else torch.get_device_module(device)


def _free_memory_of_machine() -> int:
    with open("/proc/meminfo", encoding="ascii") as file:
        for line in file:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    raise RuntimeError(
        "[get_max_memory] /proc/meminfo has no MemAvailable. Use Linux 3.14 or newer"
    )


def get_max_memory(max_memory: Memory | None = None) -> dict[int | str, int | float]:
    """Returns the free bytes of each accelerator by index, and of the machine ("cpu"). If
    `max_memory` is passed, returns its values in bytes, accelerators first. Also converts sizes
    with a unit in the dictionary that was passed."""
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
                f"Device {number} is not available, available devices are {list(range(num_there))}",
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


def _free_memory() -> dict[int | str, int | float]:
    if is_mps_available():
        return {"mps": _free_memory_of_machine()}
    memory: dict[int | str, int | float] = {}
    module = _accelerator()
    shares_memory = False
    for number in range(0 if module is None else module.device_count()):
        try:
            memory[number] = module.mem_get_info(number)[0]
        except RuntimeError as error:
            warnings.warn(
                f"[get_max_memory] Device {number} seems unavailable and is skipped: {error}",
                stacklevel=3,
            )
            continue
        properties = module.get_device_properties(number)
        shares_memory = shares_memory or bool(getattr(properties, "is_integrated", False))
    if not shares_memory:
        memory["cpu"] = _free_memory_of_machine()
    return memory


def _class_names(classes: str | Iterable[str] | None) -> set[str]:
    return {classes} if isinstance(classes, str) else set(classes or ())


def get_balanced_memory(
    model: torch.nn.Module,
    max_memory: Memory | None = None,
    no_split_module_classes: str | list[str] | None = None,
    dtype: Dtype | None = None,
    special_dtypes: dict[str, Dtype] | None = None,
    low_zero: bool = False,
) -> dict[int | str, int | float]:
    """Returns a `max_memory` for `infer_auto_device_map` that gives each accelerator a similar
    share of the model. With `low_zero`, device 0 gets only what does not fit on the others.

    Without `max_memory`, a single accelerator keeps a tenth of its memory free."""
    memory = get_max_memory(max_memory)
    devices = [device for device, size in memory.items() if isinstance(device, int) and size > 0]
    if not devices:
        return memory
    if len(devices) == 1 and max_memory is None:
        memory[devices[0]] *= 0.9
    balanced = _tree_of(model).engine.balance_memory(
        [memory[device] for device in devices],
        _class_names(no_split_module_classes),
        *_dtype_sizes(dtype, special_dtypes),
        low_zero,
    )
    for device, size in zip(devices, balanced, strict=True):
        if size != memory[device]:
            memory[device] = _as_number(size)
    return memory


def check_tied_parameters_in_config(model: torch.nn.Module) -> bool:
    """Whether a transformers model says that some of its parameters are tied."""
    if not any(c.__name__ == "PreTrainedModel" for c in type(model).__mro__):
        return False
    config = getattr(model, "config", None)
    text = config.get_text_config(decoder=True) if hasattr(config, "get_text_config") else config
    if getattr(text, "tie_word_embeddings", False) and model.get_output_embeddings() is not None:
        return True
    if getattr(config, "is_encoder_decoder", False) and getattr(
        config, "tie_encoder_decoder", False
    ):
        return True
    return any(hasattr(module, "_tie_weights") for module in model.modules())


def warn_if_untied(model: torch.nn.Module, tied: list[list[str]]) -> None:
    if not tied and check_tied_parameters_in_config(model):
        logger.warning(
            "The model weights are not tied. Please use the `tie_weights` method before using the "
            "`infer_auto_device` function."
        )


def infer_auto_device_map(
    model: torch.nn.Module,
    max_memory: Memory | None = None,
    no_split_module_classes: str | list[str] | None = None,
    dtype: Dtype | None = None,
    special_dtypes: dict[str, Dtype] | None = None,
    verbose: bool = False,
    clean_result: bool = True,
    offload_buffers: bool = False,
    fallback_allocation: bool = False,
) -> dict[str, int | str]:
    """Returns the device of each module. Fills the accelerators first, then the CPU, then the disk.

    Modules that do not fit are split, unless their class is in `no_split_module_classes`. Modules
    with tied parameters get the same device. The first accelerator and the CPU keep space for the
    largest layer that is loaded onto them. The model may be on the meta device.

    With `fallback_allocation`, a device that would stay empty gets the first part that fits. With
    `clean_result`, modules entirely on one device have one entry. `verbose` prints each decision."""
    memory = get_max_memory(max_memory)
    devices = [device for device in memory if device != "disk"]
    accelerators = [device for device in devices if device != "cpu"]
    if "mps" in accelerators:
        main: list[int | str] = ["mps"]
    else:
        main = [*accelerators[:1], "cpu"]
    tied = find_tied_parameters(model)
    warn_if_untied(model, tied)
    places, buffer_bytes, decisions = _tree_of(model).engine.plan(
        tied,
        [(str(d), memory[d], d in main, d in accelerators) for d in devices],
        _class_names(no_split_module_classes),
        *_dtype_sizes(dtype, special_dtypes),
        clean_result,
        offload_buffers,
        fallback_allocation,
    )
    if verbose:
        print("\n".join(decisions))
    if buffer_bytes > 0:
        warnings.warn(
            f"Current model requires {_as_number(buffer_bytes)} bytes of buffer for offloaded "
            "layers, which seems does not fit any GPU's remaining memory. If you are experiencing "
            "a OOM later, please consider using offload_buffers=True.",
            stacklevel=2,
        )
    return {name: [*devices, "disk"][index] for name, index in places}


# --- device maps --------------------------------------------------------------------------------


def clean_device_map(device_map: dict[str, Any], module_name: str = "") -> dict[str, Any]:
    """Simplifies the map in place. Modules that are entirely on one device get one entry."""
    devices = list(dict.fromkeys(device_map.values()))
    places = [(name, devices.index(device)) for name, device in device_map.items()]
    simple = _C.simplify_device_map(places, module_name)
    device_map.clear()
    device_map.update((name, devices[index]) for name, index in simple)
    return device_map


def check_device_map(model: torch.nn.Module, device_map: dict[str, Any]) -> None:
    """Raises an error if the map has no device for a tensor of the model. Warns about names that
    are not in the model."""
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


def device_of(name: str, device_map: dict[str, Any]) -> Any:
    """Returns the device of a tensor, which is that of the innermost module in the map."""
    module = name
    while module and module not in device_map:
        module = module.rpartition(".")[0]
    if module not in device_map:
        raise ValueError(f"{name} doesn't have any device set.")
    return device_map[module]


def check_tied_parameters_on_same_device(
    tied_params: list[list[str]], device_map: dict[str, Any]
) -> None:
    """Warns if the map puts tied parameters on different devices."""
    for group in tied_params:
        devices = {name: device_of(name, device_map) for name in group}
        if len(set(devices.values())) > 1:
            logger.warning(
                f"Tied parameters are on different devices: {devices}. Please modify your custom "
                "device map or set `device_map='auto'`. "
            )
