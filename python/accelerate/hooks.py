# SPDX-License-Identifier: Apache-2.0
"""Hooks around the `forward` of modules. They load a module's weights when it runs, and move its
inputs to its device."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from typing import Any

import torch

from accelerate._offload import saved_weights as _saved_weights
from accelerate._offload.module_tensors import (
    get_non_persistent_buffers,
    named_module_tensors,
    owner_of,
    set_module_tensor_to_device,
)
from accelerate._placeholders import placeholders_for
from accelerate.state import PartialState
from accelerate.utils.memory import clear_device_cache
from accelerate.utils.offload import PrefixedDataset
from accelerate.utils.operations import find_device, send_to_device
from accelerate.utils.other import recursive_getattr

Device = int | str | torch.device
TiedParameters = dict[int, dict[torch.device, torch.Tensor]]

# Methods that `dispatch_model` replaces.
_REPLACED = ("to", "cuda", "npu", "xpu", "mlu", "sdaa", "musa")


def _not_compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the function in a form that compiled modules call without compiling it."""

    # `torch.compiler.disable` imports the compiler, which takes seconds.
    @functools.cache
    def disabled() -> Callable[..., Any]:
        return torch.compiler.disable(function)

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return disabled()(*args, **kwargs)
        return function(*args, **kwargs)

    return wrapper


class ModelHook:
    """A hook around the `forward` of the module that it is attached to. With `no_grad`, `forward`
    runs without gradients."""

    no_grad = False

    def init_hook(self, module: torch.nn.Module) -> torch.nn.Module:
        """Called when the hook is attached. Returns the module."""
        return module

    def pre_forward(
        self, module: torch.nn.Module, *args: Any, **kwargs: Any
    ) -> tuple[tuple, dict[str, Any]]:
        """Returns the arguments for `forward`."""
        return args, kwargs

    def post_forward(self, module: torch.nn.Module, output: Any) -> Any:
        """Returns the output of the module."""
        return output

    def detach_hook(self, module: torch.nn.Module) -> torch.nn.Module:
        """Called when the hook is detached. Returns the module."""
        return module


class SequentialHook(ModelHook):
    """Several hooks, called in order."""

    def __init__(self, *hooks: ModelHook):
        self.hooks = hooks

    def init_hook(self, module: torch.nn.Module) -> torch.nn.Module:
        for hook in self.hooks:
            module = hook.init_hook(module)
        return module

    @_not_compiled
    def pre_forward(
        self, module: torch.nn.Module, *args: Any, **kwargs: Any
    ) -> tuple[tuple, dict[str, Any]]:
        for hook in self.hooks:
            args, kwargs = hook.pre_forward(module, *args, **kwargs)
        return args, kwargs

    @_not_compiled
    def post_forward(self, module: torch.nn.Module, output: Any) -> Any:
        for hook in self.hooks:
            output = hook.post_forward(module, output)
        return output

    def detach_hook(self, module: torch.nn.Module) -> torch.nn.Module:
        for hook in self.hooks:
            module = hook.detach_hook(module)
        return module


class _Turn:
    """Lets one thread at a time load the weights of a module, run it and release them. Otherwise, a
    thread would release weights that another thread still uses. Copies of a `_Turn` are
    independent."""

    # The time limit in seconds is longer than any sensible wait. A thread that never releases
    # weights must not block the others forever.
    PATIENCE = 600.0

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._holder: int | None = None
        self._depth = 0

    def begin(self, name: str) -> None:
        if not self._lock.acquire(timeout=self.PATIENCE):
            raise RuntimeError(
                f"[AlignDevicesHook] Another thread has kept the weights of {name} loaded for "
                f"{self.PATIENCE:.0f} s. Call post_forward after each pre_forward"
            )
        self._holder = threading.get_ident()
        self._depth += 1

    @property
    def is_mine(self) -> bool:
        return self._holder == threading.get_ident()

    def end(self) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._holder = None
        self._lock.release()

    def __reduce__(self) -> tuple[type, tuple]:
        return _Turn, ()


def _offloading_hooks(module: torch.nn.Module) -> list[AlignDevicesHook]:
    """Returns the hooks that load the module's weights when it runs."""
    hook = getattr(module, "_hf_hook", None)
    hooks = hook.hooks if isinstance(hook, SequentialHook) else (hook,)
    return [each for each in hooks if isinstance(each, AlignDevicesHook) and each.offload]


def _forward_with_hook(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
    hook = module._hf_hook
    loading = _offloading_hooks(module)
    try:
        args, kwargs = hook.pre_forward(module, *args, **kwargs)
        with (
            torch.no_grad() if hook.no_grad else nullcontext(),
            _saved_weights.kept_out_of_graph() if loading else nullcontext(),
        ):
            output = module._old_forward(*args, **kwargs)
    except BaseException:
        # The program may continue, so release the memory of this module's weights.
        for each in loading:
            each._unload(module)
        raise
    return hook.post_forward(module, output)


def add_hook_to_module(
    module: torch.nn.Module, hook: ModelHook, append: bool = False
) -> torch.nn.Module:
    """Attaches the hook to the module and returns the module. The hook replaces the module's
    current hook or, with `append`, runs after it. `remove_hook_from_module` detaches it."""
    if append and getattr(module, "_hf_hook", None) is not None:
        current = module._hf_hook
        remove_hook_from_module(module)
        hook = SequentialHook(current, hook)
    if not (hasattr(module, "_hf_hook") and hasattr(module, "_old_forward")):
        module._old_forward = module.forward
    module = hook.init_hook(module)
    module._hf_hook = hook
    forward = functools.partial(_forward_with_hook, module)
    _set_forward(module, functools.update_wrapper(forward, module._old_forward))
    return module


def _set_forward(module: torch.nn.Module, forward: Any) -> None:
    # A traced module uses the `forward` of its class.
    is_traced = "GraphModuleImpl" in str(type(module))
    (module.__class__ if is_traced else module).forward = forward


def remove_hook_from_module(module: torch.nn.Module, recurse: bool = False) -> torch.nn.Module:
    """Detaches the hook of a module and, with `recurse`, also the hooks of its submodules. Returns
    the module. A module without a hook is unchanged."""
    if hasattr(module, "_hf_hook"):
        module._hf_hook.detach_hook(module)
        del module._hf_hook
    if hasattr(module, "_old_forward"):
        _set_forward(module, module._old_forward)
        del module._old_forward
    for name in _REPLACED:
        module.__dict__.pop(name, None)
    if recurse:
        for child in module.children():
            remove_hook_from_module(child, recurse)
    return module


def remove_hook_from_submodules(module: torch.nn.Module) -> None:
    """Detaches the hooks of the module and its submodules."""
    remove_hook_from_module(module, recurse=True)


def _is_meta(device: Any) -> bool:
    return device is not None and str(device) == "meta"


class AlignDevicesHook(ModelHook):
    """Runs a module on `execution_device`. Moves the inputs to this device and, with
    `io_same_device`, moves the output back to the device of the inputs.

    With `offload`, the module's weights have no memory between calls. They are loaded from
    `weights_map` (by default, a copy on the CPU) before each call and released after it. The
    backward pass loads them again. With `place_submodules`, this also applies to all submodules."""

    def __init__(
        self,
        execution_device: Device | None = None,
        offload: bool = False,
        io_same_device: bool = False,
        weights_map: Mapping[str, torch.Tensor] | None = None,
        offload_buffers: bool = False,
        place_submodules: bool = False,
        skip_keys: str | list[str] | None = None,
        tied_params_map: TiedParameters | None = None,
    ):
        self.execution_device = execution_device
        self.offload = offload
        self.io_same_device = io_same_device
        self.weights_map = weights_map
        self.offload_buffers = offload_buffers
        self.place_submodules = place_submodules
        self.skip_keys = skip_keys
        self.tied_params_map = tied_params_map
        self.input_device: torch.device | None = None
        # The address of each tied weight before it was offloaded, which is its key in
        # `tied_params_map`.
        self._tied: dict[str, int] = {}
        self._turn = _Turn()
        # What `_unload` removes: keys of saved weights, and of copies in `tied_params_map`.
        self._saved: list[int] = []
        self._shared: list[int] = []

    def __repr__(self) -> str:
        return (
            f"AlignDevicesHook(execution_device={self.execution_device}, offload={self.offload}, "
            f"io_same_device={self.io_same_device}, offload_buffers={self.offload_buffers}, "
            f"place_submodules={self.place_submodules}, skip_keys={self.skip_keys!r})"
        )

    def init_hook(self, module: torch.nn.Module) -> torch.nn.Module:
        if _is_meta(self.execution_device):
            self.tied_params_map = None  # All addresses on this device are 0.
        if self.offload:
            self._start_offload(module)
        elif self.execution_device is not None:
            for name, _ in list(named_module_tensors(module, recurse=self.place_submodules)):
                self._put(module, name)
        return module

    def _put(self, module: torch.nn.Module, name: str) -> None:
        set_module_tensor_to_device(
            module, name, self.execution_device, tied_params_map=self.tied_params_map
        )

    def _offloaded(self, module: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
        return list(
            named_module_tensors(
                module, self.offload_buffers, self.place_submodules, remove_non_persistent=True
            )
        )

    def _start_offload(self, module: torch.nn.Module) -> None:
        everywhere = self.place_submodules
        self.original_devices = {
            name: tensor.device for name, tensor in named_module_tensors(module, recurse=everywhere)
        }
        if self.weights_map is None:
            tensors = named_module_tensors(module, self.offload_buffers, everywhere)
            self.weights_map = {name: tensor.to("cpu") for name, tensor in tensors}
        for name, tensor in self._offloaded(module):
            if self.tied_params_map is not None and tensor.data_ptr() in self.tied_params_map:
                self._tied[name] = tensor.data_ptr()
            set_module_tensor_to_device(module, name, "meta")
        if self.execution_device is None:
            return
        if self.offload_buffers:
            left = list(get_non_persistent_buffers(module, recurse=everywhere, fqns=True))
        else:
            left = [name for name, _ in module.named_buffers(recurse=everywhere)]
        for name in left:
            if recursive_getattr(module, name) is not None:
                self._put(module, name)

    def _value(self, name: str) -> torch.Tensor:
        assert self.weights_map is not None
        try:
            return self.weights_map[name]
        except KeyError:
            prefix = getattr(self.weights_map, "prefix", "")
            raise KeyError(
                f"[AlignDevicesHook] The offloaded weights have no '{prefix}{name}'. Offload the "
                "whole model, or load a checkpoint that contains it"
            ) from None

    @_not_compiled
    def pre_forward(
        self, module: torch.nn.Module, *args: Any, **kwargs: Any
    ) -> tuple[tuple, dict[str, Any]]:
        if self.io_same_device:
            self.input_device = find_device([args, kwargs])
        if self.offload:
            self._load(module)
        if self.execution_device is None:
            return args, kwargs
        return (
            send_to_device(args, self.execution_device),
            send_to_device(kwargs, self.execution_device, skip_keys=self.skip_keys),
        )

    def _load(self, module: torch.nn.Module) -> None:
        """Gives the module its weights. Other threads wait until `_unload`."""
        self._turn.begin(type(module).__name__)
        for name, _ in self._offloaded(module):
            owner, last = owner_of(module, name)
            copies = self._copies_of(name)
            if self.execution_device in copies:
                owner._parameters[last] = copies[self.execution_device]
                continue
            set_module_tensor_to_device(
                module, name, self.execution_device, value=self._value(name), clear_cache=False
            )
            weight = owner._parameters.get(last)
            if weight is None:
                continue
            load = functools.partial(self._load_again, name, weight.device, weight.dtype)
            self._saved.append(_saved_weights.remember(weight, load))
            if name in self._tied:
                copies[self.execution_device] = weight
                self._shared.append(self._tied[name])

    def _copies_of(self, name: str) -> dict[Any, torch.Tensor]:
        """Returns the weight's copies by device. While this module runs, inner modules that share
        the weight use the same copy."""
        if name not in self._tied or self.tied_params_map is None:
            return {}
        return self.tied_params_map.setdefault(self._tied[name], {})

    def _load_again(self, name: str, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
        return self._value(name).to(device=device, dtype=dtype)

    @_not_compiled
    def post_forward(self, module: torch.nn.Module, output: Any) -> Any:
        if self.offload:
            self._unload(module)
        if self.io_same_device and self.input_device is not None:
            output = send_to_device(output, self.input_device, skip_keys=self.skip_keys)
        return output

    def _unload(self, module: torch.nn.Module) -> None:
        """Releases the memory of the module's weights. Does nothing if this thread has not loaded
        them."""
        if not self._turn.is_mine:
            return
        try:
            for key in self._saved:
                _saved_weights.forget(key)
            self._saved.clear()
            for name, _ in self._offloaded(module):
                set_module_tensor_to_device(module, name, "meta")
            for address in self._shared:
                if self.tied_params_map is not None:
                    self.tied_params_map.get(address, {}).pop(self.execution_device, None)
            self._shared.clear()
        finally:
            self._turn.end()

    def detach_hook(self, module: torch.nn.Module) -> torch.nn.Module:
        if self.offload:
            for name, device in self.original_devices.items():
                if device.type != "meta":
                    value = None if self.weights_map is None else self.weights_map.get(name)
                    set_module_tensor_to_device(module, name, device, value=value)
        return module


def attach_execution_device_hook(
    module: torch.nn.Module,
    execution_device: Device,
    skip_keys: str | list[str] | None = None,
    preload_module_classes: list[str] | None = None,
    tied_params_map: TiedParameters | None = None,
) -> None:
    """Attaches hooks that move the inputs of the module and its submodules to the device. Skips
    modules without state, modules that already have a hook, and submodules of modules in
    `preload_module_classes`."""
    if not hasattr(module, "_hf_hook") and len(module.state_dict()) > 0:
        hook = AlignDevicesHook(
            execution_device, skip_keys=skip_keys, tied_params_map=tied_params_map
        )
        add_hook_to_module(module, hook)
    if module.__class__.__name__ in (preload_module_classes or ()):
        return
    for child in module.children():
        attach_execution_device_hook(
            child, execution_device, skip_keys, preload_module_classes, tied_params_map
        )


def _below(module: torch.nn.Module, name: str) -> Iterable[tuple[str, torch.nn.Module]]:
    return [(f"{name}.{child}" if name else child, m) for child, m in module.named_children()]


def attach_align_device_hook(
    module: torch.nn.Module,
    execution_device: Device | None = None,
    offload: bool = False,
    weights_map: Mapping[str, torch.Tensor] | None = None,
    offload_buffers: bool = False,
    module_name: str = "",
    skip_keys: str | list[str] | None = None,
    preload_module_classes: list[str] | None = None,
    tied_params_map: TiedParameters | None = None,
) -> None:
    """Attaches an `AlignDevicesHook` to each submodule with parameters or buffers of its own.

    Modules of `preload_module_classes` load the weights of all their submodules when they run. Use
    it for modules that use weights of submodules without calling the submodules. `module_name` is
    the name of the module in `weights_map`."""
    loads_submodules = offload and module.__class__.__name__ in (preload_module_classes or ())
    if loads_submodules or any(True for _ in named_module_tensors(module)):
        own_weights = weights_map
        if weights_map is not None:
            own_weights = PrefixedDataset(weights_map, f"{module_name}." if module_name else "")
        hook = AlignDevicesHook(
            execution_device=execution_device,
            offload=offload,
            weights_map=own_weights,
            offload_buffers=offload_buffers,
            place_submodules=loads_submodules,
            skip_keys=skip_keys,
            tied_params_map=tied_params_map,
        )
        add_hook_to_module(module, hook, append=True)
    if loads_submodules:
        return
    for name, child in _below(module, module_name):
        attach_align_device_hook(
            child,
            execution_device=execution_device,
            offload=offload,
            weights_map=weights_map,
            offload_buffers=offload_buffers,
            module_name=name,
            skip_keys=skip_keys,
            preload_module_classes=preload_module_classes,
            tied_params_map=tied_params_map,
        )


def attach_align_device_hook_on_blocks(
    module: torch.nn.Module,
    execution_device: Device | Mapping[str, Device] | None = None,
    offload: bool | Mapping[str, bool] = False,
    weights_map: Mapping[str, torch.Tensor] | None = None,
    offload_buffers: bool = False,
    module_name: str = "",
    skip_keys: str | list[str] | None = None,
    preload_module_classes: list[str] | None = None,
    tied_params_map: TiedParameters | None = None,
) -> None:
    """Attaches hooks to the modules that are named in `execution_device` and `offload`. These
    arguments map names of modules to values, or are one value for all modules. The hook of the
    whole model returns the output to the device of the input."""
    common = {"skip_keys": skip_keys, "tied_params_map": tied_params_map}
    if not isinstance(execution_device, Mapping) and not isinstance(offload, Mapping):
        if offload:
            attach_align_device_hook(
                module,
                execution_device=execution_device,
                offload=True,
                weights_map=weights_map,
                offload_buffers=offload_buffers,
                module_name=module_name,
                **common,
            )
        else:
            hook = AlignDevicesHook(
                execution_device=execution_device,
                io_same_device=True,
                place_submodules=True,
                **common,
            )
            add_hook_to_module(module, hook)
        return
    if not isinstance(execution_device, Mapping):
        execution_device = dict.fromkeys(offload, execution_device)
    if not isinstance(offload, Mapping):
        offload = dict.fromkeys(execution_device, offload)

    is_model = module_name == ""
    if module_name in execution_device and module_name in offload:
        device = execution_device[module_name]
        if offload[module_name]:
            attach_align_device_hook(
                module,
                execution_device=device,
                offload=True,
                weights_map=weights_map,
                offload_buffers=offload_buffers,
                module_name=module_name,
                preload_module_classes=preload_module_classes,
                **common,
            )
            if not hasattr(module, "_hf_hook"):
                hook = AlignDevicesHook(device, io_same_device=is_model, **common)
                add_hook_to_module(module, hook)
            attach_execution_device_hook(
                module, device, preload_module_classes=preload_module_classes, **common
            )
        else:
            hook = AlignDevicesHook(
                device,
                offload_buffers=offload_buffers,
                io_same_device=is_model,
                place_submodules=True,
                **common,
            )
            add_hook_to_module(module, hook)
            attach_execution_device_hook(module, device, **common)
    elif is_model:
        hook = AlignDevicesHook(execution_device.get(""), io_same_device=True, **common)
        add_hook_to_module(module, hook)

    for name, child in _below(module, module_name):
        attach_align_device_hook_on_blocks(
            child,
            execution_device=execution_device,
            offload=offload,
            weights_map=weights_map,
            offload_buffers=offload_buffers,
            module_name=name,
            preload_module_classes=preload_module_classes,
            **common,
        )


class CpuOffload(ModelHook):
    """Keeps a whole model on the CPU until its `forward` runs, and then moves it to
    `execution_device` (default: the run's kind of device), where it stays. The model of
    `prev_module_hook` is moved back to the CPU first."""

    def __init__(
        self,
        execution_device: Device | None = None,
        prev_module_hook: UserCpuOffloadHook | None = None,
    ):
        self.prev_module_hook = prev_module_hook
        self.execution_device = (
            PartialState().default_device if execution_device is None else execution_device
        )

    def init_hook(self, module: torch.nn.Module) -> torch.nn.Module:
        return module.to("cpu")

    @_not_compiled
    def pre_forward(
        self, module: torch.nn.Module, *args: Any, **kwargs: Any
    ) -> tuple[tuple, dict[str, Any]]:
        previous = self.prev_module_hook
        if isinstance(previous, UserCpuOffloadHook):
            parameter = next(previous.model.parameters(), None)
            if parameter is not None and parameter.device.type != "cpu":
                previous.offload()
                clear_device_cache()
        parameter = next(module.parameters(), None)
        if parameter is not None and parameter.device == self.execution_device:
            return args, kwargs
        module.to(self.execution_device)
        return (
            send_to_device(args, self.execution_device),
            send_to_device(kwargs, self.execution_device),
        )


class UserCpuOffloadHook:
    """A model and its `CpuOffload` hook. `offload` moves the model to the CPU, and `remove` detaches
    the hook."""

    def __init__(self, model: torch.nn.Module, hook: ModelHook):
        self.model = model
        self.hook = hook

    def offload(self) -> None:
        self.hook.init_hook(self.model)

    def remove(self) -> None:
        remove_hook_from_module(self.model)


class LayerwiseCastingHook(ModelHook):
    """Keeps a module in `storage_dtype` and runs its `forward` in `compute_dtype`."""

    _is_stateful = False

    def __init__(
        self, storage_dtype: torch.dtype, compute_dtype: torch.dtype, non_blocking: bool
    ) -> None:
        self.storage_dtype = storage_dtype
        self.compute_dtype = compute_dtype
        self.non_blocking = non_blocking

    def init_hook(self, module: torch.nn.Module) -> torch.nn.Module:
        return module.to(dtype=self.storage_dtype, non_blocking=self.non_blocking)

    @_not_compiled
    def pre_forward(
        self, module: torch.nn.Module, *args: Any, **kwargs: Any
    ) -> tuple[tuple, dict[str, Any]]:
        module.to(dtype=self.compute_dtype, non_blocking=self.non_blocking)
        return args, kwargs

    @_not_compiled
    def post_forward(self, module: torch.nn.Module, output: Any) -> Any:
        module.to(dtype=self.storage_dtype, non_blocking=self.non_blocking)
        return output


__getattr__ = placeholders_for(__name__)
