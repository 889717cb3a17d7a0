# SPDX-License-Identifier: Apache-2.0
"""What a recorded pass depends on besides its inputs: attributes, hooks, parameters and buffers."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from accelerate import _C
from accelerate._models.prepared_module import REPLAY

_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device)
_HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
)


class Watch:
    """Detects changes of a module. Does not see values that `forward` reads from elsewhere, such as
    global variables."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module
        self._numbers: dict[tuple, int] = {}
        self._objects: dict[int, tuple[Callable, int]] = {}
        self._num_objects = 0
        self._read()

    def _read(self) -> None:
        tables = list(_tables_of(self._module))
        self._tables = [table for _, table in tables]
        self._values = [value for table in self._tables for value in table.values()]
        self._lists = [
            (where, value, list(value))
            for where, table in tables
            for value in table.values()
            if isinstance(value, list)
        ]
        self.parameters = list(self._module.parameters())
        self.buffers = list(self._module.buffers())
        self.hooked = _hooked_submodule(self._module)
        state = tuple((where, self._contents(table)) for where, table in tables)
        self.state = self._numbers.setdefault(state, len(self._numbers))

    def _contents(self, table: dict) -> tuple:
        return tuple(
            (
                name,
                self._name_of(value),
                tuple(map(self._name_of, value)) if isinstance(value, list) else None,
            )
            for name, value in table.items()
        )

    def _name_of(self, value: Any) -> Any:
        """Returns something that is equal only for the same object, or for equal numbers and
        strings. An object can have the address of one that no longer exists."""
        if isinstance(value, _PLAIN):
            return type(value), value
        known = self._objects.get(id(value))
        if known is None or known[0]() is not value:
            try:
                same: Callable = weakref.ref(value)
            except TypeError:  # Kept alive instead.
                same = partial(_itself, value)
            self._num_objects += 1
            known = self._objects[id(value)] = (same, self._num_objects)
        return known[1]

    def has_changed(self) -> bool:
        """Whether anything was assigned, added or removed since `update`."""
        is_same = _C.contain_exactly(self._tables, self._values)
        return not is_same or bool(self._changed_list())

    def _changed_list(self) -> str:
        for where, value, known in self._lists:
            if len(value) != len(known) or any(a is not b for a, b in zip(value, known)):
                return where
        return ""

    def update(self) -> None:
        """Reads the module again if it has changed. `state` then has the same number as whenever
        the module was in this state before, for example before `eval` and after `train`."""
        if self.has_changed():
            self._read()

    def first_change(self) -> str:
        """Names an attribute that has changed since `update`."""
        known = iter(self._values)
        for where, table in _tables_of(self._module):
            for name, value in table.items():
                if next(known, self) is not value:
                    return f"{where}.{name}"
        return self._changed_list()


def _itself(value: Any) -> Any:
    return value


def _tables_of(module: torch.nn.Module) -> Iterator[tuple[str, dict]]:
    """Yields the dictionaries with the attributes of all submodules, and their owners' names."""
    seen: set[int] = set()
    for name, submodule in module.named_modules():
        where = name or submodule.__class__.__name__
        yield where, submodule.__dict__
        for attribute, value in submodule.__dict__.items():
            is_own = attribute == REPLAY
            if is_own or isinstance(value, (torch.nn.Module, torch.Tensor, type)):
                continue
            # Dictionaries, and objects with settings such as a model's configuration.
            inner = value if isinstance(value, dict) else getattr(value, "__dict__", None)
            if isinstance(inner, dict) and id(inner) not in seen:
                seen.add(id(inner))
                is_of_torch = attribute in ("_parameters", "_buffers", "_modules")
                yield where if is_of_torch else f"{where}.{attribute}", inner


def _hooked_submodule(module: torch.nn.Module) -> str:
    """Returns the name of a submodule with hooks, or an empty string. Hooks of the module itself
    run around `forward` and need no check."""
    for name, submodule in module.named_modules():
        if submodule is not module and any(getattr(submodule, hooks) for hooks in _HOOKS):
            return name
    return ""
