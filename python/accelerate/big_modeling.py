# SPDX-License-Identifier: Apache-2.0
"""Models that are larger than a device. They are created without memory, distributed over devices,
the CPU and the disk, and loaded when they run."""

from __future__ import annotations

import functools
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from accelerate._offload.device_maps import check_device_map as check_device_map
from accelerate._offload.device_maps import get_balanced_memory, infer_auto_device_map
from accelerate._offload.loading import load_checkpoint_in_model
from accelerate._offload.module_tensors import (
    find_tied_parameters,
    retie_parameters,
)
from accelerate._placeholders import placeholders_for
from accelerate.hooks import (
    AlignDevicesHook,
    CpuOffload,
    LayerwiseCastingHook,
    UserCpuOffloadHook,
    add_hook_to_module,
    attach_align_device_hook,
    attach_align_device_hook_on_blocks,
)
from accelerate.utils.constants import SUPPORTED_PYTORCH_LAYERS_FOR_UPCASTING
from accelerate.utils.environment import parse_flag_from_env
from accelerate.utils.offload import (
    OffloadedWeightsLoader,
    extract_submodules_state_dict,
    offload_state_dict,
)
from accelerate.utils.other import recursive_getattr

logger = logging.getLogger(__name__)

Device = int | str | torch.device
DeviceMap = dict[str, Any]


@contextmanager
def init_empty_weights(include_buffers: bool | None = None) -> Iterator[None]:
    """Modules that are created inside the block have parameters without memory (on the meta
    device). With `include_buffers`, this also applies to buffers. The default of `include_buffers`
    comes from the environment variable ACCELERATE_INIT_INCLUDE_BUFFERS."""
    with init_on_device(torch.device("meta"), include_buffers):
        yield


@contextmanager
def init_on_device(device: torch.device, include_buffers: bool | None = None) -> Iterator[None]:
    """Modules that are created inside the block have their parameters on the device. With
    `include_buffers`, every new tensor is on the device."""
    if include_buffers is None:
        include_buffers = parse_flag_from_env("ACCELERATE_INIT_INCLUDE_BUFFERS")
    if include_buffers:
        with device:
            yield
        return
    # Inner blocks and libraries may also replace this method. Each of them restores the method that
    # it found.
    register = torch.nn.Module.register_parameter

    def register_on_device(
        module: torch.nn.Module, name: str, param: torch.nn.Parameter | None
    ) -> None:
        register(module, name, param)
        if param is not None:
            module._parameters[name] = _on(device, module._parameters[name])

    torch.nn.Module.register_parameter = register_on_device
    try:
        yield
    finally:
        torch.nn.Module.register_parameter = register


def _on(device: torch.device, parameter: torch.nn.Parameter) -> torch.nn.Parameter:
    attributes = dict(vars(parameter))
    is_initialized = attributes.pop("_is_hf_initialized", None)
    # Subclasses of Parameter take their attributes as arguments.
    moved = type(parameter)(
        parameter.to(device), requires_grad=parameter.requires_grad, **attributes
    )
    if is_initialized is not None:
        moved._is_hf_initialized = is_initialized
    return moved


# --- whole models -------------------------------------------------------------------------------


def _first_device(model: torch.nn.Module) -> torch.device:
    return next(iter(model.parameters())).device


def cpu_offload(
    model: torch.nn.Module,
    execution_device: Device | None = None,
    offload_buffers: bool = False,
    state_dict: dict[str, torch.Tensor] | None = None,
    preload_module_classes: list[str] | None = None,
) -> torch.nn.Module:
    """Keeps all weights on the CPU, in `state_dict`. When a module runs, it loads its own weights
    onto `execution_device` (default: the device of the first parameter) and releases them
    afterwards. Returns the model."""
    device = _first_device(model) if execution_device is None else execution_device
    if state_dict is None:
        state_dict = {name: tensor.to("cpu") for name, tensor in model.state_dict().items()}
    return _offload_all(model, device, offload_buffers, state_dict, preload_module_classes)


def disk_offload(
    model: torch.nn.Module,
    offload_dir: str | os.PathLike,
    execution_device: Device | None = None,
    offload_buffers: bool = False,
    preload_module_classes: list[str] | None = None,
) -> torch.nn.Module:
    """Like `cpu_offload`, but keeps the weights in files in `offload_dir`. If the folder has an
    index, its files are used unchanged."""
    device = _first_device(model) if execution_device is None else execution_device
    if not _has_index(offload_dir):
        offload_state_dict(offload_dir, model.state_dict())
    weights = OffloadedWeightsLoader(save_folder=offload_dir)
    return _offload_all(model, device, offload_buffers, weights, preload_module_classes)


def _has_index(folder: str | os.PathLike) -> bool:
    return os.path.isfile(os.path.join(folder, "index.json"))


def _offload_all(
    model: torch.nn.Module,
    device: Device,
    offload_buffers: bool,
    weights: Mapping[str, torch.Tensor],
    preload_module_classes: list[str] | None,
) -> torch.nn.Module:
    add_hook_to_module(model, AlignDevicesHook(io_same_device=True), append=True)
    attach_align_device_hook(
        model,
        execution_device=device,
        offload=True,
        weights_map=weights,
        offload_buffers=offload_buffers,
        preload_module_classes=preload_module_classes,
    )
    return model


def cpu_offload_with_hook(
    model: torch.nn.Module,
    execution_device: Device | None = None,
    prev_module_hook: UserCpuOffloadHook | None = None,
) -> tuple[torch.nn.Module, UserCpuOffloadHook]:
    """Keeps a whole model on the CPU until it runs. It then stays on `execution_device` until
    `offload()` of the returned hook is called, or a model with this hook as `prev_module_hook` runs.
    """
    hook = CpuOffload(execution_device, prev_module_hook)
    add_hook_to_module(model, hook, append=True)
    return model, UserCpuOffloadHook(model, hook)


# --- device maps --------------------------------------------------------------------------------


def dispatch_model(
    model: torch.nn.Module,
    device_map: DeviceMap,
    main_device: Device | None = None,
    state_dict: dict[str, torch.Tensor] | None = None,
    offload_dir: str | os.PathLike | None = None,
    offload_index: dict[str, Any] | None = None,
    offload_buffers: bool = False,
    skip_keys: str | list[str] | None = None,
    preload_module_classes: list[str] | None = None,
    force_hooks: bool = False,
) -> torch.nn.Module:
    """Puts each module on its device in `device_map` and returns the model. Modules on "cpu" and
    "disk" run on `main_device`, which defaults to the first other device in the map, or else to the
    CPU.

    Weights on "disk" are either described by `offload_index` or stored in `offload_dir`. They are
    written to this folder if it has no index. `state_dict` contains the weights of modules on
    "cpu". If the map has only one device, the model is just moved to this device, unless
    `force_hooks` is set."""
    check_device_map(model, device_map)
    devices = list(dict.fromkeys(device_map.values()))
    if len(devices) > 1 or "disk" in devices or force_hooks:
        if main_device is None:
            main_device = next((d for d in devices if d not in ("cpu", "disk")), "cpu")
        weights = _weights_for(
            model, device_map, main_device, state_dict, offload_dir, offload_index
        )
        tied = find_tied_parameters(model)
        is_offloaded = ["disk"] if main_device in ("cpu", "mps") else ["cpu", "disk"]
        runs_on = {n: main_device if d in ("cpu", "disk") else d for n, d in device_map.items()}
        attach_align_device_hook_on_blocks(
            model,
            execution_device={**runs_on, "": main_device},
            offload={name: device in is_offloaded for name, device in device_map.items()},
            weights_map=weights,
            offload_buffers=offload_buffers,
            skip_keys=skip_keys,
            preload_module_classes=preload_module_classes,
            tied_params_map=_copies_of_tied(model, tied),
        )
        emptied = [device for device in devices if device in ("cpu", "disk")]
        if emptied:
            logger.warning(
                "Some parameters are on the meta device because they were offloaded to the "
                f"{' and '.join(emptied)}."
            )
        retie_parameters(model, tied)
        _guard_moves(model)
    else:
        model.to(devices[0])
    model.hf_device_map = dict(device_map)
    return model


def _weights_for(
    model: torch.nn.Module,
    device_map: DeviceMap,
    main_device: Device,
    state_dict: dict[str, torch.Tensor] | None,
    offload_dir: str | os.PathLike | None,
    offload_index: dict[str, Any] | None,
) -> OffloadedWeightsLoader | None:
    on_cpu = [name for name, device in device_map.items() if device == "cpu"]
    on_disk = [name for name, device in device_map.items() if device == "disk"]
    if main_device != "cpu" and state_dict is None and on_cpu:
        state_dict = extract_submodules_state_dict(model.state_dict(), on_cpu)
    if on_disk and offload_index is None:
        if offload_dir is None:
            raise ValueError(
                "We need an `offload_dir` to dispatch this model according to this `device_map`, "
                f"the following submodules need to be offloaded: {', '.join(on_disk)}."
            )
        if not _has_index(offload_dir):
            state = model.state_dict()
            is_whole = "" in on_disk
            tensors = state if is_whole else extract_submodules_state_dict(state, on_disk)
            offload_state_dict(offload_dir, tensors)
    folder = offload_dir if on_disk else None
    if state_dict is None and folder is None and offload_index is None:
        return None
    return OffloadedWeightsLoader(
        state_dict=state_dict,
        save_folder=folder,
        index=offload_index,
        device=None if offload_index is None else main_device,
    )


def _copies_of_tied(
    model: torch.nn.Module, tied: list[list[str]]
) -> dict[int, dict[torch.device, torch.Tensor]]:
    """Returns an empty map from devices to copies for each tied parameter, by its address."""
    parameters = (recursive_getattr(model, name) for group in tied for name in group)
    return {p.data_ptr(): {} for p in parameters if p.device.type != "meta"}


def _guard_moves(model: torch.nn.Module) -> None:
    for name in ("to", "cuda", "xpu"):
        setattr(model, name, functools.partial(_move, model, getattr(model, name), name))


def _move(
    model: torch.nn.Module, move: Callable[..., Any], name: str, *args: Any, **kwargs: Any
) -> Any:
    if name != "to" or torch._C._nn._parse_to(*args, **kwargs)[0] is not None:
        logger.warning("You shouldn't move a model that is dispatched using accelerate hooks.")
    if any(parameter.device.type == "meta" for parameter in model.parameters()):
        raise RuntimeError("You can't move a model that has some modules offloaded to cpu or disk.")
    return move(*args, **kwargs)


_STRATEGIES = ("auto", "balanced", "balanced_low_0", "sequential")


def load_checkpoint_and_dispatch(
    model: torch.nn.Module,
    checkpoint: str | os.PathLike,
    device_map: str | DeviceMap | None = None,
    max_memory: dict[int | str, int | str] | None = None,
    no_split_module_classes: list[str] | None = None,
    offload_folder: str | os.PathLike | None = None,
    offload_buffers: bool = False,
    dtype: str | torch.dtype | None = None,
    offload_state_dict: bool | None = None,
    skip_keys: str | list[str] | None = None,
    preload_module_classes: list[str] | None = None,
    force_hooks: bool = False,
    strict: bool = False,
    full_state_dict: bool = True,
    broadcast_from_rank0: bool = False,
) -> torch.nn.Module:
    """Loads a checkpoint (`load_checkpoint_in_model`) and dispatches the model (`dispatch_model`).

    `device_map` is a map, or a string that says how to create one with `infer_auto_device_map`:
    "auto" and "balanced" distribute the model evenly over the accelerators, "balanced_low_0" leaves
    most of the first one free, and "sequential" fills one accelerator after another. Without
    `device_map`, the model is only loaded."""
    if isinstance(device_map, str):
        if device_map not in _STRATEGIES:
            raise ValueError(
                "If passing a string for `device_map`, please choose 'auto', 'balanced', "
                "'balanced_low_0' or 'sequential'."
            )
        if device_map != "sequential":
            max_memory = get_balanced_memory(
                model,
                max_memory=max_memory,
                no_split_module_classes=no_split_module_classes,
                dtype=dtype,
                low_zero=device_map == "balanced_low_0",
            )
        device_map = infer_auto_device_map(
            model,
            max_memory=max_memory,
            no_split_module_classes=no_split_module_classes,
            dtype=dtype,
            offload_buffers=offload_buffers,
        )
    load_checkpoint_in_model(
        model,
        checkpoint,
        device_map=device_map,
        offload_folder=offload_folder,
        dtype=dtype,
        offload_state_dict=bool(offload_state_dict),
        offload_buffers=offload_buffers,
        strict=strict,
        full_state_dict=full_state_dict,
        broadcast_from_rank0=broadcast_from_rank0,
    )
    if device_map is None:
        return model
    return dispatch_model(
        model,
        device_map=device_map,
        offload_dir=offload_folder,
        offload_buffers=offload_buffers,
        skip_keys=skip_keys,
        preload_module_classes=preload_module_classes,
        force_hooks=force_hooks,
    )


# --- dtypes of storage --------------------------------------------------------------------------


def attach_layerwise_casting_hooks(
    module: torch.nn.Module,
    storage_dtype: torch.dtype,
    compute_dtype: torch.dtype,
    skip_modules_pattern: str | tuple[str, ...] | None = None,
    skip_modules_classes: tuple[type[torch.nn.Module], ...] | None = None,
    non_blocking: bool = False,
) -> None:
    """Keeps linear and convolution layers in `storage_dtype`, such as fp8, and converts each layer
    to `compute_dtype` while it runs. Skips modules of the classes in `skip_modules_classes`, and
    modules whose name matches a regular expression in `skip_modules_pattern`."""
    patterns = skip_modules_pattern or ()
    if isinstance(patterns, str):
        patterns = (patterns,)

    def attach(part: torch.nn.Module, name: str) -> None:
        if skip_modules_classes is not None and isinstance(part, skip_modules_classes):
            return
        if any(re.search(pattern, name) for pattern in patterns):
            return
        if isinstance(part, SUPPORTED_PYTORCH_LAYERS_FOR_UPCASTING):
            hook = LayerwiseCastingHook(storage_dtype, compute_dtype, non_blocking)
            add_hook_to_module(part, hook, append=True)
            return
        for child_name, child in part.named_children():
            attach(child, f"{name}.{child_name}" if name else child_name)

    attach(module, "")


__getattr__ = placeholders_for(__name__)
