# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed is not part of this package; its configuration can be read, which transformers does
where DeepSpeed is installed."""

from __future__ import annotations

import base64
import copy
import json
import os
from typing import Any

from accelerate._placeholders import placeholders_for


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


def get_active_deepspeed_plugin(state: Any) -> None:
    """There is none."""
    raise ValueError(
        "Couldn't retrieve the active `DeepSpeedPlugin` as none were enabled. If you want to use "
        "DeepSpeed, use Hugging Face's own package."
    )


__getattr__ = placeholders_for(__name__)
