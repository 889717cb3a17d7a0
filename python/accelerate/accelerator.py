# SPDX-License-Identifier: Apache-2.0
"""Start here: the object that makes a training loop distributed (docs/guide_python.md)."""

from __future__ import annotations

import dataclasses
import os
import sys
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch.utils.hooks import RemovableHandle

from accelerate import _C, _checkpoints, _debug, _generators, _options, _trees
from accelerate._captured_step import CapturedStep
from accelerate._configuration import (
    Configuration,
    checked_precision,
    dynamo_plugin_of,
    parallelism_config_of,
)
from accelerate._observation import Observation
from accelerate._placeholders import placeholders_for
from accelerate._state_values import ObjectState, SharedState
from accelerate.checkpointing import is_original_checkpoint
from accelerate.errors import AccelerateError, UsageError
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.parallelism_config import ParallelismConfig
from accelerate.prepared_module import (
    Autocast,
    Scope,
    attach,
    compiled,
    context_of,
    parameter_set,
)
from accelerate.scheduler import AcceleratedScheduler, join_state, split_state
from accelerate.state import (
    AcceleratorState,
    GradientState,
    PartialState,
    is_initialized,
    raise_of_property,
)
from accelerate.utils import operations
from accelerate.utils.dataclasses import (
    AutocastKwargs,
    DataLoaderConfiguration,
    DistributedType,
    DynamoBackend,
    EngineKwargs,
    GradientAccumulationPlugin,
    KwargsHandler,
    PrecisionType,
    ProjectConfiguration,
    RNGType,
    TorchDynamoPlugin,
    TorchTensorParallelPlugin,
)
from accelerate.utils.other import save

_DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


class Accelerator(Configuration, Observation):
    """Connects this process to the others of the run, prepares models, optimizers, schedulers and
    loaders, and offers the collectives that loops need. No device is named in the loop:

        accelerator = Accelerator()
        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        for batch in loader:
            loss = model(**batch).loss
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()

    Arguments, defaults and behaviour are those of Hugging Face Accelerate 1.15; an argument that
    is not there yet raises one sentence that names it. See docs/guide_python.md.
    """

    def __init__(
        self,
        device_placement: bool = True,
        split_batches: bool = False,
        mixed_precision: PrecisionType | str | None = None,
        gradient_accumulation_steps: int = 1,
        cpu: bool = False,
        dataloader_config: DataLoaderConfiguration | None = None,
        deepspeed_plugin: Any = None,
        fsdp_plugin: Any = None,
        torch_tp_plugin: TorchTensorParallelPlugin | None = None,
        megatron_lm_plugin: Any = None,
        rng_types: list[str | RNGType] | None = None,
        log_with: Any = None,
        project_dir: str | os.PathLike | None = None,
        project_config: ProjectConfiguration | None = None,
        gradient_accumulation_plugin: GradientAccumulationPlugin | None = None,
        step_scheduler_with_optimizer: bool = True,
        kwargs_handlers: list[KwargsHandler] | None = None,
        dynamo_backend: DynamoBackend | str | None = None,
        dynamo_plugin: TorchDynamoPlugin | None = None,
        deepspeed_plugins: Any = None,
        parallelism_config: ParallelismConfig | None = None,
    ) -> None:
        _options.refuse_what_is_not_there(
            {
                "deepspeed_plugin": deepspeed_plugin,
                "deepspeed_plugins": deepspeed_plugins,
                "fsdp_plugin": fsdp_plugin,
                "megatron_lm_plugin": megatron_lm_plugin,
            }
        )
        if split_batches:
            _debug.warn(
                "[Accelerator] got split_batches=True, which moved to "
                "DataLoaderConfiguration(split_batches=True) and is not looked at here",
                stacklevel=2,
            )
        self.project_configuration = project_config or ProjectConfiguration(project_dir)
        if project_dir is not None and self.project_dir is None:
            self.project_configuration.set_directories(project_dir)
        precision = checked_precision(mixed_precision)
        compiling = dynamo_plugin_of(dynamo_backend, dynamo_plugin)
        parallelism_config = parallelism_config_of(parallelism_config, torch_tp_plugin)
        handlers = _options.sort_handlers(kwargs_handlers)
        self._keep_handlers(handlers)
        self._handlers = list(handlers.values())
        self.dataloader_config = dataloader_config or DataLoaderConfiguration()
        self.device_placement = device_placement
        self.step_scheduler_with_optimizer = step_scheduler_with_optimizer
        self.rng_types = ["generator"] if rng_types is None else rng_types
        self._plugin = plugin = _options.accumulation_plugin(
            gradient_accumulation_steps, gradient_accumulation_plugin
        )

        options = _C.AcceleratorOptions()
        options.ddp = _options.ddp_options(self.ddp_handler)
        self._has_own_engine = EngineKwargs in handlers
        if self._has_own_engine:
            options.engine = handlers[EngineKwargs].engine
        options.scaler = _options.scaler_options(self.scaler_handler)
        options.accumulation.num_steps = 1 if plugin.num_steps is None else plugin.num_steps
        options.accumulation.sync_with_dataloader = plugin.sync_with_dataloader
        options.accumulation.sync_each_batch = plugin.sync_each_batch
        # The engine writes its part of checkpoints where Python writes its own.
        self._saves_on_each_node = self.project_configuration.save_on_each_node
        options.save_on_each_node(self._saves_on_each_node)

        init = self.init_handler.to_kwargs() if self.init_handler else {}
        self.state = AcceleratorState(
            precision,
            cpu,
            dynamo_plugin=compiling,
            parallelism_config=parallelism_config,
            _from_accelerator=True,
            **init,
        )
        self._keep_mesh()
        self.gradient_state = GradientState(plugin)
        options.set_mixed_precision(self._engine_precision())
        options.debug = self.state.debug
        options.cpu = self.state.device.type == "cpu"
        options.environment = self.state.environment
        options.process_group = self.state.group
        self._run = _C.TrainingRun(options, self.gradient_state.step_state, _RawLoss())
        self.state.accelerator = weakref.ref(self)
        self._bucket_bytes_cap = options.ddp.bucket_cap_mb * 1024 * 1024
        self.gradient_accumulation_steps = self._run.num_accumulation_steps
        # Scripts switch it off on devices that cannot; and count their own steps here.
        self.native_amp = self._computes_in != "no"
        self.step = 0
        self._keep_trackers(log_with)
        self.flag_tensor = None

        # The user's modules; the original's name for them, which other libraries read.
        self._models: list[torch.nn.Module] = []
        self._prepared_models: list[torch.nn.Module] = []
        self._optimizers: list[AcceleratedOptimizer] = []
        self._schedulers: list[AcceleratedScheduler] = []
        self._dataloaders: list[Any] = []
        # What the registry of the run asks; it lives as long as these lists.
        self._states: list[ObjectState] = []
        self._custom_objects: list[Any] = []
        self._custom_states: list[ObjectState] = []
        self._save_hooks: OrderedDict[int, Callable] = OrderedDict()
        self._load_hooks: OrderedDict[int, Callable] = OrderedDict()
        self._generators = ObjectState(
            lambda: _generators.take(("python", "numpy")), _generators.put
        )
        self._run.state.add("python_generators", self._generators, per_rank=True)
        self._parts = _checkpoints.PythonParts()
        self._run.state.add(_checkpoints.PARTS, self._parts)

    def __getattr__(self, name: str) -> Any:
        raise_of_property(self, name)
        raise AttributeError(f"'Accelerator' object has no attribute '{name}'")

    def __copy__(self) -> Accelerator:
        return self

    def __deepcopy__(self, memo: dict) -> Accelerator:
        # There is one run of this process; whoever copies what holds it goes on in that run.
        return self

    def __reduce__(self) -> Any:
        arguments = {
            "device_placement": self.device_placement,
            "dataloader_config": self.dataloader_config,
            "rng_types": self.rng_types,
            "gradient_accumulation_plugin": dataclasses.replace(
                self._plugin, num_steps=self.gradient_accumulation_steps
            ),
            "step_scheduler_with_optimizer": self.step_scheduler_with_optimizer,
            "kwargs_handlers": self._handlers,
            "dynamo_plugin": self.state.dynamo_plugin,
            "project_config": self.project_configuration,
            "log_with": self.log_with or None,
        }
        of_state = {"mixed_precision": self.mixed_precision, "cpu": self.state._cpu}
        return _load_accelerator, (arguments, of_state)

    # --- who am I ---------------------------------------------------------------------------

    @property
    def device(self) -> torch.device:
        """The device of this process."""
        return self.state.device

    @property
    def distributed_type(self) -> DistributedType:
        return self.state.distributed_type

    @property
    def num_processes(self) -> int:
        """How many processes train together."""
        return self.state.num_processes

    @property
    def process_index(self) -> int:
        """The number of this process among all, from 0."""
        return self.state.process_index

    @property
    def local_process_index(self) -> int:
        """The number of this process on its machine, from 0."""
        return self.state.local_process_index

    @property
    def is_main_process(self) -> bool:
        return self.state.is_main_process

    @property
    def is_local_main_process(self) -> bool:
        return self.state.is_local_main_process

    @property
    def is_last_process(self) -> bool:
        return self.state.is_last_process

    @property
    def use_distributed(self) -> bool:
        return self.state.use_distributed

    @property
    def multi_device(self) -> bool:
        """Whether several processes train on devices other than the CPU."""
        return self.use_distributed and self.distributed_type != DistributedType.MULTI_CPU

    @property
    def split_batches(self) -> bool:
        return self.dataloader_config.split_batches

    @property
    def dispatch_batches(self) -> bool | None:
        return self.dataloader_config.dispatch_batches

    @property
    def even_batches(self) -> bool:
        return self.dataloader_config.even_batches

    @even_batches.setter
    def even_batches(self, value: bool) -> None:
        self.dataloader_config.even_batches = value

    @property
    def use_seedable_sampler(self) -> bool:
        return self.dataloader_config.use_seedable_sampler

    @property
    def non_blocking(self) -> bool:
        return self.dataloader_config.non_blocking

    @property
    def use_stateful_dataloader(self) -> bool:
        return self.dataloader_config.use_stateful_dataloader

    # --- process control --------------------------------------------------------------------

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Prints once per machine."""
        self.state.print(*args, **kwargs)

    def wait_for_everyone(self) -> None:
        """Waits until every process has come here."""
        self.state.wait_for_everyone()

    def main_process_first(self) -> AbstractContextManager[None]:
        """The main process runs the block before the others."""
        return self.state.main_process_first()

    def local_main_process_first(self) -> AbstractContextManager[None]:
        """The first process of each machine runs the block before the others of it."""
        return self.state.local_main_process_first()

    def on_main_process(self, function: Callable | None = None) -> Callable:
        """The function runs on the main process only, and gives None elsewhere."""
        return PartialState().on_main_process(function)

    def on_local_main_process(self, function: Callable | None = None) -> Callable:
        """The function runs once per machine."""
        return PartialState().on_local_main_process(function)

    def on_last_process(self, function: Callable) -> Callable:
        """The function runs on the last process only."""
        return PartialState().on_last_process(function)

    def on_process(
        self, function: Callable | None = None, process_index: int | None = None
    ) -> Callable:
        """The function runs on the process of this index only."""
        return PartialState().on_process(function, process_index)

    def on_local_process(
        self, function: Callable | None = None, local_process_index: int | None = None
    ) -> Callable:
        """The function runs on the processes of this index on their machine only."""
        return PartialState().on_local_process(function, local_process_index)

    def split_between_processes(
        self, inputs: Any, apply_padding: bool = False
    ) -> AbstractContextManager[Any]:
        """See `PartialState.split_between_processes`."""
        return PartialState().split_between_processes(inputs, apply_padding)

    def set_trigger(self) -> None:
        """Raises a flag that every process sees at its next `check_trigger`."""
        self._run.set_trigger()

    def check_trigger(self) -> bool:
        """Whether any process has raised the flag since the last check; all must call it."""
        return self._run.check_trigger()

    def end_training(self) -> None:
        """Finishes the trackers and leaves the group; collectives raise from then on. Raises as
        `wait_for_save`, when it has left."""
        with ExitStack() as last_first:
            last_first.callback(self.state.destroy_process_group)
            last_first.callback(self.wait_for_save)
            for tracker in reversed(self.trackers):
                last_first.callback(tracker.finish)

    # --- prepare ----------------------------------------------------------------------------

    def prepare(self, *args: Any, device_placement: list[bool] | None = None) -> Any:
        """Models, optimizers, schedulers and data loaders in any number and order; what comes back
        stands in the same order, a single object bare. Other objects pass through; preparing
        again is harmless. Process 0's weights go to all."""
        if device_placement is None:
            placements: list[bool | None] = [None] * len(args)
        elif len(device_placement) == len(args):
            placements = list(device_placement)
        else:
            raise UsageError(
                f"[prepare] got {len(args)} objects and {len(device_placement)} entries of "
                "device_placement, expected one for each object"
            )
        first = [self._prepare_one(obj, placed) for obj, placed in zip(args, placements)]
        self._run.wire()
        # They look for the prepared optimizers.
        result = [self.prepare_scheduler(obj) if _is_scheduler(obj) else obj for obj in first]
        return result[0] if len(result) == 1 else tuple(result)

    def _prepare_one(self, obj: Any, device_placement: bool | None) -> Any:
        if isinstance(obj, torch.utils.data.DataLoader):
            return self.prepare_data_loader(obj, device_placement)
        if isinstance(obj, torch.nn.Module):
            return self._prepare_model(obj, device_placement, evaluation_mode=False)
        if isinstance(obj, torch.optim.Optimizer):
            return self._prepare_optimizer(obj, device_placement)
        return obj

    def prepare_model(
        self,
        model: torch.nn.Module,
        device_placement: bool | None = None,
        evaluation_mode: bool = False,
    ) -> torch.nn.Module:
        """The module on its device, with gradients that meet those of the other processes unless
        `evaluation_mode`. It keeps its class, attributes and names; the module itself is given
        back by `unwrap_model`."""
        prepared = self._prepare_model(model, device_placement, evaluation_mode)
        self._run.wire()
        return prepared

    def _prepare_model(
        self, model: torch.nn.Module, device_placement: bool | None, evaluation_mode: bool
    ) -> torch.nn.Module:
        known = self._find_prepared(model)
        if known is not None:
            context = context_of(known)
            if not evaluation_mode and context.is_for_evaluation:
                self._run.train_evaluated(context)
                known = self._keep_prepared(model, context, evaluation_mode)
            return known
        context = context_of(model)
        # By another Accelerator, or before `free_memory`: one that was only to be evaluated is
        # prepared anew, else gradients of several processes would never meet.
        if context is not None and (evaluation_mode or not context.is_for_evaluation):
            return model
        is_placed = self.device_placement if device_placement is None else device_placement
        if not self._stays_where_it_is(model) and is_placed:
            _move(model, self.device)
        context = self._run.prepare_model(parameter_set(model), evaluation_mode)
        self._models.append(model)
        self._prepared_models.append(model)
        return self._keep_prepared(model, context, evaluation_mode)

    def _keep_prepared(
        self, model: torch.nn.Module, context: _C.ModelContext, evaluation_mode: bool
    ) -> torch.nn.Module:
        prepared = attach(model, context, self._autocast(), self._bucket_bytes_cap)
        if self.state.dynamo_plugin.backend != DynamoBackend.NO:
            prepared = compiled(prepared, self.state.dynamo_plugin, evaluation_mode)
        index = next(i for i, known in enumerate(self._models) if known is model)
        self._prepared_models[index] = prepared
        return prepared

    def _find_prepared(self, model: torch.nn.Module) -> torch.nn.Module | None:
        for module, prepared in zip(self._models, self._prepared_models):
            if module is model:
                context_of(prepared).prepare_again(parameter_set(model))
            if module is model or prepared is model:
                return prepared
        return None

    def _autocast(self) -> Autocast | None:
        if not self.native_amp:
            return None
        handler = self.autocast_handler or AutocastKwargs()
        dtype = _DTYPES[self.mixed_precision]
        return Autocast(
            self.device.type,
            dtype,
            handler.enabled,
            handler.cache_enabled,
            is_of_engine=self._run.mixed_precision != "no",
        )

    def _keep_state(
        self,
        kind: str,
        value: Callable[[], Any],
        put: Callable[[Any], None],
        per_rank: bool = False,
    ) -> ObjectState:
        return self._keep(kind, ObjectState(value, put), per_rank)

    def _keep(self, kind: str, kept: ObjectState, per_rank: bool = False) -> ObjectState:
        kept.name = self._run.state.add(kind, kept, per_rank)
        return kept

    def prepare_optimizer(
        self, optimizer: torch.optim.Optimizer, device_placement: bool | None = None
    ) -> AcceleratedOptimizer:
        """The optimizer, whose steps wait for the end of an accumulation."""
        prepared = self._prepare_optimizer(optimizer, device_placement)
        self._run.wire()
        return prepared

    def _prepare_optimizer(
        self, optimizer: torch.optim.Optimizer, device_placement: bool | None
    ) -> AcceleratedOptimizer:
        if isinstance(optimizer, AcceleratedOptimizer):
            return optimizer
        for known in self._optimizers:
            if known.optimizer is optimizer:
                return known
        placed = self.device_placement if device_placement is None else device_placement
        prepared = AcceleratedOptimizer(optimizer, placed, self.scaler, _run=self._run)
        self._optimizers.append(prepared)
        return prepared

    def prepare_scheduler(self, scheduler: Any) -> AcceleratedScheduler:
        """The scheduler, in step with the prepared optimizer that it drives, or with all."""
        if isinstance(scheduler, AcceleratedScheduler):
            return scheduler
        for known in self._schedulers:
            if known.scheduler is scheduler:
                return known
        driven = getattr(scheduler, "optimizer", None)
        own = [opt for opt in self._optimizers if driven in (opt, opt.optimizer)]
        prepared = AcceleratedScheduler(
            scheduler,
            own or self._optimizers,
            self.step_scheduler_with_optimizer,
            self.split_batches,
            _run=self._run,
        )
        self._schedulers.append(prepared)
        kept = SharedState(
            scheduler.state_dict,
            scheduler.load_state_dict,
            partial(split_state, scheduler),
            partial(join_state, scheduler),
        )
        self._states.append(self._keep("scheduler", kept))
        return prepared

    def prepare_data_loader(
        self,
        data_loader: torch.utils.data.DataLoader,
        device_placement: bool | None = None,
        slice_fn_for_dispatch: Callable | None = None,
    ) -> torch.utils.data.DataLoader:
        """The loader of this process's part of the data; which part is decided in C++."""
        from accelerate.data_loader import prepare_data_loader

        if getattr(data_loader, "_is_accelerate_prepared", False):
            if all(data_loader is not known for known in self._dataloaders):
                self._keep_loader(data_loader)
            return data_loader
        config = self.dataloader_config
        prepared = prepare_data_loader(
            data_loader,
            self.device,
            num_processes=self.num_processes,
            process_index=self.process_index,
            split_batches=config.split_batches,
            put_on_device=self.device_placement if device_placement is None else device_placement,
            rng_types=self.rng_types.copy(),
            dispatch_batches=config.dispatch_batches,
            even_batches=config.even_batches,
            slice_fn_for_dispatch=slice_fn_for_dispatch,
            use_seedable_sampler=config.use_seedable_sampler,
            data_seed=config.data_seed,
            non_blocking=config.non_blocking,
            use_stateful_dataloader=config.use_stateful_dataloader,
        )
        self._keep_loader(prepared)
        return prepared

    def _keep_loader(self, loader: Any) -> None:
        from accelerate._prepared_loader import DataLoaderAdapter

        self._dataloaders.append(loader)
        # Another library's loader may say that it needs no preparing.
        if isinstance(loader, DataLoaderAdapter):
            kept = SharedState(
                loader._state, loader._load_state, loader._split_state, loader._join_state
            )
            self._states += (
                self._keep("loader", kept),
                self._keep_state("python_loader", loader._own_state, loader._load_own_state, True),
            )

    def skip_first_batches(self, dataloader: Any, num_batches: int = 0) -> Any:
        """A loader of the same data without its first batches."""
        from accelerate.data_loader import skip_first_batches

        return skip_first_batches(dataloader, num_batches)

    def unwrap_model(
        self, model: Any, keep_fp32_wrapper: bool = True, keep_torch_compile: bool = True
    ) -> Any:
        """The module that was prepared: calling it runs on this process alone."""
        from accelerate.utils.other import extract_model_from_parallel

        return extract_model_from_parallel(model, keep_fp32_wrapper, keep_torch_compile)

    def free_memory(self, *objects: Any) -> list[None]:
        """Forgets what was prepared and empties caches; assign the result to the names that hold
        the objects."""
        from accelerate.utils.memory import release_memory

        for kept in (
            self._models,
            self._prepared_models,
            self._optimizers,
            self._schedulers,
            self._dataloaders,
            self._states,
        ):
            kept.clear()
        return release_memory(*objects)

    def clear(self, *objects: Any) -> list[None]:
        """The same as `free_memory`."""
        return self.free_memory(*objects)

    # --- checkpoints ------------------------------------------------------------------------

    @property
    def project_dir(self) -> str | None:
        return self.project_configuration.project_dir

    @property
    def logging_dir(self) -> str | None:
        return self.project_configuration.logging_dir

    @property
    def save_iteration(self) -> int:
        """The number of the next checkpoint that is named automatically."""
        return self.project_configuration.iteration

    @property
    def _is_writer(self) -> bool:
        """Whether this process writes what all have in common."""
        return self.is_local_main_process if self._saves_on_each_node else self.is_main_process

    def save(self, obj: Any, f: Any, safe_serialization: bool = False) -> None:
        """As `torch.save`, on the main process only, or with `save_on_each_node` once per machine.
        `safe_serialization`: a dictionary of tensors as a safetensors file."""
        save(obj, f, self._saves_on_each_node, safe_serialization)

    def get_state_dict(self, model: Any, unwrap: bool = True) -> dict[str, Any]:
        """The module's own `state_dict`; its names have no prefix, also without `unwrap`."""
        return (self.unwrap_model(model) if unwrap else model).state_dict()

    def save_model(
        self,
        model: torch.nn.Module,
        save_directory: str | os.PathLike,
        max_shard_size: int | str = "10GB",
        safe_serialization: bool = True,
    ) -> None:
        """Writes the weights into a folder, in files of at most `max_shard_size` with an index, as
        `from_pretrained` reads them. On the main process, or once per machine."""
        if self._is_writer:
            _checkpoints.save_model(
                self.get_state_dict(model), Path(save_directory), max_shard_size, safe_serialization
            )

    def register_for_checkpointing(self, *objects: Any) -> None:
        """Saves and loads the state of these objects too, by `state_dict` and
        `load_state_dict`. Give the same ones in the same order before `load_state`."""
        invalid = [
            type(obj).__name__
            for obj in objects
            if not hasattr(obj, "state_dict") or not hasattr(obj, "load_state_dict")
        ]
        if invalid:
            raise UsageError(
                f"[register_for_checkpointing] got {', '.join(invalid)}, expected objects with "
                "state_dict and load_state_dict"
            )
        for obj in objects:
            self._custom_objects.append(obj)
            self._custom_states.append(
                self._keep_state("python_custom", obj.state_dict, obj.load_state_dict)
            )

    def register_save_state_pre_hook(self, hook: Callable[..., None]) -> RemovableHandle:
        """`hook(models, weights, folder)` runs in `save_state` before anything is written. It may
        write into the folder, which has another name until the checkpoint is complete, and take
        out of the list the weights that it has saved by itself. Call `remove()` of the handle to
        be rid of it."""
        handle = RemovableHandle(self._save_hooks)
        self._save_hooks[handle.id] = hook
        return handle

    def register_load_state_pre_hook(self, hook: Callable[..., None]) -> RemovableHandle:
        """`hook(models, folder)` runs in `load_state` before anything is loaded, and takes models
        out of the list that it has loaded by itself."""
        handle = RemovableHandle(self._load_hooks)
        self._load_hooks[handle.id] = hook
        return handle

    def save_state(
        self,
        output_dir: str | os.PathLike | None = None,
        safe_serialization: bool = True,
        *,
        layout: str | None = None,
        asynchronous: bool = False,
        **save_model_func_kwargs: Any,
    ) -> Path:
        """Saves everything that is needed to go on from here, and gives the folder.

        The folder has its name when the main process's part is complete; other processes add
        their own and wait for nobody, so it may be called on the main process alone. With
        automatic naming the folder is `project_dir/checkpoints/checkpoint_N`.
        `safe_serialization=False` writes weights by `torch.save`. `layout="accelerate"` writes
        what Hugging Face Accelerate loads. `asynchronous` returns when everything is copied to
        the host, and writes while training goes on; see `wait_for_save` and
        docs/guide_checkpoint.md."""
        if layout not in (None, "accelerate"):
            raise UsageError(
                f"[save_state] got layout={layout!r}, expected None (this package's) or "
                "'accelerate' (Hugging Face Accelerate's)"
            )
        if save_model_func_kwargs:
            _debug.warn(
                f"[save_state] got {', '.join(save_model_func_kwargs)}, which only DeepSpeed's "
                "models read in the original, and nothing does here; leave it out",
                stacklevel=2,
            )
        if layout is not None and asynchronous:
            raise UsageError(
                "[save_state] got layout='accelerate' with asynchronous=True, expected one of "
                "them: files of that layout are written at once"
            )
        self.wait_for_save()
        folder = _checkpoints.folder_to_save(self, output_dir)
        if layout is None:
            _checkpoints.save(self, folder, safe_serialization, asynchronous)
        else:
            _checkpoints.save_as_original(self, folder, safe_serialization)
        self.project_configuration.iteration += 1
        self._mark("checkpoint")
        return folder

    def wait_for_save(self) -> None:
        """Until nothing is being written any more. Raises what an asynchronous save failed with,
        as does the next `save_state`, `load_state` or `end_training`; once. A process that ends
        waits too, and can only print it."""
        self._run.wait_for_save()

    def should_stop(self) -> bool:
        """Whether the run was asked to end soon, by SIGTERM or SIGUSR1 to one of its processes or
        to the launcher; true on all processes at the same step. A collective. From the first call
        on the two signals no longer end the process, unless the program handles them itself."""
        return self._run.should_stop()

    def save_and_leave(self, output_dir: str | os.PathLike | None = None) -> NoReturn:
        """Saves, and ends the process with a code that makes the launcher start the job again
        without counting a failure. The new processes go on by `load_state("latest")`. Without
        `output_dir` the folder is the next in `project_dir/checkpoints`."""
        try:
            self.wait_for_save()
        except AccelerateError as error:
            print(error, file=sys.stderr)  # This one may still succeed.
        if output_dir is None:
            output_dir = _checkpoints.folder_to_leave(self)
        self.save_state(output_dir)
        # Whoever leaves first has the others stopped.
        self.wait_for_everyone()
        self.end_training()
        sys.exit(_C.EXIT_PREEMPTED)

    def load_state(
        self,
        input_dir: str | os.PathLike | None = None,
        load_kwargs: dict[str, Any] | None = None,
        *,
        allow_pickle: bool = False,
        restore_loaders: bool = True,
        **load_model_func_kwargs: Any,
    ) -> None:
        """Goes on from a checkpoint of this package or of Hugging Face Accelerate; prepare and
        register the same objects before. Each process reads for itself.

        `input_dir`: a folder; "latest" is the newest complete checkpoint in
        `project_dir/checkpoints`, as is None with automatic naming. The next loop over a loader
        goes on where it stood, also where the loader goes through `skip_first_batches`; with
        `restore_loaders=False` it begins with the epoch. `allow_pickle` loads what only a pickle
        holds, which may run any code. Other arguments go to the models' `load_state_dict`."""
        self.wait_for_save()
        folder = _checkpoints.folder_to_load(self, input_dir)
        # Says where tensors lie on their way, which is where they are used at once.
        load_model_func_kwargs.pop("map_location", None)
        if _C.is_checkpoint(str(folder)):
            _checkpoints.load_ours(
                self,
                folder,
                allow_pickle,
                restore_loaders,
                load_kwargs or {},
                load_model_func_kwargs,
            )
        elif is_original_checkpoint(folder):
            _checkpoints.load_original(
                self, folder, allow_pickle, load_kwargs or {}, load_model_func_kwargs
            )
        else:
            raise UsageError(
                f"[load_state] {folder} is no checkpoint, or one that was never completed: it has "
                "neither checkpoint.json nor Hugging Face Accelerate's random_states_0.pkl"
            )
        _checkpoints.go_on_counting(self, folder)

    # --- gradients --------------------------------------------------------------------------

    def backward(
        self, loss: torch.Tensor, *, weight: float | torch.Tensor | None = None, **kwargs: Any
    ) -> None:
        """In the place of `loss.backward(**kwargs)`: gradients of prepared models are averaged over
        the processes on the way.

        `weight` says how many samples or tokens the loss is the mean of: micro-batches and
        processes then count by it, and the update is that of one big batch, however ragged. Give it
        to all losses of an accumulation, or to none."""
        keeps = bool(kwargs.get("retain_graph") or kwargs.get("create_graph"))
        if kwargs:
            self._run.backward(loss, weight, keeps, lambda scaled: scaled.backward(**kwargs))
        else:
            self._run.backward(loss, weight, keeps, torch.Tensor.backward)

    def capture(
        self, function: Callable, *, num_warmup: int = 3, max_graphs: int = 8
    ) -> CapturedStep:
        """A training step that a GPU repeats by itself, called in the place of `function`; may be
        used as a decorator. See docs/guide_training_step.md.

            @accelerator.capture
            def step(batch):
                loss = model(**batch).loss
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
                return loss

        The first `num_warmup` calls with inputs of a shape run as they are, the next one is
        recorded, and every further one replays the recording. Where a step cannot be recorded, one
        line on standard error says why and `function` runs as it is."""
        return CapturedStep(function, _C.StepCapture(self._run, num_warmup, max_graphs))

    @property
    def sync_gradients(self) -> bool:
        """Whether the step under way ends in an update of the weights."""
        return self.gradient_state.sync_gradients

    @sync_gradients.setter
    def sync_gradients(self, value: bool) -> None:
        self.gradient_state.sync_gradients = value

    @property
    def gradient_accumulation_steps(self) -> int:
        """Micro-batches per update of the weights."""
        return self._run.num_accumulation_steps

    @gradient_accumulation_steps.setter
    def gradient_accumulation_steps(self, value: int) -> None:
        self._run.num_accumulation_steps = value
        self.gradient_state.plugin_kwargs["num_steps"] = value

    def accumulate(self, *models: Any) -> AbstractContextManager[None]:
        """Around one micro-batch of these models: gradients meet and optimizers step in every
        `gradient_accumulation_steps`-th, and in the last batch of the loader."""
        return Scope(self._run.micro_batch(_contexts(models)))

    def no_sync(self, model: Any) -> AbstractContextManager[None]:
        """Gradients of the model stay on this process inside of the block."""
        return Scope(*(context.no_sync() for context in _contexts([model])))

    def join_uneven_inputs(
        self, joinables: list[Any], even_batches: bool | None = None
    ) -> AbstractContextManager[None]:
        """Around a loop in which processes may have different numbers of batches, with the prepared
        models that it trains: those that are done take part with zero gradients until all are, and
        have the weights of the others then. `even_batches` says for the time of the block whether
        loaders fill up, in which case nothing else is done."""
        from accelerate._uneven_inputs import join

        return join(self, joinables, even_batches)

    @staticmethod
    def trigger_sync_in_backward(model: Any) -> AbstractContextManager[None]:
        """Makes the next backward average gradients, although the forward ran in `no_sync`."""
        for context in _contexts([model]):
            context.sync_next_backward()
        return nullcontext()

    def unscale_gradients(self, optimizer: Any = None) -> None:
        """Divides fp16 gradients by the scale, so that they can be looked at."""
        if optimizer is None:
            self._run.unscale_gradients()
        else:
            for opt in optimizer if isinstance(optimizer, (list, tuple)) else [optimizer]:
                self.prepare_optimizer(opt)._step.unscale()

    def clip_grad_norm_(
        self, parameters: Any, max_norm: float, norm_type: float = 2
    ) -> torch.Tensor:
        """Shrinks all gradients alike so that their norm is at most `max_norm`; returns the norm
        before. While gradients are accumulated it leaves them alone and returns NaN."""
        return self._run.clip_grad_norm(_listed(parameters), max_norm, float(norm_type))

    def clip_grad_value_(self, parameters: Any, clip_value: float) -> None:
        """Cuts each number of the gradients to `[-clip_value, clip_value]`; nothing while gradients
        are accumulated."""
        self._run.clip_grad_value(_listed(parameters), clip_value)

    @property
    def optimizer_step_was_skipped(self) -> bool:
        """Whether the latest step of any prepared optimizer was left out because of an overflow."""
        return self._run.optimizer_step_was_skipped

    def autocast(
        self, autocast_handler: AutocastKwargs | None = None
    ) -> AbstractContextManager[None]:
        """The precision of the run for code outside of a prepared model."""
        if not self.native_amp:
            return nullcontext()
        handler = autocast_handler or self.autocast_handler or AutocastKwargs()
        dtype = _DTYPES[self.mixed_precision]
        return torch.autocast(self.device.type, dtype, **vars(handler))

    # --- collectives ------------------------------------------------------------------------

    def gather(self, tensor: Any) -> Any:
        """Everybody's tensors, concatenated along the first dimension in the order of processes."""
        return operations.gather(tensor)

    def gather_for_metrics(self, input_data: Any, use_gather_object: bool = False) -> Any:
        """As `gather`, without the samples that a loader repeated to fill up the last batch: what
        is gathered over an epoch is each sample exactly once. Values with as many rows as the
        batch, or as a full one where it is short, are taken for one row per sample; others are
        gathered whole. Values that are no tensors are gathered as objects, from a list with one
        for each sample; an empty list may meet lists of objects."""
        is_empty = isinstance(input_data, (list, tuple)) and not input_data
        if use_gather_object or is_empty or not _trees.has_only_tensors(input_data):
            is_per_sample = isinstance(input_data, (list, tuple, torch.Tensor))
            return operations.gather_object(self._real(input_data) if is_per_sample else input_data)
        if self.state.group.is_solo:
            return _trees.map_tensors(input_data, self._real)
        structure = operations.structure_of(input_data, "gather_for_metrics")
        tensors = self._run.gather_real(_trees.tensors_of(input_data), structure)
        return _trees.with_tensors(input_data, tensors)

    def _real(self, values: Any) -> Any:
        """Those that are no repetition, out of one for each sample."""
        if isinstance(values, torch.Tensor) and values.dim() == 0:
            return values
        num_real = self._run.num_real(len(values))
        return values if num_real == len(values) else values[:num_real]

    def reduce(self, tensor: Any, reduction: str = "sum", scale: float = 1.0) -> Any:
        """The sum, mean or maximum over all processes, in new tensors."""
        return operations.reduce(tensor, reduction, scale)

    def pad_across_processes(
        self, tensor: Any, dim: int = 0, pad_index: int = 0, pad_first: bool = False
    ) -> Any:
        """Each tensor padded along `dim` to the longest of all processes."""
        return operations.pad_across_processes(tensor, dim, pad_index, pad_first)


def _load_accelerator(arguments: dict[str, Any], of_state: dict[str, Any]) -> Accelerator:
    """One that was pickled, in this process's state where there is one."""
    return Accelerator(**arguments, **({} if is_initialized() else of_state))


def _move(model: torch.nn.Module, device: torch.device) -> None:
    """As `model.to(device)`, with the same parameters on every kind of device: optimizers hold
    them, and torch makes new ones for kinds that it does not list."""
    here, there = torch.empty(0), torch.empty(0, device=device)
    settings = torch.__future__
    before = settings.get_swap_module_params_on_conversion()
    if not torch._has_compatible_shallow_copy_type(here, there):
        settings.set_swap_module_params_on_conversion(True)
    try:
        model.to(device)
    finally:
        settings.set_swap_module_params_on_conversion(before)


class _RawLoss:
    """Says once that a loss was computed beside the prepared models: the original goes on, and
    people step another model to compare."""

    def __init__(self) -> None:
        self._is_said = False

    def __call__(self, what: str) -> None:
        if not self._is_said:
            self._is_said = True
            _debug.warn(what, stacklevel=3)


def _is_scheduler(obj: Any) -> bool:
    return isinstance(obj, torch.optim.lr_scheduler.LRScheduler)


def _contexts(models: Iterable[Any]) -> list[_C.ModelContext]:
    # Of modules that were not prepared there is nothing to hold back.
    return [context for model in models if (context := context_of(model)) is not None]


def _listed(parameters: Any) -> list[torch.Tensor]:
    return [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)


__getattr__ = placeholders_for(__name__)
