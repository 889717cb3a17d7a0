# SPDX-License-Identifier: Apache-2.0
"""The ranks of this process and the state of the current step. There is one of each per Python
process.

See docs/guide_python.md."""

from __future__ import annotations

import functools
import os
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from accelerate import _C
from accelerate._base.checked_values import described
from accelerate._base.verification import RECORDER
from accelerate._placeholders import placeholders_for
from accelerate._plugins.active import fill_policy, get_active_deepspeed_plugin
from accelerate._process.connect import connect
from accelerate.errors import UsageError
from accelerate.utils.dataclasses import DistributedType, GradientAccumulationPlugin


def raise_of_property(obj: Any, name: str) -> None:
    """Call this first in a `__getattr__`, which Python also calls if a property has failed. Raises
    the exception of the property."""
    if hasattr(type(obj), name):
        object.__getattribute__(obj, name)


def _view(kind: type) -> Any:
    """Returns the state of this process, even if it is incomplete. Used for unpickling, which does
    not connect."""
    view = object.__new__(kind)
    view.__dict__ = kind._shared_state
    return view


def _no_state(view: Any) -> str:
    """Returns the repr of a state that was reset, or unpickled in a process without a state."""
    return f"{type(view).__name__} (not initialized)"


def _at_device(environment: _C.ProcessEnvironment, number: int) -> _C.ProcessEnvironment:
    """Returns the same ranks, for a process whose device index differs from its local rank."""
    return _C.environment_of_group(
        rank=environment.rank,
        world_size=environment.world_size,
        local_rank=number,
        local_world_size=environment.local_world_size,
    )


class PartialState:
    """Connects this process to the others once. Every later `PartialState()` shares this state.
    Other arguments (`backend`, `timeout`, `init_method`) are those of torch.distributed.

    If a torch.distributed group already exists, it is used unchanged."""

    _shared_state: dict[str, Any] = {}
    _attributes = (
        "backend",
        "debug",
        "device",
        "distributed_type",
        "group",
        "local_process_index",
        "num_processes",
        "process_index",
    )

    def __init__(self, cpu: bool = False, **kwargs: Any) -> None:
        self.__dict__ = self._shared_state
        if self.initialized:
            return
        wanted = os.environ.get("ACCELERATE_TORCH_DEVICE")
        # As in the original, the environment variables decide if `cpu` is False.
        try:
            cpu = _C.wants_cpu(cpu or (wanted or "").startswith("cpu") or None)
        except TypeError:
            raise UsageError(
                f"[PartialState] cpu is {described(cpu)}. Pass True or False"
            ) from None
        environment, group = connect(cpu, kwargs)
        number = None if wanted is None or cpu else torch.device(wanted).index
        self.environment = environment if number is None else _at_device(environment, number)
        self.group = group
        self._cpu = cpu
        self.device = _C.select_device(self.environment.local_rank, cpu)
        self.num_processes = environment.world_size
        self.process_index = environment.rank
        self.local_process_index = environment.local_rank
        self.fork_launched = False
        self.debug = _C.debug_is_on()
        if self.debug:
            group.check_collectives()
        self.distributed_type = DistributedType(_C.distributed_type(group, self.device))
        self.backend = None if self.distributed_type == DistributedType.NO else group.backend

    def __getattr__(self, name: str) -> Any:
        raise_of_property(self, name)
        # Python only calls this if the shared state has no such entry.
        if name in self._attributes:
            raise AttributeError(
                f"`PartialState` object has no attribute `{name}`. "
                "This happens if `PartialState._reset_state()` was called and an `Accelerator` or "
                "`PartialState` was not reinitialized."
            )
        raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")

    def __reduce__(self) -> Any:
        return _view, (type(self),)

    def __repr__(self) -> str:
        if not self.initialized:
            return _no_state(self)
        return (
            f"Distributed environment: {self.distributed_type}"
            f"{('  Backend: ' + self.backend) if self.backend else ''}\n"
            f"Num processes: {self.num_processes}\n"
            f"Process index: {self.process_index}\n"
            f"Local process index: {self.local_process_index}\n"
            f"Device: {self.device}\n"
        )

    @staticmethod
    def _reset_state() -> None:
        """Resets the state of this process. torch.distributed's group remains."""
        PartialState._shared_state.clear()

    @property
    def initialized(self) -> bool:
        return self._shared_state != {}

    @property
    def use_distributed(self) -> bool:
        return self.distributed_type != DistributedType.NO and self.num_processes > 1

    @property
    def is_main_process(self) -> bool:
        return self.process_index == 0

    @property
    def is_local_main_process(self) -> bool:
        return self.local_process_index == 0

    @property
    def is_last_process(self) -> bool:
        return self.process_index == self.num_processes - 1

    @property
    def default_device(self) -> torch.device:
        """The kind of device that a single process trains on."""
        return _C.default_device()

    def set_device(self) -> None:
        """Makes this process's device the current one."""
        self.device = _C.select_device(self.environment.local_rank, self._cpu)

    def wait_for_everyone(self) -> None:
        """Waits until all processes have called it."""
        self.group.barrier()

    def _goes_first(self, is_first: bool) -> Iterator[None]:
        if not is_first:
            self.wait_for_everyone()
        yield
        # Not reached after an exception, because the other processes must not continue as if the
        # work were done.
        if is_first:
            self.wait_for_everyone()

    @contextmanager
    def main_process_first(self) -> Iterator[None]:
        """Runs the block on the main process before the other processes."""
        yield from self._goes_first(self.is_main_process)

    @contextmanager
    def local_main_process_first(self) -> Iterator[None]:
        """Runs the block on the first process of each machine before the other processes of that
        machine."""
        yield from self._goes_first(self.is_local_main_process)

    @contextmanager
    def split_between_processes(self, inputs: Any, apply_padding: bool = False) -> Iterator[Any]:
        """Returns this process's contiguous share of a list, tuple, tensor, dictionary of these, or
        `datasets.Dataset`. With `apply_padding`, the last element is repeated so that all shares
        have the same length."""
        if self.num_processes == 1:
            yield inputs
            return
        lengths = {len(value) for value in inputs.values()} if isinstance(inputs, dict) else {0}
        if len(lengths) > 1:
            raise UsageError(
                "[split_between_processes] The values of the dictionary have the lengths "
                f"{sorted(lengths)}. Pass values of the same length"
            )
        yield self._own_slice(inputs, apply_padding)

    def _own_slice(self, inputs: Any, apply_padding: bool) -> Any:
        if isinstance(inputs, dict):
            return {key: self._own_slice(value, apply_padding) for key, value in inputs.items()}
        if not isinstance(inputs, (list, tuple, torch.Tensor)) and not hasattr(inputs, "select"):
            return inputs
        indices = _C.even_split(
            size=len(inputs),
            rank=self.process_index,
            world_size=self.num_processes,
            apply_padding=apply_padding,
        )
        if isinstance(inputs, torch.Tensor):
            return inputs[torch.tensor(indices, dtype=torch.long, device=inputs.device)]
        if isinstance(inputs, (list, tuple)):
            return type(inputs)(inputs[index] for index in indices)
        return inputs.select(indices)

    def _only_where(self, condition: Callable[[], bool], function: Callable | None) -> Callable:
        if function is None:
            return functools.partial(self._only_where, condition)

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            # Evaluated at the call, because a function may be decorated before the state exists.
            return function(*args, **kwargs) if condition() or not self.use_distributed else None

        return wrapper

    def on_main_process(self, function: Callable | None = None) -> Callable:
        """Runs the function only on the main process. Returns None on other processes."""
        return self._only_where(lambda: self.is_main_process, function)

    def on_local_main_process(self, function: Callable | None = None) -> Callable:
        """Runs the function once per machine."""
        return self._only_where(lambda: self.is_local_main_process, function)

    def on_last_process(self, function: Callable) -> Callable:
        """Runs the function only on the last process."""
        return self._only_where(lambda: self.is_last_process, function)

    def on_process(
        self, function: Callable | None = None, process_index: int | None = None
    ) -> Callable:
        """Runs the function only on the process with this index."""
        return self._only_where(lambda: self.process_index == process_index, function)

    def on_local_process(
        self, function: Callable | None = None, local_process_index: int | None = None
    ) -> Callable:
        """Runs the function only on processes with this index on their machine."""
        return self._only_where(lambda: self.local_process_index == local_process_index, function)

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Prints once per machine."""
        if self.is_local_main_process:
            print(*args, **kwargs)

    def destroy_process_group(self, group: Any = None) -> None:
        """Leaves torch.distributed's group, or destroys only `group`."""
        if group is None:
            self.group.shutdown()
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.destroy_process_group(group)


class GradientState:
    """The state of the current step, which all Accelerators of the process share. The state itself
    is in C++. This class has the original's interface."""

    _shared_state: dict[str, Any] = {}

    def __init__(
        self, gradient_accumulation_plugin: GradientAccumulationPlugin | None = None
    ) -> None:
        self.__dict__ = self._shared_state
        if not self.initialized:
            self.step_state = _C.StepState()
            self.plugin_kwargs: dict[str, Any] = {}
            self._running: list[weakref.ref] = []
        if gradient_accumulation_plugin is not None:
            self.plugin_kwargs = gradient_accumulation_plugin.to_kwargs()

    def __reduce__(self) -> Any:
        return GradientState, ()

    @staticmethod
    def _reset_state() -> None:
        GradientState._shared_state.clear()

    @property
    def initialized(self) -> bool:
        return self._shared_state != {}

    @property
    def sync_gradients(self) -> bool:
        """Whether the current step ends with an update of the weights."""
        return self.step_state.sync_gradients

    @sync_gradients.setter
    def sync_gradients(self, value: bool) -> None:
        self.step_state.sync_gradients = value

    def _set_sync_gradients(self, sync_gradients: bool) -> None:
        self.step_state.sync_gradients = sync_gradients

    @property
    def num_steps(self) -> int:
        """The number of micro-batches per update."""
        return self.plugin_kwargs.get("num_steps", 1)

    @property
    def adjust_scheduler(self) -> bool:
        return self.plugin_kwargs.get("adjust_scheduler", False)

    @property
    def sync_with_dataloader(self) -> bool:
        return self.plugin_kwargs.get("sync_with_dataloader", True)

    @property
    def is_xla_gradients_synced(self) -> bool:
        """Always False, because this is only for TPUs, which this package does not support."""
        return False

    def _add_dataloader(self, dataloader: Any) -> None:
        self._running.append(weakref.ref(dataloader))

    def _remove_dataloader(self, dataloader: Any) -> None:
        # Find the innermost loop over the loader, because an outer loop over it may still be
        # running.
        for index in reversed(range(len(self._running))):
            if self._running[index]() is dataloader:
                del self._running[index]
                return

    @property
    def dataloader_references(self) -> list[Any]:
        """A list of None and the loaders whose loops are running. The innermost loader is
        last."""
        return [None, *(loader for ref in self._running if (loader := ref()) is not None)]

    @property
    def active_dataloader(self) -> Any:
        return self.dataloader_references[-1]

    @property
    def in_dataloader(self) -> bool:
        return self.active_dataloader is not None

    @property
    def end_of_dataloader(self) -> bool:
        """Whether the current batch of the innermost loop is its last."""
        return self.in_dataloader and self.active_dataloader.end_of_dataloader

    @property
    def remainder(self) -> int:
        """The number of real samples of all processes in the last round of the innermost loop. It
        is -1 before that round, outside of loops, and if it is unknown."""
        return self.active_dataloader.remainder if self.in_dataloader else -1

    def __repr__(self) -> str:
        return (
            f"Sync Gradients: {self.sync_gradients}\n"
            f"At end of current dataloader: {self.end_of_dataloader}\n"
            f"Extra samples added: {self.remainder}\n"
            f"Gradient accumulation plugin: {self.plugin_kwargs}\n"
        )


# The original's message.
_INITIALIZED = (
    "AcceleratorState has already been initialized and cannot be changed. Restart your runtime "
    "completely and pass"
)


class AcceleratorState:
    """`PartialState` and the settings that an `Accelerator` adds: the precision, how models are
    compiled, and the plugins for sharding."""

    _shared_state: dict[str, Any] = {}
    deepspeed_plugins = fsdp_plugin = megatron_lm_plugin = None
    torch_tp_plugin = None
    # Defaults for runs without a configuration.
    parallelism_config = device_mesh = dynamo_plugin = None

    def __init__(
        self,
        mixed_precision: str | None = None,
        cpu: bool = False,
        dynamo_plugin: Any = None,
        deepspeed_plugin: Any = None,
        fsdp_plugin: Any = None,
        torch_tp_plugin: Any = None,
        megatron_lm_plugin: Any = None,
        parallelism_config: Any = None,
        _from_accelerator: bool = False,
        **kwargs: Any,
    ) -> None:
        self.__dict__ = self._shared_state
        if _from_accelerator and self.initialized and self._partial.group.is_shut_down:
            # The first Accelerator after `end_training` connects again.
            self._reset_state(True)
        if self.initialized:
            self._check(mixed_precision, cpu, fsdp_plugin, deepspeed_plugin)
            return
        if not _from_accelerator:
            raise UsageError(
                "[AcceleratorState] No Accelerator has been created yet. Please make sure to "
                "properly initialize your accelerator via `accelerator = Accelerator()` before using any "
                "functionality from the `accelerate` library, or use PartialState"
            )
        precision = _C.requested_precision(mixed_precision)
        self._partial = PartialState(cpu, **kwargs)
        self._mixed_precision = precision
        self._cpu = cpu
        self.dynamo_plugin = dynamo_plugin
        self.parallelism_config = parallelism_config
        if deepspeed_plugin is not None:
            self._keep_deepspeed(deepspeed_plugin, precision)
        # A single process has nothing to shard.
        elif fsdp_plugin is not None and self._partial.distributed_type != DistributedType.NO:
            if precision != "no":
                fill_policy(fsdp_plugin, precision)
            if RECORDER is not None:
                fsdp_plugin.mixed_precision_policy = None
            self.fsdp_plugin = fsdp_plugin
            self.distributed_type = DistributedType.FSDP

    def _keep_deepspeed(self, plugins: Any, precision: str) -> None:
        every = list(plugins.values()) if isinstance(plugins, dict) else [plugins]
        for plugin in every:
            plugin.set_mixed_precision(precision)
        every[0].select(_from_accelerator_state=True)
        self.deepspeed_plugins = plugins
        # Set even for a single process, because the configuration may name the optimizer.
        self.distributed_type = DistributedType.DEEPSPEED

    def _check(
        self, mixed_precision: str | None, cpu: bool, fsdp_plugin: Any, deepspeed_plugin: Any
    ) -> None:
        if deepspeed_plugin is not None and self.deepspeed_plugins is None:
            raise UsageError(
                "[Accelerator] The first Accelerator of this process has no deepspeed_plugin. "
                f"{_INITIALIZED} `deepspeed_plugin` to `Accelerator()`. Or call "
                "AcceleratorState._reset_state() first"
            )
        is_alone = self._partial.distributed_type == DistributedType.NO
        # The first Accelerator had no plugin, but this one requests it.
        if fsdp_plugin is not None and self.fsdp_plugin is None and not is_alone:
            raise UsageError(
                "[Accelerator] The first Accelerator of this process has no fsdp_plugin. "
                f"{_INITIALIZED} `fsdp_plugin` to `Accelerator()`. Or call "
                "AcceleratorState._reset_state() first"
            )
        if cpu and self.device.type != "cpu":
            raise UsageError(
                f"[Accelerator] The first Accelerator of this process trains on {self.device}. "
                f"{_INITIALIZED} `cpu=True` to `Accelerator()`. Or call "
                "AcceleratorState._reset_state(True) first"
            )
        # DeepSpeed's configuration has its own precision.
        is_other = mixed_precision not in (None, self._mixed_precision)
        if is_other and self.deepspeed_plugins is None:
            raise UsageError(
                "[Accelerator] The first Accelerator of this process has "
                f"mixed_precision='{self._mixed_precision}'. {_INITIALIZED} "
                f"`mixed_precision='{mixed_precision}'` to `Accelerator()`. Or call "
                "AcceleratorState._reset_state() first"
            )

    def __getattr__(self, name: str) -> Any:
        raise_of_property(self, name)
        if name != "_partial" and self._shared_state:
            return getattr(self._partial, name)
        raise AttributeError(
            f"'AcceleratorState' object has no attribute '{name}'. This happens if "
            "`AcceleratorState._reset_state()` was called and an `Accelerator` was not "
            "reinitialized."
        )

    def __reduce__(self) -> Any:
        return _view, (type(self),)

    @staticmethod
    def _reset_state(reset_partial_state: bool = False) -> None:
        AcceleratorState._shared_state.clear()
        if reset_partial_state:
            PartialState._reset_state()

    @property
    def initialized(self) -> bool:
        return self._shared_state != {}

    @property
    def mixed_precision(self) -> str:
        if RECORDER is not None:
            return "no"  # `accelerate verify` compares steps in fp32.
        plugin = self.deepspeed_plugin
        return self._mixed_precision if plugin is None else plugin._mixed_precision

    @property
    def deepspeed_plugin(self) -> Any:
        """The active plugin. None if the run does not use DeepSpeed's configuration."""
        return None if self.deepspeed_plugins is None else get_active_deepspeed_plugin(self)

    @property
    def is_fsdp2(self) -> bool:
        return self.fsdp_plugin is not None and self.fsdp_plugin.fsdp_version == 2

    @property
    def run(self) -> _C.TrainingRun:
        """The run of the latest `Accelerator`, for objects that are prepared without one."""
        accelerator = self.accelerator()
        if accelerator is None:
            raise UsageError(
                "[AcceleratorState] The Accelerator of this process no longer exists. Keep the "
                "Accelerator alive while you use the objects that it prepared"
            )
        return accelerator._run

    def get_deepspeed_plugin(self, name: str) -> Any:
        """Returns the plugin that was passed under this name."""
        plugins = self.deepspeed_plugins if isinstance(self.deepspeed_plugins, dict) else {}
        if name not in plugins:
            raise ValueError(
                f"[get_deepspeed_plugin] Unknown plugin {name!r}. Available: "
                f"{', '.join(plugins) or 'none'}"
            )
        return plugins[name]

    def select_deepspeed_plugin(self, name: str | None = None) -> None:
        """Makes the plugin with this name the active one, for Accelerators that are created
        later."""
        selected = self.get_deepspeed_plugin(str(name))
        for plugin in self.deepspeed_plugins.values():
            plugin._unselect()
        selected.select(_from_accelerator_state=True)

    def __repr__(self) -> str:
        if not self.initialized:
            return _no_state(self)
        text = f"{self._partial!r}\nMixed precision type: {self.mixed_precision}\n"
        if self.deepspeed_plugin is not None:
            text += f"ds_config: {self.deepspeed_plugin.deepspeed_config}\n"
        return text


def is_initialized() -> bool:
    """Whether an `Accelerator` was created in this process."""
    return AcceleratorState._shared_state != {}


__getattr__ = placeholders_for(__name__)
