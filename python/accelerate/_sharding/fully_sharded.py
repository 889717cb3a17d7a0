# SPDX-License-Identifier: Apache-2.0
"""Converts a `FullyShardedDataParallelPlugin` to the engine's sharding options
(docs/guide_sharding.md)."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any

import torch

from accelerate import _C
from accelerate._base import debug as _debug
from accelerate._plugins.active import given_policy
from accelerate.errors import UsageError
from accelerate.utils.dataclasses import FullyShardedDataParallelPlugin
from accelerate.utils.environment import parse_flag_from_env

_SWITCH = "ACCELERATE_USE_FSDP"
# Stages, numbered as in the engine and in DeepSpeed.
OPTIMIZER, GRADIENTS, PARAMETERS = 1, 2, 3


def plugin_of(given: Any) -> FullyShardedDataParallelPlugin | None:
    """Returns the plugin from the argument or from the environment variables, or None if nothing is
    sharded."""
    if given is None:
        return FullyShardedDataParallelPlugin() if parse_flag_from_env(_SWITCH) else None
    if not isinstance(given, FullyShardedDataParallelPlugin):
        raise TypeError(
            "[Accelerator] `fsdp_plugin` must be a FullyShardedDataParallelPlugin object, not a "
            f"{type(given).__name__}"
        )
    # transformers checks this variable when it loads weights.
    os.environ[_SWITCH] = "true"
    return given


def sharding_options(
    plugin: FullyShardedDataParallelPlugin,
    device: torch.device,
    mixed_precision: str,
) -> _C.ShardingOptions:
    """Returns the engine's options. Raises a one-line error for settings that are not supported."""
    _refuse_what_is_not_there(plugin)
    _check_precision(plugin, mixed_precision)
    options = _C.ShardingOptions()
    options.stage = _stage_of(plugin)
    if plugin.auto_wrap_policy is not None:
        options.min_unit_numbers = 0  # Units of a policy may have any size.
    options.reduce_dtype = _reduce_dtype(plugin)
    options.cpu_offload = _is_offloaded(plugin, device)
    return options


def _is_offloaded(plugin: FullyShardedDataParallelPlugin, device: torch.device) -> bool:
    """Whether shards are stored in host memory, which is always true on CPUs."""
    from torch.distributed.fsdp import CPUOffloadPolicy

    policy = plugin.cpu_offload
    is_wanted = isinstance(policy, CPUOffloadPolicy) or getattr(policy, "offload_params", False)
    if is_wanted and device.type != "cpu" and _stage_of(plugin) == 0:
        raise UsageError(
            "[FSDP] cpu_offload has no effect with NO_SHARD, which shards nothing. Use "
            "SHARD_GRAD_OP or FULL_SHARD"
        )
    return is_wanted


def is_hybrid(plugin: FullyShardedDataParallelPlugin) -> bool:
    """Whether every machine has a complete, sharded copy of the model."""
    return plugin.fsdp_version != 2 and "HYBRID" in plugin.sharding_strategy.name


def shard_size(plugin: FullyShardedDataParallelPlugin, environment: _C.ProcessEnvironment) -> int:
    """Returns the number of processes that share one copy of the model, which are the processes of
    one machine."""
    num_all, num_here = environment.world_size, environment.local_world_size
    if num_all % num_here != 0:
        raise UsageError(
            f"[FSDP] sharding_strategy={plugin.sharding_strategy.name} needs the same number of "
            f"processes on each machine, but this machine has {num_here} of {num_all} processes. "
            "Use FULL_SHARD"
        )
    return num_here


def _stage_of(plugin: FullyShardedDataParallelPlugin) -> int:
    if plugin.fsdp_version == 2:
        return PARAMETERS if plugin.reshard_after_forward else GRADIENTS
    name = plugin.sharding_strategy.name
    stages = {
        "NO_SHARD": 0,
        "SHARD_GRAD_OP": GRADIENTS,
        "_HYBRID_SHARD_ZERO2": GRADIENTS,
        "HYBRID_SHARD": PARAMETERS,
        "FULL_SHARD": PARAMETERS,
    }
    return stages[name]


def _refuse_what_is_not_there(plugin: FullyShardedDataParallelPlugin) -> None:
    given = {
        "param_init_fn is not supported. Leave it out. "
        "Parameters on the meta device receive the values of "
        "process 0": plugin.param_init_fn is not None,
        "activation_checkpointing_offload is not supported. Leave it out": (
            bool(plugin.activation_checkpointing_offload)
        ),
        "state_dict_type=LOCAL_STATE_DICT is not supported. Use FULL_STATE_DICT or "
        "SHARDED_STATE_DICT": plugin.state_dict_type.name == "LOCAL_STATE_DICT",
    }
    for what, is_given in given.items():
        if is_given:
            raise NotImplementedError(f"[FSDP] {what}")


def gathers_bf16(plugin: FullyShardedDataParallelPlugin) -> bool:
    """Whether the model reads (and gathers) bf16 weights while fp32 shards are trained."""
    return getattr(given_policy(plugin), "param_dtype", None) == torch.bfloat16


def _reduces_in_trained_dtype(plugin: FullyShardedDataParallelPlugin) -> bool:
    """Whether gradients are reduced in the dtype of the parameters instead of `param_dtype` if the
    policy has no `reduce_dtype`. FSDP2 has done this since torch 2.15."""
    return plugin.fsdp_version == 2 and torch.__version__ >= (2, 15)


def _reduce_dtype(plugin: FullyShardedDataParallelPlugin) -> str:
    policy = given_policy(plugin)
    wanted = policy and policy.reduce_dtype
    if policy and wanted is None and not _reduces_in_trained_dtype(plugin):
        wanted = policy.param_dtype
    if wanted != torch.bfloat16:
        return "no"
    if _stage_of(plugin) == 0:
        raise UsageError(
            "[FSDP] A mixed_precision_policy that reduces in bf16 does not work with NO_SHARD, "
            "which shards nothing. Use SHARD_GRAD_OP, or leave the policy out"
        )
    return "bf16"


def _check_precision(plugin: FullyShardedDataParallelPlugin, mixed_precision: str) -> None:
    policy = plugin.mixed_precision_policy
    wanted = getattr(policy, "param_dtype", None)
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(mixed_precision, torch.float32)
    if wanted not in (None, dtype):
        raise UsageError(
            f"[FSDP] The mixed_precision_policy computes in {wanted}, but the run computes in "
            f"{dtype}. Pass mixed_precision to the Accelerator, and leave the policy out"
        )
    if not gathers_bf16(plugin):
        return
    casts_inputs = "cast_forward_inputs" if plugin.fsdp_version == 2 else "cast_root_forward_inputs"
    for field, expected in ((casts_inputs, True), ("keep_low_precision_grads", False)):
        if getattr(policy, field, expected) != expected:
            raise NotImplementedError(
                f"[FSDP] A mixed_precision_policy with {field}={not expected} is not supported. "
                f"Leave it {expected}"
            )
    if plugin.ignored_modules is not None:
        raise NotImplementedError(
            "[FSDP] ignored_modules does not work with a mixed_precision_policy whose param_dtype "
            "is bf16. Leave param_dtype out"
        )


# --- models ----------------------------------------------------------------------------------


def materialise(model: torch.nn.Module, device: torch.device, is_main_process: bool) -> None:
    """Allocates parameters that are on the meta device, with the values that the main process has
    loaded (`cpu_ram_efficient_loading`). The parameter objects stay the same, because optimizers
    refer to them and modules share them."""
    absent = [name for name, parameter in model.named_parameters() if parameter.is_meta]
    if absent and is_main_process:
        raise UsageError(
            f"[prepare] '{absent[0]}' is on the meta device on process 0, which provides the "
            "values for all processes. Load the weights on process 0 before prepare()"
        )
    for submodule in model.modules():
        for tensor in (*submodule._parameters.values(), *submodule._buffers.values()):
            if tensor is None or not tensor.is_meta:
                continue
            if isinstance(tensor, torch.nn.Parameter):
                # Host memory takes up no physical memory until it is written.
                made: Any = torch.empty_like(tensor, device=device)
                made = torch.nn.Parameter(made, requires_grad=tensor.requires_grad)
            else:
                made = torch.zeros_like(tensor, device=device)
            torch.utils.swap_tensors(tensor, made)


def units_of(plugin: FullyShardedDataParallelPlugin, model: torch.nn.Module) -> list[str]:
    """Returns the names of the modules that are shard units. Also enables activation checkpointing
    in them if the plugin requests it."""
    plugin.set_auto_wrap_policy(model)
    units = _wrapped(model, plugin.auto_wrap_policy)
    if plugin.activation_checkpointing:
        if not units:
            raise UsageError(
                "[prepare] activation_checkpointing found no blocks to recompute. Set an "
                "auto_wrap_policy that finds them, such as TRANSFORMER_BASED_WRAP"
            )
        _recompute(units.values())
    # Skip modules without parameters of their own. Only the first name of a parameter is used.
    names = [name for name, _ in model.named_parameters()]
    return [unit for unit in units if any(name.startswith(f"{unit}.") for name in names)]


def whole_of(plugin: FullyShardedDataParallelPlugin | None, model: torch.nn.Module) -> list[str]:
    """Returns the names of the parameters in `ignored_modules`. The plugin contains modules, or a
    pattern of module names."""
    ignored = None if plugin is None else plugin.ignored_modules
    if ignored is None:
        return []
    if isinstance(ignored, str):
        try:
            pattern = re.compile(ignored)
        except re.error as error:
            raise UsageError(
                f"[FSDP] ignored_modules is {ignored!r}, which is not a valid regular expression "
                f"for module names: {error}. Correct the expression"
            ) from None
        found = [submodule for name, submodule in model.named_modules() if pattern.fullmatch(name)]
    else:
        # Some of the modules may belong to another model.
        submodules = set(model.modules())
        found = [submodule for submodule in ignored if submodule in submodules]
    chosen = {id(parameter) for submodule in found for parameter in submodule.parameters()}
    names = [name for name, parameter in model.named_parameters() if id(parameter) in chosen]
    if not names:
        _debug.warn(
            f"[prepare] ignored_modules matches no parameter of this {type(model).__name__}, so "
            "the whole model is sharded. Check the modules or the pattern",
            stacklevel=4,
        )
    return names


def _wrapped(model: torch.nn.Module, policy: Any) -> dict[str, torch.nn.Module]:
    """Returns the modules that torch's FSDP would wrap with this policy, by name."""
    if policy is None:
        return {}
    names = {child: name for name, child in model.named_modules()}
    found: list[torch.nn.Module] = []
    if hasattr(policy, "_run_policy"):  # One of torch's policies that are not functions.
        found = [child for child in policy._run_policy(model, set(), {}) if child is not model]
    else:
        _walk(model, policy, found, is_root=True)
    return {names[child]: child for child in found}


def _walk(
    module: torch.nn.Module, policy: Callable, found: list[torch.nn.Module], is_root: bool = False
) -> int:
    """Applies the policy to all modules, innermost first, like torch. The policy receives the
    number of elements that no inner module has been assigned. Returns the number of assigned
    elements."""
    num_all = sum(parameter.numel() for parameter in module.parameters())
    if not policy(module=module, recurse=True, nonwrapped_numel=num_all):
        return 0
    num_taken = sum(_walk(child, policy, found) for child in module.children())
    if is_root or not policy(module=module, recurse=False, nonwrapped_numel=num_all - num_taken):
        return num_taken
    found.append(module)
    return num_all


def _recompute(modules: Any) -> None:
    from torch.distributed._composable import checkpoint

    for module in modules:
        # Wrap a module only once, even if the model is prepared several times.
        if not hasattr(module, "_is_accelerate_recomputed"):
            checkpoint(module)
            module._is_accelerate_recomputed = True
