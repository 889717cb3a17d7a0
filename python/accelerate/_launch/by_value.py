# SPDX-License-Identifier: Apache-2.0
"""Pickles functions for another process, with everything they use."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator
from typing import Any


def pickle_call(where: str, function: Callable[..., Any], args: tuple[Any, ...]) -> bytes:
    """Returns the bytes of `(function, args)`. Definitions in `__main__` are included by value.

    Raises `TypeError` with the name of an object that cannot be pickled.
    """
    import cloudpickle

    try:
        return cloudpickle.dumps((function, args))
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    name = getattr(function, "__qualname__", None) or repr(function)
    culprit = _stuck_argument(args) or _stuck_capture(function, set()) or "it"
    raise TypeError(
        f"[{where}] The function '{name}' cannot be sent to the workers, because {culprit} cannot "
        f"be pickled ({reason}). Create it inside the function"
    )


def _travels(value: Any) -> bool:
    import cloudpickle

    try:
        cloudpickle.dumps(value)
    except Exception:
        return False
    return True


def _stuck_argument(args: tuple[Any, ...]) -> str | None:
    for position, value in enumerate(args):
        if not _travels(value):
            return f"its argument {position} (of type {type(value).__qualname__})"
    return None


def _stuck_capture(callable_: Any, seen: set[int]) -> str | None:
    """Describes the captured variable that cannot be pickled, and the functions that lead to it
    from `callable_`."""
    function = _plain_function(callable_)
    if function is None or id(function) in seen:
        return None
    seen.add(id(function))
    for kind, name, value in _captured(function):
        if not _travels(value):
            deeper = _stuck_capture(value, seen)
            if deeper:
                return f"{deeper}, used by '{name}',"
            return f"the {kind} '{name}' (of type {type(value).__qualname__})"
    return None


def _plain_function(callable_: Any) -> types.FunctionType | None:
    while isinstance(callable_, functools.partial):
        callable_ = callable_.func
    callable_ = getattr(callable_, "__func__", callable_)
    return callable_ if isinstance(callable_, types.FunctionType) else None


def _captured(function: types.FunctionType) -> Iterator[tuple[str, str, Any]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        try:
            yield "captured variable", name, cell.cell_contents
        except ValueError:
            continue  # This variable is not assigned yet.
    for name in sorted(_names(function.__code__)):
        if name in function.__globals__:
            yield "global variable", name, function.__globals__[name]
    for value in function.__defaults__ or ():
        yield "default value", repr(value), value


def _names(code: types.CodeType) -> set[str]:
    """Returns the names that the code, and the functions defined in it, may look up in the
    globals."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _names(constant)
    return names
