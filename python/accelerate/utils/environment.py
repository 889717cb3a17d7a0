# SPDX-License-Identifier: Apache-2.0
"""Reads and changes environment variables."""

from __future__ import annotations

import functools
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from accelerate._placeholders import placeholders_for

_TRUE = ("y", "yes", "t", "true", "on", "1")
_FALSE = ("n", "no", "f", "false", "off", "0")


def str_to_bool(value: str, to_bool: bool = False) -> int | bool:
    """Returns 1 for y, yes, t, true, on and 1, and 0 for n, no, f, false, off and 0, ignoring case.
    With `to_bool`, returns True and False instead. Raises ValueError for any other string.
    """
    text = value.lower()
    if text not in _TRUE + _FALSE:
        raise ValueError(
            f"[str_to_bool] value is {value!r}, expected one of {', '.join(_TRUE + _FALSE)}"
        )
    return text in _TRUE if to_bool else int(text in _TRUE)


def get_int_from_env(env_keys: Iterable[str], default: int) -> int:
    """Returns the value of the first of these variables that is a non-negative number, or else
    `default`."""
    for key in env_keys:
        text = os.environ.get(key, "-1")
        try:
            value = int(text)
        except ValueError:
            raise ValueError(
                f"[get_int_from_env] {key} is {text!r}, expected an integer. Correct or unset it"
            ) from None
        if value >= 0:
            return value
    return default


def parse_flag_from_env(key: str, default: bool = False) -> bool:
    """Returns the variable as a boolean (see `str_to_bool`), or else `default`."""
    text = os.environ.get(key, str(default))
    try:
        return bool(str_to_bool(text))
    except ValueError:
        raise ValueError(
            f"[parse_flag_from_env] {key} is {text!r}, expected one of "
            f"{', '.join(_TRUE + _FALSE)}. Correct or unset it"
        ) from None


def parse_choice_from_env(key: str, default: Any = "no") -> str:
    """Returns the variable as a string, or else `default` as a string."""
    return os.environ.get(key, str(default))


@contextmanager
def clear_environment() -> Iterator[None]:
    """Removes all variables inside the block and restores them afterwards."""
    saved = os.environ.copy()
    os.environ.clear()
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(saved)


@contextmanager
def patch_environment(**kwargs: Any) -> Iterator[None]:
    """Sets variables inside the block, with upper-case names and string values. Restores them
    afterwards."""
    values = {key.upper(): str(value) for key, value in kwargs.items()}
    saved = {key: os.environ.get(key) for key in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for key, value in saved.items():
            if value is None:
                os.environ.pop(key, None)
            else:
                os.environ[key] = value


def convert_dict_to_env_variables(current_env: dict[str, str]) -> list[str]:
    """Returns `NAME=value` lines for these variables. Skips variables that are empty or contain
    forbidden characters, with a warning."""
    lines = []
    for key, value in current_env.items():
        if key and value and not set(";\n<> ") & set(key + value):
            lines.append(f"{key}={value}\n")
        else:
            warnings.warn(
                f"[convert_dict_to_env_variables] Skipping {key}={value}, because it has forbidden "
                "characters or no value.",
                stacklevel=2,
            )
    return lines


def are_libraries_initialized(*library_names: str) -> list[str]:
    """Returns those of these modules that were imported."""
    return [name for name in library_names if name in sys.modules]


@contextmanager
def _own_variables_restored() -> Iterator[None]:
    prefix = "ACCELERATE_"
    before = {key: value for key, value in os.environ.items() if key.startswith(prefix)}
    try:
        yield
    finally:
        for key in [key for key in os.environ if key.startswith(prefix)]:
            del os.environ[key]
        os.environ.update(before)


def purge_accelerate_environment(func_or_cls: Any) -> Any:
    """A decorator that restores the variables ACCELERATE_* after the function. For a class, it
    decorates the methods of the class and its subclasses whose names start with `test`."""
    if isinstance(func_or_cls, type):
        _purge_tests(func_or_cls)
        func_or_cls.__init_subclass__ = classmethod(lambda cls, **_: _purge_tests(cls))
        return func_or_cls
    return _purged(func_or_cls)


def _purged(function: Callable) -> Callable:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        with _own_variables_restored():
            return function(*args, **kwargs)

    wrapper._accelerate_is_purged_environment_wrapped = True
    return wrapper


def _purge_tests(tests: type) -> None:
    for name in dir(tests):
        method = getattr(tests, name)
        is_done = hasattr(method, "_accelerate_is_purged_environment_wrapped")
        if name.startswith("test") and callable(method) and not is_done:
            setattr(tests, name, _purged(method))


__getattr__ = placeholders_for(__name__)
