# SPDX-License-Identifier: Apache-2.0
"""Prints the public interface of `accelerate` as JSON: for each name of a list, its signature and,
for a class, its members. Run by a Python with this package, and by one with the original:

    python describe_package.py < {"accelerate.utils.other": ["save", ...], ...}
"""

from __future__ import annotations

import enum
import importlib
import inspect
import json
import sys
import types
import warnings
from typing import Any


MISSING = object()


def default_text(value: Any) -> str:
    """Equal for defaults with the same meaning in both packages."""
    if isinstance(value, enum.Enum):
        value = value.value
    if value is None or isinstance(value, (bool, int, float, str)):
        return repr(value)
    if isinstance(value, (list, tuple)):
        return repr([default_text(one) for one in value])
    return f"a {type(value).__name__}"


def signature_of(value: Any) -> list[list[str]] | None:
    """Name, kind and default of each parameter."""
    try:
        parameters = inspect.signature(value).parameters.values()
    except (TypeError, ValueError):
        return None
    return [
        [one.name, one.kind.name, "" if one.default is one.empty else default_text(one.default)]
        for one in parameters
        if one.name not in ("self", "cls")
    ]


def kind_of(value: Any) -> str:
    if isinstance(value, property) or inspect.isdatadescriptor(value):
        return "property"
    if isinstance(value, (classmethod, staticmethod)) or callable(value):
        return "method"
    return "value"


def members_of(cls: type) -> dict[str, Any]:
    """The public members defined by a class or a base in the package."""
    members = {}
    for base in cls.__mro__:
        if base.__module__.split(".")[0] != "accelerate":
            continue
        for name, value in vars(base).items():
            if not name.startswith("_") and name not in members:
                kind = kind_of(value)
                target = getattr(value, "__func__", value)
                members[name] = [kind, signature_of(target) if kind == "method" else None]
    return members


def describe(value: Any) -> dict[str, Any]:
    if isinstance(value, type):
        return {"is": "class", "signature": signature_of(value), "members": members_of(value)}
    if isinstance(value, (types.FunctionType, types.BuiltinFunctionType)):
        return {"is": "function", "signature": signature_of(value)}
    return {"is": "value", "value": default_text(value)}


def no_placeholder(value: Any) -> bool:
    return False


def main() -> None:
    warnings.simplefilter("ignore")
    try:
        from accelerate._placeholders import is_placeholder
    except ImportError:
        is_placeholder = no_placeholder
    described: dict[str, Any] = {}
    for module, names in json.load(sys.stdin).items():
        try:
            found = importlib.import_module(module)
        except Exception:  # noqa: BLE001 - an optional package that is not here
            continue
        for name in names:
            value = getattr(found, name, MISSING)
            if value is not MISSING and not is_placeholder(value):
                described[f"{module}.{name}"] = describe(value)
    print(json.dumps(described))


main()
