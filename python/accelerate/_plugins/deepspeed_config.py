# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed's configuration. Defines its keys and their types, and reads it."""

from __future__ import annotations

import base64
import copy
import json
import os
from typing import Any

from accelerate._base.checked_values import (
    FLAG,
    NUMBER,
    SECTION,
    TEXT,
    checked,
    described,
    text_of,
    whole_number,
)
from accelerate.errors import ConfigError

_COUNT = whole_number(1)
_ZERO_FLAGS = (
    "overlap_comm",
    "contiguous_gradients",
    "reduce_scatter",
    "allgather_partitions",
    "ignore_unused_parameters",
    "stage3_gather_16bit_weights_on_model_save",
    "stage3_gather_fp16_weights_on_model_save",
)
# Types of the keys that change a run. As in DeepSpeed, only numbers in the section
# zero_optimization may be strings, and flags may be any word for yes or no.
_KINDS = {
    "train_batch_size": _COUNT,
    "train_micro_batch_size_per_gpu": _COUNT,
    "gradient_accumulation_steps": _COUNT,
    "gradient_clipping": NUMBER,
    "fp16": SECTION,
    "fp16.loss_scale": NUMBER,
    "bf16": SECTION,
    "zero_optimization": SECTION,
    "zero_optimization.stage": whole_number(0, 3, reads_texts=True),
    **{f"zero_optimization.{flag}": FLAG for flag in _ZERO_FLAGS},
}
for _section in ("optimizer", "scheduler"):
    _KINDS[_section] = SECTION
    _KINDS[f"{_section}.type"] = TEXT
    _KINDS[f"{_section}.params"] = SECTION
for _section in ("zero_optimization.offload_optimizer", "zero_optimization.offload_param"):
    _KINDS[_section] = SECTION
    _KINDS[f"{_section}.device"] = text_of(("none", "cpu", "nvme"))


def kind_of_value(ds_key_long: str) -> Any:
    """Returns the type of a key of the configuration, or None if this package does not read the
    key. Every section may have an `enabled` flag."""
    return FLAG if ds_key_long.endswith(".enabled") else _KINDS.get(ds_key_long)


def _check_values(node: dict[str, Any], remedy: str, prefix: str = "") -> None:
    """Converts every value to its type. Raises a one-line error if a value has a different type."""
    for name, value in node.items():
        key = f"{prefix}{name}"
        kind = kind_of_value(key)
        if kind is not None and value is not None and (value != "auto" or kind is SECTION):
            extra = "" if kind is SECTION else ', or "auto"'
            node[name] = checked("DeepSpeed", key, value, kind, remedy, extra)
        if isinstance(value, dict):
            _check_values(value, remedy, f"{key}.")


class HfDeepSpeedConfig:
    """A DeepSpeed configuration, created from a dictionary, the path of a JSON file, a JSON string,
    or base64-encoded JSON. Values are looked up by dotted names and have the type of their key.
    Other types raise `ConfigError`."""

    __module__ = "accelerate.utils.deepspeed"  # The public module.

    def __init__(self, config_file_or_dict: str | os.PathLike | dict[str, Any]) -> None:
        remedy = "Correct the configuration"
        if isinstance(config_file_or_dict, dict):
            self.config = copy.deepcopy(config_file_or_dict)
        elif not isinstance(config_file_or_dict, (str, os.PathLike)):
            raise ConfigError(
                f"[DeepSpeed] The configuration is {described(config_file_or_dict)}, expected a "
                "dictionary or the path of a JSON file"
            )
        elif os.path.exists(config_file_or_dict):
            remedy = f"Correct {os.fspath(config_file_or_dict)}"
            self.config = _read_file(config_file_or_dict)
        else:
            self.config = _parsed(str(config_file_or_dict))
        if not isinstance(self.config, dict):
            raise ConfigError(
                f"[DeepSpeed] The configuration is {described(self.config)}, expected "
                f"{SECTION.expected}. {remedy}"
            )
        _check_values(self.config, remedy)
        if [self.get_value(f"{name}.enabled") for name in ("fp16", "bf16")] == [True, True]:
            raise ConfigError(
                f"[DeepSpeed] fp16.enabled and bf16.enabled are both true. Enable only one. {remedy}"
            )
        self.set_stage_and_offload()

    def set_stage_and_offload(self) -> None:
        self._stage = self.get_value("zero_optimization.stage", -1)
        devices = {
            self.get_value(f"zero_optimization.offload_{what}.device")
            for what in ("optimizer", "param")
        }
        self._offload = self._stage in (2, 3) and bool(devices & {"cpu", "nvme"})

    def find_config_node(self, ds_key_long: str) -> tuple[dict[str, Any] | None, str]:
        """Returns the dictionary that would contain the value, or None, and the last part of the
        name."""
        *path, key = ds_key_long.split(".")
        node: Any = self.config
        for name in path:
            node = node.get(name)
            if not isinstance(node, dict):
                return None, key
        return node, key

    def get_value(self, ds_key_long: str, default: Any = None) -> Any:
        node, key = self.find_config_node(ds_key_long)
        return default if node is None else node.get(key, default)

    def del_config_sub_tree(self, ds_key_long: str, must_exist: bool = False) -> None:
        """Removes the value, or everything below the name."""
        node, key = self.find_config_node(ds_key_long)
        if node is not None and key in node:
            del node[key]
        elif must_exist:
            raise ValueError(f"Can't find {ds_key_long} entry in the config: {self.config}")

    def is_true(self, ds_key_long: str) -> bool:
        """Whether the value exists and is true."""
        return bool(self.get_value(ds_key_long))

    def is_false(self, ds_key_long: str) -> bool:
        """Whether the value exists and is false."""
        value = self.get_value(ds_key_long)
        return value is not None and not value

    def is_zero2(self) -> bool:
        return self._stage == 2

    def is_zero3(self) -> bool:
        return self._stage == 3

    def is_offload(self) -> bool:
        return self._offload


def _read_file(path: str | os.PathLike) -> Any:
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except json.JSONDecodeError as error:
        raise ConfigError(
            f"[DeepSpeed] {os.fspath(path)}, line {error.lineno}, column {error.colno}, is not "
            f"JSON: {error.msg}. Correct the file"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"[DeepSpeed] Cannot read {os.fspath(path)} as a JSON file: {error}. Check the path "
            "and the permissions of the file"
        ) from None


def _parsed(text: str) -> Any:
    for decode in (str, lambda coded: base64.urlsafe_b64decode(coded).decode("utf-8")):
        try:
            return json.loads(decode(text))
        except ValueError:
            continue
    raise ConfigError(
        "[DeepSpeed] Expected a string path to an existing DeepSpeed config, or a dictionary, or "
        f"a base64 encoded string. Received: {described(text)}. Check the path"
    )
