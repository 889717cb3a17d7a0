# SPDX-License-Identifier: Apache-2.0
"""Start here: the object that makes a training loop distributed (docs/guide_python.md)."""

from __future__ import annotations

import dataclasses
import math
import numbers
import os
import sys
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from pathlib import Path
from typing import Any, NoReturn

import torch

from accelerate import _C
from accelerate._base import verification as _verification
from accelerate._base import debug as _debug
from accelerate._base import trees as _trees
from accelerate._base.checked_values import checked_argument, described, whole_number
from accelerate._checkpoint.checkpoints import (
    context_of_model,
    folder_to_leave,
    names_of_plain_state,
    whole_state,
)
from accelerate._checkpoint.checkpoints import save_model as _save_model
from accelerate._checkpoint.saving import Checkpoints, log_saved_model, new_context
from accelerate._models.compiling import compiled
from accelerate._models.deepspeed_engine import DeepSpeedEngine
from accelerate._models.prepared_module import (
    REPLAY,
    Autocast,
    Scope,
    attach,
    context_of,
    has_compiled_inner,
    parameter_set,
    refuse_compiled,
    refuse_compiled_twice,
)
from accelerate._offload.loading import get_state_dict_offloaded_model, has_offloaded_params
from accelerate._placeholders import placeholders_for
from accelerate._process.processes import Processes
from accelerate._run import options as _options
from accelerate._run.captured_step import CapturedStep
from accelerate._run.configuration import (
    Configuration,
    checked_precision,
    dynamo_plugin_of,
    parallelism_config_of,
)
from accelerate._run.delegation import DelegatedAttribute, delegated_method
from accelerate._run.observation import Trackers, profiling
from accelerate._sharding import deepspeed as _deepspeed
from accelerate._sharding import fully_sharded as _fully_sharded
from accelerate._state.values import SharedState
from accelerate.errors import AccelerateError, UsageError
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.parallelism_config import ParallelismConfig
from accelerate.scheduler import AcceleratedScheduler, state_of
from accelerate.state import (
    AcceleratorState,
    GradientState,
    is_initialized,
    raise_of_property,
)
from accelerate.utils import operations
from accelerate.utils.dataclasses import (
    AutocastKwargs,
    DataLoaderConfiguration,
    DeepSpeedPlugin,
    DynamoBackend,
    EngineKwargs,
    FullyShardedDataParallelPlugin,
    GradientAccumulationPlugin,
    KwargsHandler,
    PrecisionType,
    ProfileKwargs,
    ProjectConfiguration,
    RNGType,
    TorchDynamoPlugin,
    TorchTensorParallelPlugin,
)
from accelerate.utils.deepspeed import (
    DeepSpeedOptimizerWrapper,
    DeepSpeedSchedulerWrapper,
    DummyScheduler,
)
from accelerate.utils.memory import release_memory
from accelerate.utils.other import extract_model_from_parallel

_DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


class Accelerator(Configuration, Processes):
    """Connects this process to the other processes, prepares models, optimizers, schedulers and
    loaders, and offers the collectives that loops need. The loop never names a device:

        accelerator = Accelerator()
        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        for batch in loader:
            loss = model(**batch).loss
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()

    Arguments, defaults and behaviour are those of Hugging Face Accelerate 1.15. An unsupported
    argument raises an error that names it. See docs/guide_python.md.
    """

    # Private names of the original that libraries use.
    _models = DelegatedAttribute("_context", "models")
    _optimizers = DelegatedAttribute("_context", "optimizers")
    _schedulers = DelegatedAttribute("_context", "schedulers")
    _dataloaders = DelegatedAttribute("_context", "loaders")
    _custom_objects = DelegatedAttribute("_context", "custom_objects")
    _save_model_state_pre_hook = DelegatedAttribute("_context", "save_hooks")
    _load_model_state_pre_hook = DelegatedAttribute("_context", "load_hooks")

    # Scripts also count their own steps here.
    step = DelegatedAttribute("_context", "step")
    project_configuration = DelegatedAttribute("_context", "project")
    log_with = DelegatedAttribute("_trackers", "log_with")
    trackers = DelegatedAttribute("_trackers", "trackers")

    def __init__(
        self,
        device_placement: bool = True,
        split_batches: bool = False,
        mixed_precision: PrecisionType | str | None = None,
        gradient_accumulation_steps: int = 1,
        cpu: bool = False,
        dataloader_config: DataLoaderConfiguration | None = None,
        deepspeed_plugin: DeepSpeedPlugin | dict[str, DeepSpeedPlugin] | None = None,
        fsdp_plugin: FullyShardedDataParallelPlugin | None = None,
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
        deepspeed_plugins: DeepSpeedPlugin | dict[str, DeepSpeedPlugin] | None = None,
        parallelism_config: ParallelismConfig | None = None,
        *,
        master_weights: bool = False,
        fast: bool | None = None,
    ) -> None:
        _options.refuse_what_is_not_there({"megatron_lm_plugin": megatron_lm_plugin})
        if split_batches:
            _debug.warn(
                "[Accelerator] split_batches=True has no effect here. Pass "
                "dataloader_config=DataLoaderConfiguration(split_batches=True)",
                stacklevel=2,
            )
        _options.check_type("dataloader_config", dataloader_config, DataLoaderConfiguration)
        _options.check_type("project_config", project_config, ProjectConfiguration)
        _options.check_type("dynamo_plugin", dynamo_plugin, TorchDynamoPlugin)
        _options.check_type("parallelism_config", parallelism_config, ParallelismConfig)
        _options.check_type(
            "gradient_accumulation_plugin", gradient_accumulation_plugin, GradientAccumulationPlugin
        )
        self._context = new_context(project_config, project_dir)
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
        self._context.has_own_engine = EngineKwargs in handlers
        if self._context.has_own_engine:
            options.engine = handlers[EngineKwargs].engine
        options.scaler = _options.scaler_options(self.scaler_handler)
        options.accumulation.num_steps = (
            1 if plugin.num_steps is None else _options.num_accumulation_steps(plugin.num_steps)
        )
        _options.put(
            "GradientAccumulationPlugin",
            options.accumulation,
            {
                "sync_with_dataloader": plugin.sync_with_dataloader,
                "sync_each_batch": plugin.sync_each_batch,
            },
        )
        # C++ writes its files of a checkpoint into the same folders as Python.
        options.save_on_each_node(self._context.saves_on_each_node)

        init = self.init_handler._given() if self.init_handler else {}
        sharding = {
            "fsdp_plugin": _fully_sharded.plugin_of(fsdp_plugin),
            "deepspeed_plugin": _deepspeed.plugins_of(deepspeed_plugin, deepspeed_plugins),
        }
        if None not in sharding.values():
            raise UsageError(
                "[Accelerator] FSDP and DeepSpeed are both configured. Leave out one plugin, or "
                "unset ACCELERATE_USE_FSDP or ACCELERATE_USE_DEEPSPEED"
            )
        self.state = AcceleratorState(
            precision,
            cpu,
            dynamo_plugin=compiling,
            **sharding,
            parallelism_config=parallelism_config,
            _from_accelerator=True,
            **init,
        )
        self.gradient_state = GradientState(plugin)
        options.set_mixed_precision(self._engine_precision())
        options.debug = self.state.debug
        _options.put("Accelerator", options, {"master_weights": master_weights})
        self._has_masters = options.master_weights
        self._fast = _options.is_fast(fast)
        # What the running `prepare` replaces in models.
        self._plans: list[Any] = []
        options.cpu = self.state.device.type == "cpu"
        options.environment = self.state.environment
        options.process_group = self.state.group
        self._shard_options(options)
        self._size_mesh(options)
        self._run = _C.TrainingRun(options, self.gradient_state.step_state, _warn_of_loss)
        self._context.state, self._context.run = self.state, self._run
        _verification.keep_files()
        _verification.watch_optimizers(
            lambda: [own.optimizer for own in self._context.optimizers],
            lambda: self._context.models,
        )
        if self.parallelism_config is not None:
            self.state.device_mesh = self.parallelism_config.get_device_mesh(self.state.device.type)
        self._has_warned_of_repeats = False
        self.state.accelerator = weakref.ref(self)
        self._ddp = options.ddp
        self.gradient_accumulation_steps = self._run.num_accumulation_steps
        # Scripts set it to False on devices without autocast.
        self.native_amp = self._computes_in != "no"
        self._trackers = Trackers(self._context, log_with)
        self._checkpoints = Checkpoints(self._context, self._trackers.mark)
        self.flag_tensor = None

    def __getattr__(self, name: str) -> Any:
        raise_of_property(self, name)
        raise AttributeError(f"'Accelerator' object has no attribute '{name}'")

    def __copy__(self) -> Accelerator:
        return self

    def __deepcopy__(self, memo: dict) -> Accelerator:
        # A process has one run. A copy of an object that refers to the run uses the same run.
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
        of_state = {
            "mixed_precision": self.mixed_precision,
            "cpu": self.state._cpu,
            "fsdp_plugin": self.state.fsdp_plugin,
            "deepspeed_plugins": self.state.deepspeed_plugins,
        }
        return _load_accelerator, (arguments, of_state)

    # --- process control --------------------------------------------------------------------

    def set_trigger(self) -> None:
        """Sets a flag that every process sees at its next `check_trigger`."""
        self._run.set_trigger()

    def check_trigger(self) -> bool:
        """Whether any process has set the flag since the last check. All processes must call this
        method."""
        return self._run.check_trigger()

    def end_training(self) -> None:
        """Finishes the trackers and leaves the group. Later collectives raise an error. At the end,
        raises the error of a failed save, like `wait_for_save`."""
        with ExitStack() as last_first:
            last_first.callback(self.state.destroy_process_group)
            last_first.callback(self.wait_for_save)
            last_first.callback(self._run.report.say_step_times)
            last_first.callback(self._run.report.end_journal)
            for tracker in reversed(self.trackers):
                last_first.callback(tracker.finish)

    # --- prepare ----------------------------------------------------------------------------

    def prepare(
        self, *args: Any, device_placement: list[bool] | None = None, fuse: bool = False
    ) -> Any:
        """Prepares models, optimizers, schedulers and data loaders, in any order. Returns a tuple
        in the same order, or the object itself if there is only one. Objects of other types are
        returned unchanged. Preparing an object twice has no effect. Process 0's weights are
        broadcast to all processes.

        `fuse` replaces operators in transformers models with operators of `accelerate.kernels`,
        with the same results up to rounding. See docs/guide_python.md."""
        if device_placement is None:
            placements: list[bool | None] = [None] * len(args)
        elif len(device_placement) == len(args):
            placements = list(device_placement)
        else:
            raise UsageError(
                f"[prepare] device_placement has {len(device_placement)} entries for {len(args)} "
                "objects. Pass one entry for each object"
            )
        if not isinstance(fuse, bool):
            raise UsageError(f"[prepare] fuse is {fuse!r}, expected True or False")
        self._plans = self._plan_fusion(args, fuse) if fuse or self._fast else []
        objects = args if self.deepspeed_plugin is None else self._resolve_deepspeed(args)
        num_optimizers = len(self._optimizers)
        first = [self._prepare_one(obj, placed) for obj, placed in zip(objects, placements)]
        try:
            self._run.wire()
        except BaseException:
            # If `prepare` fails, its objects must not appear in checkpoints and later calls.
            del self._optimizers[num_optimizers:]
            raise
        for plan in self._plans:
            plan.apply()
        self._plans = []
        self._speed_up_optimizers()
        # Schedulers look for their prepared optimizers, so prepare them last.
        result = [
            self._prepare_scheduler(obj, isinstance(given, DummyScheduler))
            if _is_scheduler(obj)
            else obj
            for obj, given in zip(first, args)
        ]
        return result[0] if len(result) == 1 else tuple(result)

    def _plan_fusion(self, args: tuple, is_required: bool) -> list[Any]:
        # Imported when needed, because few programs use it.
        from accelerate._fuse import Plan

        models = [obj for obj in args if isinstance(obj, torch.nn.Module)]
        is_compiled = self.state.dynamo_plugin.backend != DynamoBackend.NO
        if not is_required:
            return [] if is_compiled else [Plan(m) for m in models if not has_compiled_inner(m)]
        if not models:
            raise UsageError("[prepare] fuse=True needs a model. Pass one to prepare()")
        if is_compiled:
            raise UsageError(
                "[prepare] fuse=True does not work with a dynamo_backend, because the compiler "
                "also fuses operations. Leave one of them out"
            )
        plans = [Plan(model) for model in models]
        for plan in plans:
            plan.check()
        return plans

    def _speed_up_optimizers(self) -> None:
        if not self._fast or self._has_masters or self._spreads:
            return
        from accelerate._fast import use_fused_kernels

        for prepared in self._optimizers:
            use_fused_kernels(prepared.optimizer)

    def _replay_of(self, model: torch.nn.Module, context: _C.ModelContext) -> Any:
        """Returns what replays the passes of the model, or None."""
        if not self._fast or context.is_for_evaluation:
            return None
        from accelerate._fast import DeviceRecorder, Replay

        is_fused = any(plan.module is model and not plan.is_empty for plan in self._plans)
        return Replay(
            model,
            DeviceRecorder(self.device),
            self.device,
            # Models whose operators are known to work in bf16.
            weight_dtype=torch.bfloat16 if is_fused and self._computes_in == "bf16" else None,
            accumulates=self._run.num_accumulation_steps > 1,
            owns_gradients=context.is_local,
            refusal=self._why_not_to_replay(model, context),
        )

    def _why_not_to_replay(self, model: torch.nn.Module, context: _C.ModelContext) -> str:
        """Returns why the model always runs eagerly, or an empty string."""
        if not _C.has_device_graphs(self.device):
            return f"{self.device.type} has no device graphs. Use a GPU"
        if _verification.RECORDER is not None:
            return "accelerate verify reads the results of each step on the host"
        if self.state.dynamo_plugin.backend != DynamoBackend.NO or has_compiled_inner(model):
            return "it is compiled. Leave out torch.compile or fast"
        if context.is_spread:
            return "its parameters are sharded"
        if self._has_masters:
            return "it has master weights. Use accelerator.capture() instead of fast"
        if self._context.has_own_engine or self.deepspeed_plugin is not None:
            return "another engine computes its gradients"
        if not context.is_local and self._ddp.find_unused_parameters:
            return "find_unused_parameters searches the graph of each pass"
        return ""

    def fast_report(self) -> list[dict[str, Any]]:
        """With `fast=True`, returns for each prepared model its class name (`model`), the number
        of forward passes that were replayed (`replayed`), the number of recorded graphs (`graphs`),
        and how many passes ran eagerly for each reason (`eager`). Forward passes without gradients
        are not counted."""
        replays = (model.__dict__.get(REPLAY) for model in self._models)
        return [replay.report() for replay in replays if replay is not None]

    def _resolve_deepspeed(self, args: tuple) -> list[Any]:
        if self.deepspeed_plugin is not self._deepspeed_plugin:
            raise UsageError(
                "[prepare] Another DeepSpeedPlugin was selected after this Accelerator was "
                "created. Create another Accelerator after select_deepspeed_plugin"
            )
        return _deepspeed.resolve(self, args)

    def _prepare_one(self, obj: Any, device_placement: bool | None) -> Any:
        if isinstance(obj, torch.utils.data.DataLoader):
            return self.prepare_data_loader(obj, device_placement)
        if isinstance(obj, torch.nn.Module):
            return self._prepare_model(obj, device_placement, evaluation_mode=False)
        if isinstance(obj, torch.optim.Optimizer):
            return self._prepare_optimizer(obj, device_placement)
        refuse_compiled_twice(obj)
        return obj

    def prepare_model(
        self,
        model: torch.nn.Module,
        device_placement: bool | None = None,
        evaluation_mode: bool = False,
    ) -> torch.nn.Module:
        """Moves the module to its device and synchronises its gradients across processes, unless
        `evaluation_mode` is set. The result has the same class, attributes and names.
        `unwrap_model` returns the original module."""
        prepared = self._prepare_model(model, device_placement, evaluation_mode)
        self._run.wire()
        return prepared

    def _prepare_model(
        self, model: torch.nn.Module, device_placement: bool | None, evaluation_mode: bool
    ) -> torch.nn.Module:
        if self._spreads and not evaluation_mode:
            # Compile before parameters are sharded.
            if self.state.dynamo_plugin.backend != DynamoBackend.NO or has_compiled_inner(model):
                refuse_compiled()
        known = self._find_prepared(model)
        if known is not None:
            context = context_of(known)
            if not evaluation_mode and context.is_for_evaluation:
                self._run.train_evaluated(context)
                known = self._keep_prepared(model, context, evaluation_mode)
            return known
        context = context_of(model)
        # The model was prepared by another Accelerator, or before `free_memory`. A model prepared
        # only for evaluation is prepared again, otherwise its gradients would never be
        # synchronised.
        if context is not None and (evaluation_mode or not context.is_for_evaluation):
            return model
        plugin = None if evaluation_mode else self.state.fsdp_plugin
        # Only a shard of each parameter is then moved to the device.
        is_cut_first = self._run.shards_parameters and not evaluation_mode
        if plugin is not None:
            target = torch.device("cpu") if is_cut_first else self.device
            _fully_sharded.materialise(model, target, self.is_main_process)
        is_placed = self.device_placement if device_placement is None else device_placement
        if not self._stays_where_it_is(model) and is_placed:
            _move(model, self.device, with_parameters=not is_cut_first)
        units = [] if plugin is None else _fully_sharded.units_of(plugin, model)
        # A model prepared for evaluation may be trained later.
        whole = _fully_sharded.whole_of(self.state.fsdp_plugin, model)
        context = self._run.prepare_model(
            parameter_set(model, units, whole), type(model).__name__, evaluation_mode
        )
        self._models.append(model)
        _verification.watch_modules(model)
        self._context.prepared_models.append(model)
        return self._keep_prepared(model, context, evaluation_mode)

    def _keep_prepared(
        self, model: torch.nn.Module, context: _C.ModelContext, evaluation_mode: bool
    ) -> torch.nn.Module:
        is_of_deepspeed = self.deepspeed_plugin is not None and not evaluation_mode
        deepspeed = DeepSpeedEngine(self, self._context) if is_of_deepspeed else None
        replay = self._replay_of(model, context)
        prepared = attach(model, context, self._autocast(), self._ddp, deepspeed, replay)
        if self.state.dynamo_plugin.backend != DynamoBackend.NO:
            prepared = compiled(prepared, self.state.dynamo_plugin, evaluation_mode)
        index = next(i for i, known in enumerate(self._models) if known is model)
        self._context.prepared_models[index] = prepared
        return prepared

    def _find_prepared(self, model: torch.nn.Module) -> torch.nn.Module | None:
        for module, prepared in zip(self._models, self._context.prepared_models):
            if module is model:
                context_of(prepared).prepare_again(parameter_set(model))
            if module is model or prepared is model:
                return prepared
        return None

    def _autocast(self) -> Autocast | None:
        # As in the original, FSDP also autocasts if weights are bf16.
        if not self.native_amp or (self._has_masters and not self._gathers_bf16):
            return None
        handler = self.autocast_handler or AutocastKwargs()
        dtype = _DTYPES[self.mixed_precision]
        return Autocast(
            self.device.type,
            dtype,
            handler.enabled,
            handler.cache_enabled,
            is_of_engine=self._run.mixed_precision != "no" and not self._has_masters,
        )

    def prepare_optimizer(
        self, optimizer: torch.optim.Optimizer, device_placement: bool | None = None
    ) -> AcceleratedOptimizer:
        """Returns the prepared optimizer, which does not step during gradient accumulation."""
        prepared = self._prepare_optimizer(optimizer, device_placement)
        self._run.wire()
        self._speed_up_optimizers()
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
        kind = AcceleratedOptimizer if self.deepspeed_plugin is None else DeepSpeedOptimizerWrapper
        prepared = kind(optimizer, placed, self.scaler, _run=self._run)
        if isinstance(prepared, DeepSpeedOptimizerWrapper):
            prepared._clip = self._clip_as_configured
        self._optimizers.append(prepared)
        return prepared

    def prepare_scheduler(self, scheduler: Any) -> AcceleratedScheduler:
        """Returns the prepared scheduler. It advances with the prepared optimizer that it drives,
        or with all prepared optimizers."""
        return self._prepare_scheduler(scheduler, is_configured=False)

    def _prepare_scheduler(self, scheduler: Any, is_configured: bool) -> AcceleratedScheduler:
        """`is_configured` says whether DeepSpeed's configuration names the scheduler, so that the
        engine advances it."""
        if isinstance(scheduler, AcceleratedScheduler):
            return scheduler
        for known in self._schedulers:
            if known.scheduler is scheduler:
                return known
        driven = getattr(scheduler, "optimizer", None)
        own = [opt for opt in self._optimizers if driven in (opt, opt.optimizer)]
        kind = DeepSpeedSchedulerWrapper if is_configured else AcceleratedScheduler
        prepared = kind(
            scheduler,
            own or self._optimizers,
            self.step_scheduler_with_optimizer or is_configured,
            self.split_batches or is_configured,
            _run=self._run,
        )
        if isinstance(prepared, DeepSpeedSchedulerWrapper):
            for opt in prepared.optimizers:
                opt._scheduler = prepared
        self._schedulers.append(prepared)
        self._context.states.append(self._checkpoints.keep("scheduler", state_of(scheduler)))
        return prepared

    def prepare_data_loader(
        self,
        data_loader: torch.utils.data.DataLoader,
        device_placement: bool | None = None,
        slice_fn_for_dispatch: Callable | None = None,
    ) -> torch.utils.data.DataLoader:
        """Returns a loader for this process's share of the data, which C++ determines."""
        # Imported when needed, because not every program prepares loaders.
        from accelerate.data_loader import prepare_data_loader

        if getattr(data_loader, "_is_accelerate_prepared", False):
            if all(data_loader is not known for known in self._dataloaders):
                self._keep_loader(data_loader)
            return data_loader
        config = self.dataloader_config
        prepared = prepare_data_loader(
            data_loader,
            self.device,
            num_processes=self._run.num_data_ranks,
            process_index=self._run.data_rank,
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
        # Imported when needed, because not every program prepares loaders.
        from accelerate._loaders.prepared_loader import DataLoaderAdapter

        self._dataloaders.append(loader)
        # A loader of another library may declare that it needs no preparation.
        if isinstance(loader, DataLoaderAdapter):
            kept = SharedState(
                loader._state, loader._load_state, loader._split_state, loader._join_state
            )
            loader._state_name = self._checkpoints.keep("loader", kept).name
            self._context.states += (
                kept,
                self._checkpoints.keep_values(
                    "python_loader", loader._own_state, loader._load_own_state, True
                ),
            )

    def skip_first_batches(self, dataloader: Any, num_batches: int = 0) -> Any:
        """Returns a loader for the same data without its first batches."""
        # Imported when needed, because not every program prepares loaders.
        from accelerate.data_loader import skip_first_batches

        return skip_first_batches(dataloader, num_batches)

    def unwrap_model(
        self, model: Any, keep_fp32_wrapper: bool = True, keep_torch_compile: bool = True
    ) -> Any:
        """Returns the module that was passed to `prepare`. Calls of this module do not
        communicate."""
        return extract_model_from_parallel(model, keep_fp32_wrapper, keep_torch_compile)

    def free_memory(self, *objects: Any) -> list[None]:
        """Releases all prepared objects and empties caches. Assign the result to the variables that
        refer to the objects."""
        for kept in (
            self._models,
            self._context.prepared_models,
            self._optimizers,
            self._schedulers,
            self._dataloaders,
            self._context.states,
        ):
            kept.clear()
        return release_memory(*objects)

    def clear(self, *objects: Any) -> list[None]:
        """The same as `free_memory`."""
        return self.free_memory(*objects)

    # --- gradients --------------------------------------------------------------------------

    def backward(
        self, loss: torch.Tensor, *, weight: float | torch.Tensor | None = None, **kwargs: Any
    ) -> None:
        """Call this instead of `loss.backward(**kwargs)`. It also averages the gradients of
        prepared models over processes.

        `weight` is the number of samples or tokens over which the loss is a mean. Micro-batches and
        processes are weighted by this number, so the update equals that of one large batch, even if
        they differ in size. Pass it for all losses of an update on all processes, or for none of
        them."""
        if "scale_wrt_gas" in kwargs and self.deepspeed_plugin is not None:
            # DeepSpeed's argument that says whether the loss is divided by the number of
            # micro-batches.
            num_steps = self._run.num_accumulation_steps
            self._run.num_accumulation_steps = num_steps if kwargs.pop("scale_wrt_gas") else 1
            try:
                self.backward(loss, weight=weight, **kwargs)
            finally:
                self._run.num_accumulation_steps = num_steps
            return
        if not isinstance(loss, torch.Tensor):
            raise UsageError(
                f"[Accelerator.backward] The loss is {described(loss)}. Pass the tensor that the "
                "loss function returned, without item() or float()"
            )
        keeps = bool(kwargs.get("retain_graph") or kwargs.get("create_graph"))
        taken = _weight(weight)
        _verification.before_backward()
        if kwargs:
            self._run.backward(loss, taken, keeps, lambda scaled: scaled.backward(**kwargs))
        else:
            self._run.backward(loss, taken, keeps, torch.Tensor.backward)

    def capture(
        self, function: Callable, *, num_warmup: int = 3, max_graphs: int = 8
    ) -> CapturedStep:
        """Captures a training step as CUDA graphs. Call the result instead of `function`, or use
        this method as a decorator. See docs/guide_training_step.md.

            @accelerator.capture
            def step(batch):
                loss = model(**batch).loss
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
                return loss

        For each shape of the inputs, the first `num_warmup` calls run eagerly, the next call is
        recorded, and every later call replays the recording. If a step cannot be recorded,
        `function` runs eagerly, and one line on stderr says why."""
        warmup = checked_argument("capture", "num_warmup", num_warmup, whole_number(0))
        graphs = checked_argument("capture", "max_graphs", max_graphs, whole_number(1))
        return CapturedStep(function, _C.StepCapture(self._run, warmup, graphs))

    @property
    def sync_gradients(self) -> bool:
        """Whether the current step ends with an update of the weights."""
        return self.gradient_state.sync_gradients

    @sync_gradients.setter
    def sync_gradients(self, value: bool) -> None:
        self.gradient_state.sync_gradients = value

    @property
    def gradient_accumulation_steps(self) -> int:
        """The number of micro-batches per update of the weights."""
        return self._run.num_accumulation_steps

    @gradient_accumulation_steps.setter
    def gradient_accumulation_steps(self, value: int) -> None:
        self._run.num_accumulation_steps = _options.num_accumulation_steps(value)
        self.gradient_state.plugin_kwargs["num_steps"] = self._run.num_accumulation_steps

    def accumulate(self, *models: Any) -> AbstractContextManager[None]:
        """The scope of one micro-batch of these models. Gradients are synchronised and optimizers
        step in every `gradient_accumulation_steps`-th scope, and on the last batch of the
        loader."""
        scope = Scope(self._run.micro_batch(_contexts(models)))
        is_end = self.gradient_state.sync_with_dataloader and self.gradient_state.end_of_dataloader
        self.step = 0 if is_end else self.step + 1
        return scope

    def no_sync(self, model: Any) -> AbstractContextManager[None]:
        """Inside the block, gradients of the model stay local."""
        return Scope(*(context.no_sync() for context in _contexts([model])))

    def join_uneven_inputs(
        self, joinables: list[Any], even_batches: bool | None = None
    ) -> AbstractContextManager[None]:
        """Put this around a loop in which processes may have different numbers of batches, and pass
        the prepared models that the loop trains. Processes that have finished contribute zero
        gradients until all have finished, and then receive the weights of the others.
        `even_batches` overrides whether loaders complete the last batches during the block. If they
        do, a model that cannot be joined (because it is sharded, or uses `static_graph`) trains as
        it would without the block. Otherwise, such a model causes an error, as does any argument
        other than a list of prepared models. On a single process, nothing is checked."""
        # Imported when needed, because few programs use it.
        from accelerate._run.uneven_inputs import join

        return join(self._context, joinables, self.even_batches, even_batches)

    @staticmethod
    def trigger_sync_in_backward(model: Any) -> AbstractContextManager[None]:
        """Makes the next backward pass average gradients, even if the forward pass ran in
        `no_sync`."""
        for context in _contexts([model]):
            context.sync_next_backward()
        return nullcontext()

    def unscale_gradients(self, optimizer: Any = None) -> None:
        """Divides fp16 gradients by the loss scale, so that you can inspect them."""
        if optimizer is None:
            self._run.unscale_gradients()
        else:
            for opt in optimizer if isinstance(optimizer, (list, tuple)) else [optimizer]:
                self.prepare_optimizer(opt)._step.unscale()

    def clip_grad_norm_(
        self, parameters: Any, max_norm: float, norm_type: float = 2
    ) -> torch.Tensor:
        """Scales all gradients by the same factor so that their norm is at most `max_norm`, and
        returns the norm before clipping. During gradient accumulation, this method changes nothing
        and returns NaN. With a DeepSpeedPlugin, it only computes the norm, and the optimizer's step
        clips with the limit in the configuration."""
        if self.deepspeed_plugin is not None:
            max_norm = math.inf
        limit = _options.number("clip_grad_norm_", "max_norm", max_norm)
        norm = _options.number("clip_grad_norm_", "norm_type", norm_type)
        return self._run.clip_grad_norm(_listed("clip_grad_norm_", parameters), limit, norm)

    def _clip_as_configured(self) -> None:
        limit = self._deepspeed_plugin.get_value("gradient_clipping")
        # As in DeepSpeed, other values do not clip.
        if limit is not None and limit > 0:
            parameters = [p for model in self._models for p in model.parameters()]
            self._run.clip_grad_norm(parameters, float(limit), 2.0)

    def clip_grad_value_(self, parameters: Any, clip_value: float) -> None:
        """Clamps each element of the gradients to `[-clip_value, clip_value]`. Has no effect during
        gradient accumulation."""
        limit = _options.number("clip_grad_value_", "clip_value", clip_value)
        self._run.clip_grad_value(_listed("clip_grad_value_", parameters), limit)

    @property
    def optimizer_step_was_skipped(self) -> bool:
        """Whether the latest step of any prepared optimizer was skipped because of an overflow."""
        return self._run.optimizer_step_was_skipped

    def autocast(
        self, autocast_handler: AutocastKwargs | None = None
    ) -> AbstractContextManager[None]:
        """Applies the precision of the run to code outside of a prepared model."""
        if not self.native_amp:
            return nullcontext()
        handler = autocast_handler or self.autocast_handler or AutocastKwargs()
        dtype = _DTYPES[self.mixed_precision]
        return torch.autocast(self.device.type, dtype, **vars(handler))

    # --- collectives ------------------------------------------------------------------------

    def gather(self, tensor: Any) -> Any:
        """Concatenates the tensors of all processes along the first dimension, in process order."""
        return operations.gather(tensor)

    def gather_for_metrics(self, input_data: Any, use_gather_object: bool = False) -> Any:
        """Like `gather`, but drops the samples that a loader repeated to complete the last batch.
        Over an epoch, each sample is gathered exactly once.

        If a value has as many rows as the batch has samples, each row is one sample. If a short
        batch has as many equal rows as a full one, they are copies of one value, and one copy per
        real sample is kept. Other values are gathered completely, unless the whole batch is a
        repeat. Values that are not tensors are gathered as objects, from a list with one object per
        sample. The same applies to lists without tensors, which may be empty."""
        has_tensors = isinstance(input_data, Mapping) or bool(_trees.tensors_of(input_data))
        if use_gather_object or not has_tensors or not _trees.has_only_tensors(input_data):
            # NumPy arrays have rows, too.
            is_list = isinstance(input_data, Sequence) and not isinstance(input_data, (str, bytes))
            has_rows = is_list or getattr(input_data, "ndim", 0) > 0
            return operations.gather_object(self._real(input_data) if has_rows else input_data)
        if self.state.group.is_solo:
            return _trees.map_tensors(input_data, self._real)
        structure = operations.structure_of(input_data, "gather_for_metrics")
        tensors = _trees.tensors_of(input_data)
        for tensor in tensors:
            if tensor.dim() > 0 and tensor.numel() > 1:
                self._warn_of_repeats(len(tensor))
        real = self._run.batch_rows.gather_real(tensors, structure)
        return _trees.with_tensors(input_data, real)

    def _real(self, values: Any) -> Any:
        """Returns the values of real samples, from a list with one value per sample."""
        if isinstance(values, torch.Tensor):
            return self._run.batch_rows.real_rows(values)
        if getattr(values, "ndim", 1) == 0:
            return values
        size = len(values)
        if size > 1:
            self._warn_of_repeats(size)
        num_real = self._run.batch_rows.num_real(size)
        num_of_copies = self._run.batch_rows.num_real(size, are_copies=True)
        if num_of_copies != num_real and _are_copies(values):
            num_real = num_of_copies
        return values if num_real == size else values[:num_real]

    def _warn_of_repeats(self, num_rows: int) -> None:
        """Warns if it is unknown which of these rows belong to repeated samples. Warns once per
        run, because the number of rows may differ in every epoch."""
        if self._has_warned_of_repeats:
            return
        problem = self._run.batch_rows.mixed_repeats(num_rows)
        if problem is not None:
            _debug.warn(
                f"[gather_for_metrics] Repeated samples are gathered too: {problem}", stacklevel=3
            )
            self._has_warned_of_repeats = True

    def reduce(self, tensor: Any, reduction: str = "sum", scale: float = 1.0) -> Any:
        """Returns the sum, mean or maximum over all processes, in new tensors."""
        return operations.reduce(tensor, reduction, scale)

    def pad_across_processes(
        self, tensor: Any, dim: int = 0, pad_index: int = 0, pad_first: bool = False
    ) -> Any:
        """Pads each tensor along `dim` to the largest size on any process."""
        return operations.pad_across_processes(tensor, dim, pad_index, pad_first)

    # --- saving and resuming ----------------------------------------------------------------

    save = delegated_method("_checkpoints", Checkpoints.save)
    register_for_checkpointing = delegated_method(
        "_checkpoints", Checkpoints.register_for_checkpointing
    )
    register_save_state_pre_hook = delegated_method(
        "_checkpoints", Checkpoints.register_save_state_pre_hook
    )
    register_load_state_pre_hook = delegated_method(
        "_checkpoints", Checkpoints.register_load_state_pre_hook
    )
    save_state = delegated_method("_checkpoints", Checkpoints.save_state)
    wait_for_save = delegated_method("_checkpoints", Checkpoints.wait_for_save)
    should_stop = delegated_method("_checkpoints", Checkpoints.should_stop)
    load_state = delegated_method("_checkpoints", Checkpoints.load_state)

    def get_state_dict(self, model: Any, unwrap: bool = True) -> dict[str, Any]:
        """Returns the module's `state_dict`. Names have no prefix, even without `unwrap`. With
        `master_weights`, it contains the master weights. If parameters are sharded, this is a
        collective, which returns unsharded values on the main process and an empty dictionary on
        the others."""
        context = context_of_model(self._context, model)
        if context is not None and (context.is_spread or context.weights is not None):
            keep = self._context.is_writer or not context.is_spread
            return whole_state(self.unwrap_model(model), context, keep)
        return (self.unwrap_model(model) if unwrap else model).state_dict()

    def save_model(
        self,
        model: torch.nn.Module,
        save_directory: str | os.PathLike,
        max_shard_size: int | str = "10GB",
        safe_serialization: bool = True,
    ) -> None:
        """Writes the weights to a folder that `from_pretrained` can read, in files of at most
        `max_shard_size` with an index. The main process writes, or one process per machine. If
        parameters are sharded, call this method on all processes. No process then needs memory for
        the whole model, unless its `state_dict` contains more than its parameters and buffers, or
        the files are pickles (`safe_serialization=False`). Weights that `dispatch_model` keeps on
        disk are loaded into memory first."""
        if _verification.RECORDER is not None:
            return  # `accelerate verify` leaves no files.
        context = context_of_model(self._context, model)
        is_spread = context is not None and context.is_spread
        if context is not None and is_spread and safe_serialization:
            module = self.unwrap_model(model)
            names = names_of_plain_state(module)
            if names is not None:
                max_bytes = _C.parse_size(str(max_shard_size))
                self._run.checkpoints.save_model(
                    context, os.fspath(save_directory), max_bytes, names
                )
                log_saved_model(Path(save_directory), max_shard_size, safe_serialization)
                return
        state = {}
        if self._context.is_writer or is_spread:
            is_offloaded = any(map(has_offloaded_params, model.modules()))
            whole = get_state_dict_offloaded_model if is_offloaded else self.get_state_dict
            state = whole(model)
        if self._context.is_writer:
            _save_model(state, Path(save_directory), max_shard_size, safe_serialization)
        log_saved_model(Path(save_directory), max_shard_size, safe_serialization)

    @property
    def project_dir(self) -> str | None:
        return self.project_configuration.project_dir

    @property
    def logging_dir(self) -> str | None:
        return self.project_configuration.logging_dir

    @property
    def save_iteration(self) -> int:
        """The number of the next automatically named checkpoint."""
        return self.project_configuration.iteration

    def save_and_leave(self, output_dir: str | os.PathLike | None = None) -> NoReturn:
        """Saves a checkpoint and ends the process with an exit code that makes the launcher restart
        the job without counting a failure. The new processes resume with `load_state("latest")`. By
        default, `output_dir` is the next folder in `project_dir/checkpoints`."""
        try:
            self.wait_for_save()
        except AccelerateError as error:
            print(error, file=sys.stderr)  # The saves of this process may still succeed.
        if output_dir is None:
            output_dir = folder_to_leave(self._context)
        self.save_state(output_dir)
        # When the first process exits, the launcher stops the others.
        self.wait_for_everyone()
        self.end_training()
        sys.exit(_C.EXIT_PREEMPTED)

    # --- trackers and profiles --------------------------------------------------------------

    init_trackers = delegated_method("_trackers", Trackers.init_trackers)
    get_tracker = delegated_method("_trackers", Trackers.get_tracker)
    log = delegated_method("_trackers", Trackers.log)

    def step_times(self) -> _C.StepTimes:
        """How this thread has spent its step time since the Accelerator was created, in seconds per
        phase, measured with the host's clock. `sum` is the total over `num_steps` steps, and `last`
        contains the last steps. `summary()` describes what limits the speed."""
        return self._run.report.step_times()

    def profile(
        self, profile_handler: ProfileKwargs | None = None
    ) -> AbstractContextManager[torch.profiler.profile]:
        """Runs torch's profiler around the block, with this handler or the handler of the
        `Accelerator`. With `output_trace_dir`, each process writes its trace there."""
        return profiling(self.state, profile_handler or self.profile_handler or ProfileKwargs())


def _weight(weight: Any) -> float | torch.Tensor | None:
    """Converts the weight of a loss to the engine's type."""
    if weight is None or isinstance(weight, torch.Tensor):
        return weight
    # A one-element array is accepted like a one-element tensor.
    number = weight.item() if getattr(weight, "size", None) == 1 else weight
    is_complex = isinstance(number, numbers.Complex) and not isinstance(number, numbers.Real)
    # Strings have no such method, although `float` accepts them.
    if hasattr(number, "__float__") and not is_complex:
        with suppress(TypeError, ValueError, OverflowError):
            return float(number)
    raise UsageError(
        f"[Accelerator.backward] weight is {described(weight)}. Pass the number of samples or tokens in "
        "the loss, as a number or a tensor with one element"
    )


def _are_copies(values: Any) -> bool:
    """Whether all objects of a list, or elements of an array, are equal."""
    if hasattr(values, "ndim"):
        same = (values == values[:1]) | (values != values)
        return values.dtype.kind == "f" and bool(same.all())
    with suppress(TypeError, ValueError, RuntimeError):
        return all(value is values[0] or bool(value == values[0]) for value in values)
    return False


def _load_accelerator(arguments: dict[str, Any], of_state: dict[str, Any]) -> Accelerator:
    """Unpickles an Accelerator. Uses this process's state if there is one."""
    return Accelerator(**arguments, **({} if is_initialized() else of_state))


def _move(model: torch.nn.Module, device: torch.device, with_parameters: bool = True) -> None:
    """Like `model.to(device)`, but keeps the parameter objects on every kind of device. Optimizers
    refer to these objects, and torch creates new ones for devices that it does not list. With
    `with_parameters=False`, moves only buffers."""
    if not with_parameters:
        # Call the module's own method, which may move more than torch does.
        model._apply(lambda t: t if isinstance(t, torch.nn.Parameter) else t.to(device))
        return
    here, there = torch.empty(0), torch.empty(0, device=device)
    settings = torch.__future__
    before = settings.get_swap_module_params_on_conversion()
    if not torch._has_compatible_shallow_copy_type(here, there):
        settings.set_swap_module_params_on_conversion(True)
    try:
        model.to(device)
    finally:
        settings.set_swap_module_params_on_conversion(before)


def _warn_of_loss(what: str) -> None:
    """Warns about a loss that no prepared model computed. The original continues in this case."""
    _debug.warn(what, stacklevel=3)


def _is_scheduler(obj: Any) -> bool:
    return isinstance(obj, torch.optim.lr_scheduler.LRScheduler)


def _contexts(models: Iterable[Any]) -> list[_C.ModelContext]:
    # Gradients of modules that were not prepared are never synchronised.
    return [context for model in models if (context := context_of(model)) is not None]


def _listed(where: str, parameters: Any) -> list[torch.Tensor]:
    if isinstance(parameters, torch.Tensor):
        return [parameters]
    listed = list(parameters) if isinstance(parameters, Iterable) else [parameters]
    for parameter in listed:
        if not isinstance(parameter, torch.Tensor):
            raise UsageError(
                f"[{where}] Got {described(parameter)} as a parameter. Pass tensors, such as "
                "model.parameters()"
            )
    return listed


__getattr__ = placeholders_for(__name__)
