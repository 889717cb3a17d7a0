# SPDX-License-Identifier: Apache-2.0
"""Converts the arguments of `Accelerator` to options of the engine."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from accelerate import _C
from accelerate._base.checked_values import described
from accelerate.errors import UsageError
from accelerate.utils.dataclasses import (
    AORecipeKwargs,
    AutocastKwargs,
    DDPCommunicationHookType,
    DistributedDataParallelKwargs,
    EngineKwargs,
    FP8RecipeKwargs,
    GradientAccumulationPlugin,
    GradScalerKwargs,
    InitProcessGroupKwargs,
    KwargsHandler,
    MSAMPRecipeKwargs,
    ProfileKwargs,
    TERecipeKwargs,
)
from accelerate.utils.environment import parse_flag_from_env, str_to_bool

_HANDLERS = (
    AORecipeKwargs,
    AutocastKwargs,
    DistributedDataParallelKwargs,
    EngineKwargs,
    FP8RecipeKwargs,
    GradScalerKwargs,
    InitProcessGroupKwargs,
    MSAMPRecipeKwargs,
    ProfileKwargs,
    TERecipeKwargs,
)
_OF_DDP = "DistributedDataParallelKwargs"
# Environment variables with which a launcher requests features that must not be ignored silently.
_SWITCHES = {
    "ACCELERATE_USE_MEGATRON_LM": "Megatron-LM",
}


def refuse_what_is_not_there(arguments: dict[str, Any]) -> None:
    """Raises an error if an argument or environment variable requests something that is not
    supported."""
    for name, value in arguments.items():
        if value is not None:
            raise NotImplementedError(
                f"[Accelerator] The argument {name} is not supported. Leave it out. "
                "docs/guide_python.md lists the supported arguments"
            )
    for variable, what in _SWITCHES.items():
        if str_to_bool(os.environ.get(variable) or "false"):
            raise NotImplementedError(
                f"[Accelerator] {variable}={os.environ[variable]} requests {what}, which is not "
                "supported. Unset it"
            )


def sort_handlers(handlers: list[KwargsHandler] | None) -> dict[type, KwargsHandler]:
    """Returns the handlers by class. Raises an error for duplicate and unknown handlers."""
    found: dict[type, KwargsHandler] = {}
    if handlers is not None and not isinstance(handlers, Iterable):
        raise UsageError(
            f"[Accelerator] kwargs_handlers is of type {type(handlers).__name__}. Pass a list of "
            "handlers"
        )
    for handler in handlers or ():
        if not isinstance(handler, _HANDLERS):
            raise UsageError(
                f"[Accelerator] Unsupported kwargs handler passed: {handler}. It must inherit from "
                "`accelerate.utils.KwargsHandler`. Expected one of: "
                f"{', '.join(kind.__name__ for kind in _HANDLERS)}"
            )
        if type(handler) in found:
            raise UsageError(
                f"[Accelerator] You can only pass one {type(handler)} in `kwargs_handlers`."
            )
        found[type(handler)] = handler
    return found


def ddp_options(handler: DistributedDataParallelKwargs | None) -> _C.DdpOptions:
    """Returns the options of the handler, or torch's defaults if there is no handler."""
    handler = handler or DistributedDataParallelKwargs()
    if handler.dim != 0 or handler.check_reduction:
        raise UsageError(
            f"[{_OF_DDP}] dim and check_reduction are not supported. Leave them at their defaults"
        )
    options = _C.DdpOptions()
    names = (
        "broadcast_buffers",
        "bucket_cap_mb",
        "find_unused_parameters",
        "gradient_as_bucket_view",
        "static_graph",
    )
    put(_OF_DDP, options, {name: getattr(handler, name) for name in names})
    options.compression = _compression(handler)
    if options.compression == _C.Compression.power_sgd:
        chosen = handler.comm_state_option
        if not isinstance(chosen, Mapping):
            raise UsageError(
                f"[{_OF_DDP}] comm_state_option is {described(chosen)}. Pass a dictionary of options"
            )
        for name in chosen:
            if not hasattr(options.power_sgd, name):
                known = (known for known in dir(options.power_sgd) if not known.startswith("_"))
                raise UsageError(
                    f"[{_OF_DDP}] Unknown PowerSGD option '{name}'. Expected one of: "
                    f"{', '.join(known)}"
                )
        put(_OF_DDP, options.power_sgd, chosen)
    return options


def _compression(handler: DistributedDataParallelKwargs) -> _C.Compression:
    known = {
        DDPCommunicationHookType.NO: _C.Compression.none,
        DDPCommunicationHookType.FP16: _C.Compression.fp16,
        DDPCommunicationHookType.BF16: _C.Compression.bf16,
        DDPCommunicationHookType.POWER_SGD: _C.Compression.power_sgd,
    }
    hook = DDPCommunicationHookType(handler.comm_hook)
    wrapper = DDPCommunicationHookType(handler.comm_wrapper)
    if hook not in known or wrapper != DDPCommunicationHookType.NO:
        raise NotImplementedError(
            f"[{_OF_DDP}] comm_hook={hook} with comm_wrapper={wrapper} is not "
            "supported. Set comm_hook to no, fp16, bf16 or power_sgd, and leave comm_wrapper unset"
        )
    return known[hook]


def scaler_options(handler: GradScalerKwargs | None) -> _C.GradScalerOptions:
    handler = handler or GradScalerKwargs()
    options = _C.GradScalerOptions()
    names = ("init_scale", "growth_factor", "backoff_factor", "growth_interval")
    put("GradScalerKwargs", options, {name: getattr(handler, name) for name in names})
    return options


def check_type(name: str, value: Any, kind: type) -> None:
    """Raises an error if an argument of the Accelerator has a different type, such as a dict."""
    if value is not None and not isinstance(value, kind):
        raise UsageError(
            f"[Accelerator] {name} is of type {type(value).__name__}. Pass a {kind.__name__} object"
        )


def put(where: str, options: Any, values: Mapping[str, Any]) -> None:
    """Sets fields of the engine's options. The current value of a field determines its type."""
    expected = {bool: "True or False", int: "a whole number", float: "a number"}
    for name, value in values.items():
        kind = type(getattr(options, name))
        if kind is int and isinstance(value, float) and value.is_integer():
            value = int(value)
        try:
            setattr(options, name, value)
        except TypeError:
            raise UsageError(
                f"[{where}] {name} is {described(value)}. Pass {expected[kind]}"
            ) from None


def number(where: str, name: str, value: Any) -> float:
    """Converts a number. Also accepts a string, as torch does."""
    with suppress(TypeError, ValueError):
        return float(value)
    raise UsageError(f"[{where}] {name} is {described(value)}. Pass a number")


def num_accumulation_steps(steps: Any) -> int:
    """Converts the number of steps. Also accepts a string, as the original does, because argparse
    returns strings by default."""
    with suppress(TypeError, ValueError):
        if float(steps) == int(steps):
            return int(steps)
    raise UsageError(
        f"[Accelerator] gradient_accumulation_steps is {described(steps)}. Pass a whole number"
    )


def accumulation_plugin(
    steps: Any, plugin: GradientAccumulationPlugin | None
) -> GradientAccumulationPlugin:
    """Merges the two arguments for gradient accumulation into one plugin.

    As in the original, the environment variable overrides `steps`, but not a plugin."""
    steps = num_accumulation_steps(steps)
    if plugin is None:
        is_set = os.environ.get(_C.variables.GRADIENT_ACCUMULATION_STEPS)
        return GradientAccumulationPlugin(
            num_steps=_C.gradient_accumulation_steps() if is_set else steps
        )
    if steps != 1:
        raise UsageError(
            f"[Accelerator] gradient_accumulation_steps is {steps}, but a plugin is also passed. "
            "You can only pass one of `gradient_accumulation_steps` and "
            "`gradient_accumulation_plugin`. Please only pass in the created "
            "`GradientAccumulationPlugin` object."
        )
    return plugin


def is_fast(fast: bool | None) -> bool:
    """Returns the argument `fast`, or the launcher's setting if it is None."""
    if fast is None:
        return parse_flag_from_env(_C.variables.FAST)
    if not isinstance(fast, bool):
        raise UsageError(f"[Accelerator] fast is {fast!r}, expected True or False")
    return fast
