# SPDX-License-Identifier: Apache-2.0
"""State of Python objects as the flat values that the engine's registry holds."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import torch

from accelerate import _C
from accelerate.errors import UsageError

_PLAIN = (type(None), bool, int, float, str)


def flatten(value: Any, name: str) -> dict[str, Any]:
    """Containers and numbers as one text under `name`, tensors beside it under `name.0`, ..."""
    tensors: list[torch.Tensor] = []

    def encode(part: Any) -> Any:
        if isinstance(part, torch.Tensor):
            tensors.append(part)
            return {"tensor": len(tensors) - 1}
        if type(part) in _PLAIN:
            return part
        if isinstance(part, dict):
            return {"dict": [[encode(key), encode(entry)] for key, entry in part.items()]}
        if isinstance(part, (list, tuple)):
            kind = "tuple" if isinstance(part, tuple) else "list"
            return {kind: [encode(entry) for entry in part]}
        raise UsageError(
            f"[state] got a {type(part).__name__} in the state of '{name}', expected tensors, "
            "numbers, texts and containers of them"
        )

    return {name: json.dumps(encode(value)), **{f"{name}.{i}": t for i, t in enumerate(tensors)}}


def unflatten(flat: dict[str, Any], name: str) -> Any:
    """What `flatten` was given; tensors are copies."""

    def decode(part: Any) -> Any:
        if not isinstance(part, dict):
            return part
        (kind, content), = part.items()
        if kind == "tensor":
            return flat[f"{name}.{content}"].clone()
        if kind == "dict":
            return {decode(key): decode(entry) for key, entry in content}
        entries = [decode(entry) for entry in content]
        return tuple(entries) if kind == "tuple" else entries

    if name not in flat:
        raise UsageError(f"[load_state_dict] '{name}' is missing; was it saved by another object?")
    return decode(json.loads(flat[name]))


class ObjectState(_C.Stateful):
    """Any object whose state two functions give and take."""

    def __init__(self, save: Callable[[], Any], load: Callable[[Any], None]) -> None:
        super().__init__()
        self._save = save
        self._load = load

    def state_dict(self) -> dict[str, Any]:
        return flatten(self._save(), "value")

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._load(unflatten(state, "value"))
