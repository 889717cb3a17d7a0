# SPDX-License-Identifier: Apache-2.0
"""Converts a `DeepSpeedPlugin` to the engine's sharding options, and creates the optimizer and
scheduler that its configuration names (docs/guide_sharding.md)."""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Iterable
from typing import Any

import torch

from accelerate import _C
from accelerate._base import debug as _debug
from accelerate._sharding.fully_sharded import GRADIENTS, OPTIMIZER, PARAMETERS
from accelerate.errors import UsageError
from accelerate.state import AcceleratorState, is_initialized
from accelerate.utils.dataclasses import DeepSpeedPlugin
from accelerate.utils.deepspeed import DummyOptim, DummyScheduler
from accelerate.utils.environment import parse_flag_from_env

_SWITCH = "ACCELERATE_USE_DEEPSPEED"

# The supported keys of a configuration. A trailing dot includes all nested keys. Other keys are
# rejected, because their effect is unknown.
_FOLLOWED = (
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
    "gradient_clipping",
    "optimizer.",
    "scheduler.",
    "fp16.",
    "bf16.",
    "zero_allow_untested_optimizer",
    "zero_force_ds_cpu_optimizer",
    "zero_optimization.stage",
    "zero_optimization.offload_optimizer.",
    "zero_optimization.offload_param.",
    # Always enabled: weights are returned whole and in the model's own precision.
    "zero_optimization.stage3_gather_16bit_weights_on_model_save",
    "zero_optimization.stage3_gather_fp16_weights_on_model_save",
    # Always the case.
    "zero_optimization.overlap_comm",
    "zero_optimization.contiguous_gradients",
    "zero_optimization.reduce_scatter",
    "zero_optimization.allgather_partitions",
    "zero_optimization.ignore_unused_parameters",
)
_ONLY_SPEED = (
    "steps_per_print",
    "wall_clock_breakdown",
    "dump_state",
    "memory_breakdown",
    "disable_allgather",
    "flops_profiler.",
    "comms_logger.",
    "tensorboard.",
    "wandb.",
    "comet.",
    "csv_monitor.",
    "aio.",
    "activation_checkpointing.",
    "checkpoint.",
    "zero_optimization.reduce_bucket_size",
    "zero_optimization.allgather_bucket_size",
    "zero_optimization.round_robin_gradients",
    "zero_optimization.use_multi_rank_bucket_allreduce",
    "zero_optimization.sub_group_size",
    "zero_optimization.load_from_fp32_weights",
    "zero_optimization.elastic_checkpoint",
    "zero_optimization.memory_efficient_linear",
    "zero_optimization.pipeline_loading_checkpoint",
    "zero_optimization.override_module_apply",
    "zero_optimization.log_trace_cache_warnings",
    "zero_optimization.stage3_prefetch_bucket_size",
    "zero_optimization.stage3_max_live_parameters",
    "zero_optimization.stage3_max_reuse_distance",
    "zero_optimization.stage3_param_persistence_threshold",
    "zero_optimization.stage3_model_persistence_threshold",
    "zero_optimization.stage3_module_granularity_threshold",
    "zero_optimization.stage3_use_all_reduce_for_fetch_params",
)
# Values that request nothing, in addition to those that are false.
_DEFAULTS = {
    "communication_data_type": "fp32",
    "data_types.grad_accum_dtype": "fp32",
    "gradient_predivide_factor": 1.0,
    "zero_optimization.zero_hpz_partition_size": 1,
    "zero_optimization.mics_shard_size": -1,
    "tensor_parallel.autotp_size": 1,
}


def plugins_of(given: Any, others: Any) -> DeepSpeedPlugin | dict[str, DeepSpeedPlugin] | None:
    """Returns the plugin, or several plugins by name, from either argument, an earlier Accelerator
    or the environment variables. Returns None if DeepSpeed was not requested."""
    if given is not None and others is not None:
        raise UsageError(
            "[Accelerator] You cannot pass in both `deepspeed_plugins` and `deepspeed_plugin`."
        )
    plugins = others if given is None else given
    known = AcceleratorState().deepspeed_plugins if is_initialized() else None
    if plugins is None:
        return known or (DeepSpeedPlugin() if parse_flag_from_env(_SWITCH) else None)
    if known is not None and plugins is not known:
        raise NotImplementedError(
            "[Accelerator] You cannot pass in a `deepspeed_plugin` when creating a second "
            "`Accelerator`. Please make sure the first `Accelerator` is initialized with all the "
            "plugins you want to use."
        )
    for plugin in plugins.values() if isinstance(plugins, dict) else [plugins]:
        if not isinstance(plugin, DeepSpeedPlugin):
            raise TypeError(
                "[Accelerator] `deepspeed_plugin` must be a DeepSpeedPlugin object, not a "
                f"{type(plugin).__name__}"
            )
    # Libraries check this variable.
    os.environ[_SWITCH] = "true"
    return plugins


def sharding_options(plugin: DeepSpeedPlugin, device: torch.device) -> _C.ShardingOptions:
    """Returns the engine's options. Raises a one-line error for settings that are not supported."""
    _check_config(plugin)
    options = _C.ShardingOptions()
    options.stage = plugin.zero_stage
    options.cpu_offload = _is_offloaded(plugin, device)
    return options


def reduces_each_batch(plugin: DeepSpeedPlugin) -> bool:
    """Whether only shards of gradients are kept during gradient accumulation."""
    return plugin.zero_stage >= GRADIENTS


def _leaves(node: dict[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for key, value in node.items():
        # A section with `enabled: false` requests nothing.
        if isinstance(value, dict) and value.get("enabled") is not False:
            yield from _leaves(value, f"{prefix}{key}.")
        elif not isinstance(value, dict):
            yield prefix + key, value


def _is_in(key: str, names: Iterable[str]) -> bool:
    return any(key == name or (name.endswith(".") and key.startswith(name)) for name in names)


def _check_config(plugin: DeepSpeedPlugin) -> None:
    without_effect = []
    for key, value in _leaves(plugin.deepspeed_config):
        if _is_in(key, _FOLLOWED) or not value or value in ("none", _DEFAULTS.get(key)):
            continue
        if not _is_in(key, _ONLY_SPEED):
            alike = difflib.get_close_matches(key, [*_FOLLOWED, *_ONLY_SPEED], 1, 0.9)
            raise NotImplementedError(
                f"[DeepSpeed] {key}={value} is not supported. Remove it from the configuration"
                + (f". Did you mean {alike[0]}?" if alike else "")
            )
        without_effect.append(key)
    if plugin.get_value("fp16.enabled") and plugin.get_value("fp16.loss_scale"):
        raise NotImplementedError(
            f"[DeepSpeed] fp16.loss_scale={plugin.get_value('fp16.loss_scale')} is not supported. "
            "Set it to 0 for dynamic loss scaling, or use bf16"
        )
    if plugin.enable_msamp:
        raise NotImplementedError("[DeepSpeed] MS-AMP is not supported. Use bf16")
    if without_effect:
        _debug.warn(
            "[DeepSpeed] These settings in the configuration have no effect: "
            f"{', '.join(without_effect)}",
            stacklevel=5,
        )


def _is_offloaded(plugin: DeepSpeedPlugin, device: torch.device) -> bool:
    """Whether shards are stored in host memory, which is always true on CPUs. Parameters and their
    optimizer state move together, so one of the two sections is enough."""
    is_wanted = False
    # Offloading needs at least the stage that shards the tensors, as in DeepSpeed.
    for what, lowest in (("optimizer", OPTIMIZER), ("param", PARAMETERS)):
        where = plugin.get_value(f"zero_optimization.offload_{what}.device")
        if where in (None, "none"):
            continue
        if where != "cpu":
            raise NotImplementedError(
                f"[DeepSpeed] offload_{what}_device={where} is not supported. Use cpu or none"
            )
        if plugin.zero_stage < lowest and device.type != "cpu":
            raise UsageError(
                f"[DeepSpeed] offload_{what}_device=cpu needs at least ZeRO stage {lowest}, but "
                f"zero_stage is {plugin.zero_stage}. Raise the stage, or use none"
            )
        is_wanted = True
    return is_wanted


# --- prepare ---------------------------------------------------------------------------------


def resolve(accelerator: Any, objects: tuple) -> list[Any]:
    """Fills in the values that the configuration leaves to `prepare`. Returns the objects, with
    dummies replaced by the optimizer and scheduler that the configuration names."""
    plugin = accelerator.deepspeed_plugin
    _resolve_batch_sizes(accelerator, plugin, objects)
    optimizer = _one_of(objects, (torch.optim.Optimizer, DummyOptim))
    scheduler = _one_of(objects, (torch.optim.lr_scheduler.LRScheduler, DummyScheduler))
    _check_pair(plugin, optimizer, scheduler)
    model = _one_of(objects, torch.nn.Module)
    if model is not None:
        _fill(accelerator, plugin, model, optimizer, scheduler)
    made: dict[int, Any] = {}
    if isinstance(optimizer, DummyOptim):
        made[id(optimizer)] = _optimizer_of(plugin, optimizer)
    if isinstance(scheduler, DummyScheduler):
        driven = made.get(id(scheduler.optimizer), scheduler.optimizer)
        made[id(scheduler)] = _scheduler_of(plugin, scheduler, driven)
    return [made.get(id(obj), obj) for obj in objects]


def _one_of(objects: tuple, kind: Any) -> Any:
    # Objects that were prepared earlier have already been checked.
    found = [
        obj
        for obj in objects
        if isinstance(obj, kind) and not getattr(obj, "_is_accelerate_prepared", False)
    ]
    return found[-1] if found else None


def _resolve_batch_sizes(accelerator: Any, plugin: DeepSpeedPlugin, objects: tuple) -> None:
    plugin.fill_match(
        "gradient_accumulation_steps",
        must_match=False,
        gradient_accumulation_steps=accelerator.gradient_accumulation_steps,
    )
    num_steps = plugin.get_value("gradient_accumulation_steps")
    if num_steps != accelerator.gradient_accumulation_steps:
        _debug.warn(
            "[prepare] Gradient accumulation steps mismatch: GradientAccumulationPlugin has "
            f"{accelerator.gradient_accumulation_steps}, DeepSpeed config has {num_steps}. Using "
            "DeepSpeed's value.",
            stacklevel=5,
        )
        accelerator.gradient_accumulation_steps = num_steps
    config = plugin.deepspeed_config
    sizes = [obj.batch_size for obj in objects if getattr(obj, "batch_size", None) is not None]
    if plugin.is_auto("train_micro_batch_size_per_gpu") and sizes:
        size = min(sizes) if plugin.is_train_batch_min else max(sizes)
        num_shards = accelerator.num_processes if accelerator.split_batches else 1
        config["train_micro_batch_size_per_gpu"] = size // num_shards
    size = plugin.get_value("train_micro_batch_size_per_gpu")
    if not isinstance(size, int):
        return
    together = size * num_steps * accelerator.num_processes
    if plugin.is_auto("train_batch_size"):
        config["train_batch_size"] = together
    elif config.get("train_batch_size", together) != together:
        raise UsageError(
            f"[DeepSpeed] train_batch_size is {config['train_batch_size']}, but {size} samples "
            f"(train_micro_batch_size_per_gpu) x {num_steps} (gradient_accumulation_steps) x "
            f"{accelerator.num_processes} processes make {together}. Set it to auto"
        )


def _check_pair(plugin: DeepSpeedPlugin, optimizer: Any, scheduler: Any) -> None:
    """Applies the original's rules for combining objects in code with those in the
    configuration."""
    config = plugin.deepspeed_config
    is_dummy = isinstance(optimizer, DummyOptim)
    if optimizer is not None and is_dummy != ("optimizer" in config):
        raise ValueError(
            "[DeepSpeed] You cannot create a `DummyOptim` without specifying an optimizer in the "
            "config file."
            if is_dummy
            else "[DeepSpeed] You cannot specify an optimizer in the config file and in the code at "
            "the same time. Please remove the optimizer from the config file or create "
            "`accelerate.utils.DummyOptim` in the code."
        )
    if scheduler is None:
        return
    if not isinstance(scheduler, DummyScheduler):
        if "scheduler" in config:
            raise ValueError(
                "[DeepSpeed] You cannot specify a scheduler in the config file and in the code at "
                "the same time. Please remove the scheduler from the config file or create "
                "`accelerate.utils.DummyScheduler` in the code."
            )
        if is_dummy:
            raise ValueError(
                "[DeepSpeed] You can only specify `accelerate.utils.DummyScheduler` in the code "
                "when using `accelerate.utils.DummyOptim`."
            )
    elif "scheduler" not in config and scheduler.lr_scheduler_callable is None:
        raise ValueError(
            "[DeepSpeed] Either specify a scheduler in the config file or pass in the "
            "`lr_scheduler_callable` parameter when using `accelerate.utils.DummyScheduler`."
        )


def _fill(
    accelerator: Any,
    plugin: DeepSpeedPlugin,
    model: torch.nn.Module,
    optimizer: Any,
    scheduler: Any,
) -> None:
    zero = "zero_optimization."
    values: dict[str, Any] = {
        "gradient_clipping": 1.0,
        f"{zero}stage3_gather_16bit_weights_on_model_save": False,
    }
    # These keys stay unset without a loader.
    for key in ("train_batch_size", "train_micro_batch_size_per_gpu"):
        values[key] = plugin.get_value(key)
    config = getattr(model, "config", None)
    width = getattr(config, "hidden_size", None) or max(
        getattr(config, "hidden_sizes", None) or [0]
    )
    # These keys have no effect. They are set for code that reads them.
    values[f"{zero}reduce_bucket_size"] = width * width
    values[f"{zero}stage3_prefetch_bucket_size"] = int(0.9 * width * width)
    values[f"{zero}stage3_param_persistence_threshold"] = 10 * width
    if isinstance(optimizer, DummyOptim):
        values["optimizer.params.lr"] = optimizer.lr
        values["optimizer.params.weight_decay"] = optimizer.weight_decay
    if isinstance(scheduler, DummyScheduler):
        driven = scheduler.optimizer
        defaults = getattr(driven, "defaults", None)
        values["scheduler.params.warmup_min_lr"] = 0
        values["scheduler.params.warmup_max_lr"] = (
            getattr(driven, "lr", None) if defaults is None else defaults["lr"]
        )
        values["scheduler.params.warmup_num_steps"] = max(1, scheduler.warmup_num_steps)
        if scheduler.total_num_steps is not None:
            num_moves = 1 if accelerator.split_batches else accelerator.num_processes
            values["scheduler.params.total_num_steps"] = math.ceil(
                scheduler.total_num_steps / num_moves
            )
    plugin.deepspeed_config_process(must_match=False, **values)


def _optimizer_of(plugin: DeepSpeedPlugin, dummy: DummyOptim) -> torch.optim.Optimizer:
    """Returns the optimizer of the section `optimizer`, which is one of DeepSpeed's variants of
    Adam or a class of torch."""
    section = plugin.deepspeed_config["optimizer"]
    name, options = section.get("type"), dict(section.get("params", {}))
    if str(name).lower() in ("adam", "adamw"):
        # DeepSpeed's Adam uses decoupled weight decay unless this is disabled. The default decay is
        # 0.
        is_decoupled = options.pop("adam_w_mode", True) or str(name).lower() == "adamw"
        if not options.pop("torch_adam", False):
            options.setdefault("weight_decay", 0.0)
        kind: Any = torch.optim.AdamW if is_decoupled else torch.optim.Adam
    else:
        kind = getattr(torch.optim, str(name), None)
    if not (isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)):
        raise NotImplementedError(
            f"[DeepSpeed] The optimizer {name} is not supported in the configuration. Use Adam, "
            "AdamW or a class from torch.optim. Otherwise, create the optimizer in the code, and "
            "remove the section 'optimizer' from the configuration"
        )
    try:
        return kind(dummy.params, **options)
    except TypeError as error:
        raise UsageError(
            f"[DeepSpeed] Cannot create the optimizer {name} with {options}: {error}. Correct the "
            "section 'optimizer' of the configuration"
        ) from error


def _scheduler_of(plugin: DeepSpeedPlugin, dummy: DummyScheduler, driven: Any) -> Any:
    driven = getattr(driven, "optimizer", driven)
    if dummy.lr_scheduler_callable is not None:
        return dummy.lr_scheduler_callable(driven)
    section = plugin.deepspeed_config["scheduler"]
    name, options = section.get("type"), dict(section.get("params", {}))
    kinds = {"WarmupLR": WarmupLR, "WarmupDecayLR": WarmupDecayLR}
    if name not in kinds:
        raise NotImplementedError(
            f"[DeepSpeed] The scheduler {name} is not supported. Use one of {', '.join(kinds)}. "
            "Otherwise, pass lr_scheduler_callable to DummyScheduler, and remove the section "
            "'scheduler' from the configuration"
        )
    try:
        return kinds[name](driven, **options)
    except TypeError as error:
        raise UsageError(
            f"[DeepSpeed] Cannot create the scheduler {name} with {options}: {error}. Correct the "
            "section 'scheduler' of the configuration"
        ) from error


class WarmupLR(torch.optim.lr_scheduler.LRScheduler):
    """DeepSpeed's `WarmupLR`. The learning rate changes from one value to another in
    `warmup_num_steps` updates, logarithmically or linearly, and is then constant. As in DeepSpeed,
    the second update still uses the first learning rate."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        warmup_min_lr: float = 0.0,
        warmup_max_lr: float = 0.001,
        warmup_num_steps: int = 1000,
        warmup_type: str = "log",
        last_batch_iteration: int = -1,
    ) -> None:
        if warmup_type not in ("log", "linear"):
            raise UsageError(f"[DeepSpeed] warmup_type is {warmup_type}, expected log or linear")
        self.warmup_min_lr = warmup_min_lr
        self.warmup_max_lr = warmup_max_lr
        # log(1) would cause a division by zero.
        self.warmup_num_steps = max(2, warmup_num_steps)
        self.warmup_type = warmup_type
        super().__init__(optimizer, last_batch_iteration)

    def get_lr(self) -> list[float]:
        # torch counts the initial state as a step.
        fraction = self._fraction(max(0, self.last_epoch - 1))
        rate = self.warmup_min_lr + (self.warmup_max_lr - self.warmup_min_lr) * fraction
        return [rate for _ in self.optimizer.param_groups]

    def _fraction(self, step: int) -> float:
        if step >= self.warmup_num_steps:
            return self._fraction_after(step)
        if self.warmup_type == "linear":
            return step / self.warmup_num_steps
        return math.log(step + 1) / math.log(self.warmup_num_steps)

    def _fraction_after(self, step: int) -> float:
        return 1.0


class WarmupDecayLR(WarmupLR):
    """DeepSpeed's `WarmupDecayLR`. Like `WarmupLR`, but after the warm-up, the learning rate decays
    linearly to zero at `total_num_steps`."""

    def __init__(
        self, optimizer: torch.optim.Optimizer, total_num_steps: int, **options: Any
    ) -> None:
        self.total_num_steps = total_num_steps
        super().__init__(optimizer, **options)

    def _fraction_after(self, step: int) -> float:
        left = self.total_num_steps - step
        return max(0.0, left / max(1.0, self.total_num_steps - self.warmup_num_steps))
