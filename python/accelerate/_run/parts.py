# SPDX-License-Identifier: Apache-2.0
"""Members of an `Accelerator` that are those of one of its parts."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")


def part_method(
    part: str, method: Callable[Concatenate[Any, _P], _T]
) -> Callable[Concatenate[Any, _P], _T]:
    """A method with the signature and the description of a part's."""

    @functools.wraps(method)
    def call(self: Any, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        return method(getattr(self, part), *args, **kwargs)

    return call


class PartAttribute:
    """An attribute that a part has under this name, and programs may replace."""

    def __init__(self, part: str, name: str) -> None:
        self._part = part
        self._name = name

    def __get__(self, accelerator: Any, owner: type | None = None) -> Any:
        return self if accelerator is None else getattr(getattr(accelerator, self._part), self._name)

    def __set__(self, accelerator: Any, value: Any) -> None:
        setattr(getattr(accelerator, self._part), self._name, value)
