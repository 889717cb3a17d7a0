# SPDX-License-Identifier: Apache-2.0
"""Determines the active DeepSpeed plugin of a run, and the precision policy of FSDP's plugin."""

from __future__ import annotations

from typing import Any

from accelerate.utils.dataclasses import DeepSpeedPlugin, FullyShardedDataParallelPlugin


def get_active_deepspeed_plugin(state: Any) -> DeepSpeedPlugin:
    """Returns the active DeepSpeed plugin of `state`."""
    plugins = state.deepspeed_plugins
    if plugins is None:
        raise ValueError(
            "[DeepSpeed] Couldn't retrieve the active `DeepSpeedPlugin`, because none is enabled. "
            "Pass one to `Accelerator(deepspeed_plugin=...)`, or launch with --use_deepspeed."
        )
    if not isinstance(plugins, dict):
        return plugins
    return next(plugin for plugin in plugins.values() if plugin.selected)


def fill_policy(plugin: FullyShardedDataParallelPlugin, precision: str) -> None:
    """If a plugin has no policy, sets the policy that matches the run's precision, as Hugging Face
    Accelerate does. This policy is only informative, because operators cast."""
    plugin._is_policy_filled_in = given_policy(plugin) is None  # type: ignore[attr-defined]
    plugin.set_mixed_precision(precision)


def given_policy(plugin: FullyShardedDataParallelPlugin) -> Any:
    """Returns the policy that the user has set, or None if there is none."""
    is_filled_in = getattr(plugin, "_is_policy_filled_in", False)
    return None if is_filled_in else plugin.mixed_precision_policy
