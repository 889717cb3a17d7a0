# SPDX-License-Identifier: Apache-2.0
"""Members of an `Accelerator` that delegate to one of its components."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")


def delegated_method(
    component: str, method: Callable[Concatenate[Any, _P], _T]
) -> Callable[Concatenate[Any, _P], _T]:
    """Returns a method with the signature and the docstring of the component's method."""

    @functools.wraps(method)
    def call(self: Any, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        return method(getattr(self, component), *args, **kwargs)

    return call


class DelegatedAttribute:
    """An attribute of a component with the same name. User code may replace it."""

    def __init__(self, component: str, name: str) -> None:
        self._component = component
        self._name = name

    def __get__(self, accelerator: Any, owner: type | None = None) -> Any:
        if accelerator is None:
            return self
        return getattr(getattr(accelerator, self._component), self._name)

    def __set__(self, accelerator: Any, value: Any) -> None:
        setattr(getattr(accelerator, self._component), self._name, value)
