# SPDX-License-Identifier: Apache-2.0
"""Nested Python values that contain tensors: lists, tuples, mappings and dataclasses."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import torch

from accelerate.errors import UsageError


def is_named_tuple(value: Any) -> bool:
    return isinstance(value, tuple) and hasattr(value, "_fields")


def like(container: list | tuple, items: Any) -> Any:
    """Returns a container of the same type with these items."""
    if is_named_tuple(container):
        return type(container)(*items)
    return type(container)(items)


def with_values(mapping: Mapping, values: dict) -> Mapping:
    """Returns a mapping of the same type with these values."""
    # A mapping that is also a dataclass (transformers' outputs) keeps attributes and items
    # consistent only if it is changed item by item.
    if dataclasses.is_dataclass(mapping):
        changed = copy.copy(mapping)
        for key, value in values.items():
            changed[key] = value
        return changed
    if type(mapping) is dict:
        return values
    return type(mapping)(values)


def map_tensors(value: Any, function: Callable[[torch.Tensor], Any]) -> Any:
    """Returns the same structure with `function` applied to each tensor. Other leaves are
    unchanged."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, (list, tuple)):
        return like(value, (map_tensors(item, function) for item in value))
    if isinstance(value, Mapping):
        values = {key: map_tensors(item, function) for key, item in value.items()}
        return with_values(value, values)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        changed = copy.copy(value)
        for field in dataclasses.fields(value):
            item = map_tensors(getattr(value, field.name), function)
            object.__setattr__(changed, field.name, item)
        return changed
    return value


def tensors_of(value: Any, found: list[torch.Tensor] | None = None) -> list[torch.Tensor]:
    """Returns all tensors in `value`, in order. Other leaves are ignored."""
    found = [] if found is None else found
    if isinstance(value, torch.Tensor):
        found.append(value)
    elif isinstance(value, (list, tuple)):
        for item in value:
            tensors_of(item, found)
    elif isinstance(value, Mapping):
        for item in value.values():
            tensors_of(item, found)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            tensors_of(getattr(value, field.name), found)
    return found


def with_tensors(value: Any, tensors: list[torch.Tensor]) -> Any:
    """Returns `value` with its tensors replaced with `tensors`, in the order of `tensors_of`."""
    remaining = iter(tensors)
    return map_tensors(value, lambda _: next(remaining))


def structure_of(value: Any, where: str) -> str:
    """Returns a string that ranks compare. Raises `UsageError` if a leaf is not a tensor."""

    def refuse(leaf: Any) -> NoReturn:
        raise NotATensor(
            f"[{where}] Got an object of type {type(leaf).__name__}, expected a tensor or a list, "
            "tuple or dictionary of tensors. Use gather_object for other objects"
        )

    return describe(value, refuse)


class NotATensor(UsageError, TypeError):
    """Raised for a value that collectives on tensors do not support."""


def has_only_tensors(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(has_only_tensors(item) for item in value.values())
    if isinstance(value, (list, tuple)):
        return all(has_only_tensors(item) for item in value)
    return isinstance(value, torch.Tensor)


def describe(value: Any, leaf: Callable[[Any], str] = repr) -> str:
    """Returns a string that is equal for values that differ only in the contents of tensors. `leaf`
    describes everything else."""
    if isinstance(value, torch.Tensor):
        return "*"
    if isinstance(value, Mapping):
        items = (f"{key!r}: {describe(item, leaf)}" for key, item in value.items())
        return "{" + ", ".join(items) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(describe(item, leaf) for item in value) + "]"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return describe(
            {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}, leaf
        )
    return leaf(value)
