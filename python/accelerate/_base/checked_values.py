# SPDX-License-Identifier: Apache-2.0
"""Checks the types of arguments and of configuration values, which come from files, dataclass
fields and environment variables."""

from __future__ import annotations

import json
import numbers
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from accelerate.errors import ConfigError, UsageError
from accelerate.utils.environment import str_to_bool


class Kind(NamedTuple):
    """The type of a key. `take` converts a value to it, or returns None if that is not possible."""

    expected: str
    take: Callable[[Any], Any]
    # Whether "3" is accepted for 3.
    reads_texts: bool = False


def whole_number(least: int, most: int | None = None, reads_texts: bool = False) -> Kind:
    def take(value: Any) -> int | None:
        is_whole = _is_number(value) and float(value).is_integer()
        return int(value) if is_whole and least <= value <= (most or value) else None

    if most is None:
        return Kind(f"a whole number of at least {least}", take, reads_texts)
    *first, last = range(least, most + 1)
    return Kind(f"{', '.join(map(str, first))} or {last}", take, reads_texts)


def text_of(names: Iterable[str]) -> Kind:
    known = list(names)
    return Kind(f"one of {', '.join(known)}", lambda value: value if value in known else None)


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _flag(value: Any) -> bool | None:
    try:
        return str_to_bool(str(int(value) if _is_number(value) else value), to_bool=True)
    except ValueError:
        return None


NUMBER = Kind("a number", lambda value: value if _is_number(value) else None)
# DeepSpeed and torch's environment variables accept several words for true and false.
FLAG = Kind("true or false", _flag)
TEXT = Kind("a string", lambda value: value if isinstance(value, str) else None)
SECTION = Kind("a dictionary", lambda value: value if isinstance(value, dict) else None)


def number_of(value: Any) -> Any:
    """Returns the number that a string represents. Returns any other value unchanged."""
    if not isinstance(value, str):
        return value
    for convert in (int, float):
        try:
            return convert(value)
        except ValueError:
            continue
    return value


_KINDS = {str: "a string", bool: "a boolean", int: "a number", float: "a number", list: "a list"}


def described(value: Any) -> str:
    """Returns the value and its type on one line. Writes the value as JSON if possible, and
    otherwise as Python prints it."""
    kind = _KINDS.get(type(value), "a dictionary" if isinstance(value, dict) else "")
    try:
        shown = json.dumps(value) if kind else ""
    except (TypeError, ValueError):
        shown = ""
    shown = shown or " ".join(repr(value).split())
    is_long = len(shown) > 60
    if is_long and _is_number(value):
        kind = type(value).__name__  # Show the exact type, because a number this long is too large.
    return f"{shown[:57] + '...' if is_long else shown} ({kind or type(value).__name__})"


def checked(
    where: str, name: str, value: Any, kind: Kind, remedy: str = "", extra: str = ""
) -> Any:
    """Returns the value converted to its type. If it has a different type, raises a one-line
    `ConfigError`. `extra` names other accepted values, and `remedy` says what to do."""
    taken = kind.take(number_of(value) if kind.reads_texts else value)
    if taken is not None:
        return taken
    unquoted = kind.take(number_of(value))
    if unquoted is not None:
        remedy = f"Write {unquoted} without quotes"
    raise ConfigError(
        f"[{where}] {name} is {described(value)}, expected {kind.expected}{extra}"
        + (f". {remedy}" if remedy else "")
    )


def checked_argument(where: str, name: str, value: Any, kind: Kind) -> Any:
    """Like `checked`, but for a function argument: raises `UsageError`."""
    try:
        return checked(where, name, value, kind)
    except ConfigError as error:
        raise UsageError(str(error)) from None
