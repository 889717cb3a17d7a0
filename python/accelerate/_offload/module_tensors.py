# SPDX-License-Identifier: Apache-2.0
"""Lists the parameters and buffers of modules, and moves them one by one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from accelerate.utils.memory import clear_device_cache


def check_device_same(first_device: torch.device, second_device: torch.device) -> bool:
    """Whether the devices are the same. A device without an index means the first of its kind."""

    def numbered(device: torch.device) -> tuple[str, int]:
        return device.type, device.index or 0

    return numbered(first_device) == numbered(second_device)


def as_dtype(dtype: Any) -> Any:
    """Returns the dtype with this name ("float16" or "torch.float16"). Other values are returned
    unchanged."""
    return getattr(torch, dtype.replace("torch.", "")) if isinstance(dtype, str) else dtype


def is_never_cast(dtype: torch.dtype) -> bool:
    """Whether tensors of this dtype are never converted when a model is loaded in a different
    dtype."""
    return not dtype.is_floating_point and not dtype.is_complex


def get_non_persistent_buffers(
    module: torch.nn.Module, recurse: bool = False, fqns: bool = False
) -> set[str]:
    """Returns the names of buffers that are not part of the module's state. With `recurse`,
    includes the buffers of submodules. With `fqns`, returns full names."""
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
    """Yields the names and tensors of parameters and buffers."""
    yield from module.named_parameters(recurse=recurse)
    if not include_buffers:
        return
    left_out = get_non_persistent_buffers(module, recurse) if remove_non_persistent else set()
    for name, buffer in module.named_buffers(recurse=recurse):
        if name not in left_out:
            yield name, buffer


def owner_of(module: torch.nn.Module, tensor_name: str) -> tuple[torch.nn.Module, str]:
    """Returns the submodule that has this tensor, and the tensor's name in it."""
    *path, name = tensor_name.split(".")
    for step in path:
        module = getattr(module, step)
    return module, name


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
    """Moves a parameter or buffer of the module to the device. If `value` is passed, the tensor
    gets this value. The result has `dtype`, by default the current dtype.

    `tied_params_map` maps the address of a tensor with several names to its copies on devices.
    Existing copies are reused, and new copies are added."""
    module, name = owner_of(module, tensor_name)
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
    if value is not None and not isinstance(value, torch.Tensor):
        value = torch.tensor(value)
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
        may_cast = is_empty and dtype is not None and not is_never_cast(old.dtype)
        return old.detach().to(as_dtype(dtype)) if may_cast else old
    if dtype is None:
        return value.to(old.dtype)
    return value if is_never_cast(value.dtype) else value.to(as_dtype(dtype))


def _put_parameter(
    module: torch.nn.Module, name: str, new: torch.Tensor, old: torch.Tensor
) -> None:
    kind = type(module._parameters[name])
    with torch.no_grad():
        parameter = kind(new.detach(), requires_grad=old.requires_grad)
    if hasattr(old, "_is_hf_initialized"):
        parameter._is_hf_initialized = old._is_hf_initialized
    module._parameters[name] = parameter


def find_tied_parameters(model: torch.nn.Module, **kwargs: Any) -> list[list[str]]:
    """Returns the sorted names of each parameter that has several names."""
    names: dict[int, list[str]] = defaultdict(list)
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names[id(parameter)].append(name)
    return [sorted(group) for group in names.values() if len(group) > 1]


def retie_parameters(model: torch.nn.Module, tied_params: Iterable[Iterable[str]]) -> None:
    """Gives all names of each group the same parameter again, which is the first one that is not on
    the meta device. Pass the result of `find_tied_parameters` from before a change that broke the
    ties."""
    for group in tied_params:
        owners = [owner_of(model, name) for name in group]
        present = (getattr(module, name) for module, name in owners)
        shared = next((tensor for tensor in present if tensor.device.type != "meta"), None)
        if shared is not None:
            for module, name in owners:
                setattr(module, name, shared)
