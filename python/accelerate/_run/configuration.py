# SPDX-License-Identifier: Apache-2.0
"""The configuration that libraries read from an `Accelerator`. For engines that this package does
not include, the value is None, False or NO. Reading a value never raises an error."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from accelerate import _C
from accelerate._base import debug as _debug
from accelerate._models.run_context import RunContext
from accelerate._sharding import deepspeed as _deepspeed
from accelerate._sharding import fully_sharded as _fully_sharded
from accelerate.errors import UsageError
from accelerate.parallelism_config import ParallelismConfig
from accelerate.state import AcceleratorState
from accelerate.utils.dataclasses import (
    AORecipeKwargs,
    AutocastKwargs,
    DataLoaderConfiguration,
    DeepSpeedPlugin,
    DistributedDataParallelKwargs,
    DynamoBackend,
    FP8BackendType,
    FP8RecipeKwargs,
    GradScalerKwargs,
    InitProcessGroupKwargs,
    KwargsHandler,
    MSAMPRecipeKwargs,
    PrecisionType,
    ProfileKwargs,
    TERecipeKwargs,
    TorchDynamoPlugin,
    TorchTensorParallelPlugin,
)
from accelerate.utils.environment import parse_choice_from_env, parse_flag_from_env

_HANDLERS = {
    "autocast_handler": AutocastKwargs,
    "ddp_handler": DistributedDataParallelKwargs,
    "init_handler": InitProcessGroupKwargs,
    "profile_handler": ProfileKwargs,
    "scaler_handler": GradScalerKwargs,
}
_FP8_HANDLERS = {
    "fp8_recipe_handler": FP8RecipeKwargs,
    "ao_recipe_handler": AORecipeKwargs,
    "te_recipe_handler": TERecipeKwargs,
    "msamp_recipe_handler": MSAMPRecipeKwargs,
}


def checked_precision(mixed_precision: PrecisionType | str | None) -> str | None:
    """Returns the name of the precision. Raises an error if no release of Hugging Face Accelerate
    knows this name."""
    if mixed_precision is None:
        return None
    name = str(mixed_precision)
    if name not in PrecisionType:
        supported = [mode for mode in PrecisionType.list() if mode != "fp8"]
        raise UsageError(
            f"[Accelerator] Unknown mixed_precision mode: {name}. Choose between {supported}"
        )
    return name


def dynamo_plugin_of(
    backend: DynamoBackend | str | None, plugin: TorchDynamoPlugin | None
) -> TorchDynamoPlugin:
    """Returns how models are compiled, as set by either argument or by the environment
    variables."""
    if backend is not None and plugin is not None:
        raise UsageError(
            "[Accelerator] You cannot pass in both `dynamo_plugin` and `dynamo_backend`. Pass "
            "only one of them."
        )
    return plugin or TorchDynamoPlugin(backend=backend)


def parallelism_config_of(
    config: ParallelismConfig | None, tp_plugin: TorchTensorParallelPlugin | None
) -> ParallelismConfig | None:
    """Returns the configuration that either argument or the environment variables set."""
    if config is None and tp_plugin is not None:
        return ParallelismConfig(tp_size=tp_plugin.tp_size)
    if config is None and parse_flag_from_env("ACCELERATE_USE_PARALLELISM_CONFIG"):
        return ParallelismConfig()
    return config


class Configuration:
    """The part of an `Accelerator` that exposes its configuration."""

    state: AcceleratorState
    dataloader_config: DataLoaderConfiguration
    _run: _C.TrainingRun
    _context: RunContext

    has_lomo_optimizer = delayed_fp8_autocast = fp8_enabled = False

    def _keep_handlers(self, handlers: dict[type, KwargsHandler]) -> None:
        for name, kind in {**_HANDLERS, **_FP8_HANDLERS}.items():
            setattr(self, name, handlers.get(kind))
        self.has_fp8_handler = any(kind in handlers for kind in _FP8_HANDLERS.values())
        if self.has_fp8_handler:
            raise UsageError(
                "[Accelerator] Passing in an FP8 configuration requires setting "
                "`mixed_precision='fp8'`, which is not supported. Leave out the FP8 configuration "
                "and use bf16"
            )

    def _size_mesh(self, options: _C.AcceleratorOptions) -> None:
        """Sets the number of processes along each dimension."""
        config, plugin = self.parallelism_config, self.state.fsdp_plugin
        if plugin is not None and _fully_sharded.is_hybrid(plugin):
            size = _fully_sharded.shard_size(plugin, self.state.environment)
            options.parallelism = _C.MeshSizes(shard=size)
        if config is not None:
            config._validate_accelerator(self)
            # If the configuration has no dimensions of its own, FSDP version 1 and DeepSpeed shard
            # over all processes, as in the original.
            has_own = config.dp_shard_enabled or config.non_data_parallel_size > 1
            if has_own or not self._context.is_sharded:
                options.parallelism = config._mesh_sizes()
            elif plugin is None or not _fully_sharded.is_hybrid(plugin):
                # Set explicitly, because the engine reads the launcher's sizes only for C++
                # programs.
                options.parallelism = _C.MeshSizes(replicate=1)

    def _shard_options(self, options: _C.AcceleratorOptions) -> None:
        """Sets what the run shards, and how."""
        self._spreads = self._gathers_bf16 = False
        self._deepspeed_plugin = self.state.deepspeed_plugin
        if self._deepspeed_plugin is not None:
            shard = _deepspeed.sharding_options(self._deepspeed_plugin, self.state.device)
            if _deepspeed.reduces_each_batch(self._deepspeed_plugin):
                options.accumulation.sync_each_batch = True
        elif self.state.fsdp_plugin is not None:
            shard = _fully_sharded.sharding_options(
                self.state.fsdp_plugin, self.state.device, self.mixed_precision
            )
            self._gathers_bf16 = _fully_sharded.gathers_bf16(self.state.fsdp_plugin)
            options.master_weights = self._has_masters = self._has_masters or self._gathers_bf16
        else:
            return
        self._context.is_sharded = shard.stage > 0
        # Whether parameters are also sharded. A single process has whole parameters.
        self._spreads = shard.stage == _fully_sharded.PARAMETERS and not self.state.group.is_solo
        if self._context.is_sharded and options.ddp.compression != _C.Compression.none:
            raise UsageError(
                "[Accelerator] A comm_hook does not work with sharded models. Leave one of them out"
            )
        options.shard = shard

    @property
    def is_fsdp2(self) -> bool:
        return self.state.is_fsdp2

    @property
    def is_composable_parallelism_enabled(self) -> bool:
        return self.is_fsdp2

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

    @property
    def _computes_in(self) -> str:
        """The precision of prepared models. CPUs do not support fp16."""
        is_lacking = self.mixed_precision == "fp16" and self.state.device.type == "cpu"
        return "no" if is_lacking else self.mixed_precision

    def _engine_precision(self) -> str:
        """Returns the engine's name for the precision."""
        if self._computes_in != self.mixed_precision:
            _debug.warn(
                "[Accelerator] fp16 mixed precision requires a GPU (not 'cpu'), so this run "
                "computes in fp32. Use bf16 on a CPU",
                stacklevel=3,
            )
        # The engine scales losses whenever it computes in fp16.
        is_scaled = self.scaler_handler is None or self.scaler_handler.enabled
        return self._computes_in if is_scaled or self.mixed_precision != "fp16" else "no"

    @property
    def mixed_precision(self) -> str:
        return self.state.mixed_precision

    @property
    def scaler(self) -> _C.GradScaler | None:
        """The loss scaler for fp16. None in other precisions. It has torch's methods `get_scale`,
        `state_dict` and `load_state_dict`."""
        return self._run.scaler

    @property
    def deepspeed_plugin(self) -> DeepSpeedPlugin | None:
        return self.state.deepspeed_plugin

    @property
    def fp8_backend(self) -> FP8BackendType:
        return FP8BackendType(parse_choice_from_env("ACCELERATE_FP8_BACKEND", "NO"))

    @property
    def parallelism_config(self) -> ParallelismConfig | None:
        return self.state.parallelism_config

    @property
    def torch_device_mesh(self) -> Any:
        return self.state.device_mesh

    @property
    def should_save_model(self) -> bool:
        """Whether this process must save a part of the model."""
        return self.parallelism_config is not None or self.state.is_local_main_process

    def _rank_along(self, dimension: str, words: str) -> int:
        config = self.parallelism_config
        if config is None:
            raise RuntimeError(f"{words} is not configured. Set `parallelism_config` first.")
        if not getattr(config, f"{dimension}_enabled"):
            return 0
        return self.torch_device_mesh.get_local_rank(dimension)

    @property
    def tensor_parallel_rank(self) -> int:
        return self._rank_along("tp", "Tensor parallelism")

    @property
    def data_parallel_rank(self) -> int:
        return self._rank_along("dp_replicate", "Data parallelism")

    @property
    def data_parallel_shard_rank(self) -> int:
        return self._rank_along("dp_shard", "Shard-based data parallelism")

    @property
    def pipeline_parallel_rank(self) -> int:
        raise NotImplementedError(
            "[Accelerator] Pipeline parallelism is currently not supported in Accelerate."
        )

    @property
    def context_parallel_rank(self) -> int:
        raise NotImplementedError(
            "[Accelerator] Context parallelism is currently not supported in Accelerate."
        )

    def maybe_context_parallel(
        self,
        buffers: Sequence[torch.Tensor] | None = None,
        buffer_seq_dims: Sequence[int] | None = None,
        no_restore_buffers: set[torch.Tensor] | None = None,
    ) -> AbstractContextManager[None]:
        """Does nothing. The original splits sequences over processes here, which is not
        supported."""
        return nullcontext()

    def deepspeed_ulysses_dl_adapter(self, dl: Any, model: torch.nn.Module) -> Any:
        """Returns the loader, because sequences are not split over processes."""
        return dl

    def lomo_backward(self, loss: torch.Tensor, learning_rate: float) -> None:
        raise NotImplementedError(
            "[lomo_backward] LOMO optimizers are not supported. Use an optimizer of torch.optim"
        )

    def verify_device_map(self, model: torch.nn.Module) -> bool:
        """Whether the modules of the model are distributed over several devices."""
        return any(len(getattr(m, "hf_device_map", None) or ()) > 1 for m in model.modules())

    def _stays_where_it_is(self, model: torch.nn.Module) -> bool:
        """Whether the model must stay on its devices, because `device_map` has placed it there or
        because it is quantized. Raises an error if the run has several processes, which cannot
        train such a model."""
        is_spread = self.verify_device_map(model)
        is_quantized = getattr(model, "is_loaded_in_8bit", False) or getattr(
            model, "is_loaded_in_4bit", False
        )
        may_be_spread = os.environ.get("ACCELERATE_BYPASS_DEVICE_MAP", "false") == "true"
        if is_spread and self.state.use_distributed and not may_be_spread:
            raise UsageError(
                "[prepare] You can't train a model that has been loaded with `device_map='auto'` "
                "in any distributed mode. Load it without device_map, or start a single process"
            )
        return is_spread or bool(is_quantized and getattr(model, "hf_device_map", None))
