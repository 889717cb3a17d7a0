# SPDX-License-Identifier: Apache-2.0
"""Its configuration and the classes of the original around it; what shards models is this package's
own engine (docs/guide_sharding.md)."""

from __future__ import annotations

import base64
import copy
import json
import os
from collections.abc import Callable
from typing import Any

from accelerate._placeholders import placeholders_for
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.scheduler import AcceleratedScheduler
from accelerate.utils.dataclasses import DeepSpeedPlugin


class HfDeepSpeedConfig:
    """A configuration of DeepSpeed, from a dictionary, the path of a JSON file, JSON, or that in
    base64. Values are asked for by names with dots."""

    def __init__(self, config_file_or_dict: str | os.PathLike | dict[str, Any]) -> None:
        if isinstance(config_file_or_dict, dict):
            self.config = copy.deepcopy(config_file_or_dict)
        elif os.path.exists(config_file_or_dict):
            with open(config_file_or_dict, encoding="utf-8") as file:
                self.config = json.load(file)
        else:
            self.config = _parsed(str(config_file_or_dict))
        self.set_stage_and_offload()

    def set_stage_and_offload(self) -> None:
        self._stage = self.get_value("zero_optimization.stage", -1)
        devices = {
            self.get_value(f"zero_optimization.offload_{what}.device")
            for what in ("optimizer", "param")
        }
        self._offload = self._stage in (2, 3) and bool(devices & {"cpu", "nvme"})

    def find_config_node(self, ds_key_long: str) -> tuple[dict[str, Any] | None, str]:
        """The dictionary that would hold the value, or None, and the last part of the name."""
        *path, key = ds_key_long.split(".")
        node: Any = self.config
        for part in path:
            node = node.get(part)
            if node is None:
                return None, key
        return node, key

    def get_value(self, ds_key_long: str, default: Any = None) -> Any:
        node, key = self.find_config_node(ds_key_long)
        return default if node is None else node.get(key, default)

    def del_config_sub_tree(self, ds_key_long: str, must_exist: bool = False) -> None:
        """Takes the value, or everything below the name, out."""
        node, key = self.find_config_node(ds_key_long)
        if node is not None and key in node:
            del node[key]
        elif must_exist:
            raise ValueError(f"Can't find {ds_key_long} entry in the config: {self.config}")

    def is_true(self, ds_key_long: str) -> bool:
        """Whether the value is there and true."""
        return bool(self.get_value(ds_key_long))

    def is_false(self, ds_key_long: str) -> bool:
        """Whether the value is there and false."""
        value = self.get_value(ds_key_long)
        return value is not None and not value

    def is_zero2(self) -> bool:
        return self._stage == 2

    def is_zero3(self) -> bool:
        return self._stage == 3

    def is_offload(self) -> bool:
        return self._offload


def _parsed(text: str) -> dict[str, Any]:
    for decode in (str, lambda coded: base64.urlsafe_b64decode(coded).decode("utf-8")):
        try:
            return json.loads(decode(text))
        except ValueError:
            continue
    raise ValueError(
        "Expected a string path to an existing deepspeed config, or a dictionary, or a base64 "
        f"encoded string. Received: {text}"
    )


class DummyOptim:
    """Stands where DeepSpeed's configuration names the optimizer."""

    def __init__(
        self, params: Any, lr: float = 0.001, weight_decay: float = 0, **kwargs: Any
    ) -> None:
        self.params = params
        self.lr = lr
        self.weight_decay = weight_decay
        self.kwargs = kwargs


class DummyScheduler:
    """Stands where DeepSpeed's configuration names the scheduler."""

    def __init__(
        self,
        optimizer: Any,
        total_num_steps: int | None = None,
        warmup_num_steps: int = 0,
        lr_scheduler_callable: Any = None,
        **kwargs: Any,
    ) -> None:
        self.optimizer = optimizer
        self.total_num_steps = total_num_steps
        self.warmup_num_steps = warmup_num_steps
        self.lr_scheduler_callable = lr_scheduler_callable
        self.kwargs = kwargs


class DeepSpeedOptimizerWrapper(AcceleratedOptimizer):
    """What `prepare` makes of an optimizer with a `DeepSpeedPlugin`: `step` clips gradients first and
    moves the configuration's scheduler after an update."""

    # Set by `prepare`.
    _clip: Callable[[], Any] | None = None
    _scheduler: DeepSpeedSchedulerWrapper | None = None

    def step(self, closure: Callable | None = None) -> Any:
        if self._clip is not None:
            self._clip()
        result = super().step(closure)
        if self._scheduler is not None:
            self._scheduler.move()
        return result


class DeepSpeedSchedulerWrapper(AcceleratedScheduler):
    """What `prepare` makes of a `DummyScheduler`: the optimizer's `step` moves it, once in each
    update."""

    def step(self) -> None:
        """Nothing: the optimizer has moved it."""

    def move(self) -> None:
        super().step()


def get_active_deepspeed_plugin(state: Any) -> DeepSpeedPlugin:
    """The selected one of those that the state has."""
    plugins = state.deepspeed_plugins
    if plugins is None:
        raise ValueError(
            "[DeepSpeed] Couldn't retrieve the active `DeepSpeedPlugin` as none were enabled. Give "
            "one to `Accelerator(deepspeed_plugin=...)`, or launch with --use_deepspeed."
        )
    if not isinstance(plugins, dict):
        return plugins
    return next(plugin for plugin in plugins.values() if plugin.selected)


__getattr__ = placeholders_for(__name__)
