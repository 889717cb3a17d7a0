# SPDX-License-Identifier: Apache-2.0
"""Encodes the state of Python objects as flat values for the engine's registry."""

from __future__ import annotations

import ctypes
import dataclasses
import datetime
import json
import pathlib
import sys
import warnings
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from enum import Enum, Flag
from typing import Any
from zoneinfo import ZoneInfo

import torch

from accelerate import _C
from accelerate.errors import DataError, UsageError

_PLAIN = frozenset({type(None), bool, int, float, str})
# Containers by the name under which they are stored. Types are preserved, so subclasses do not
# match.
_LISTS: dict[str, type] = {
    "list": list,
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "size": torch.Size,
}
_DICTS: dict[str, type] = {"dict": dict, "ordered": OrderedDict, "counter": Counter}
_NAMES = {kind: name for name, kind in (_LISTS | _DICTS).items()}
_PATHS: dict[str, type] = {
    kind.__name__: kind
    for kind in (
        pathlib.PosixPath,
        pathlib.WindowsPath,
        pathlib.PurePosixPath,
        pathlib.PureWindowsPath,
    )
}
# Supported factories of a defaultdict. Restoring any other factory would mean storing code.
_FACTORIES: dict[str, type] = {
    kind.__name__: kind
    for kind in (bool, int, float, complex, str, bytes, list, tuple, set, dict, Counter, deque)
}


class OnlyPickled(UsageError):
    """A value that only a pickle can store."""


def _find_class(module: str, name: str) -> type | None:
    """Returns a class, but only from a module that is already imported, because a name must not
    cause imports or run code."""
    found: Any = sys.modules.get(module)
    for step in name.split("."):
        found = getattr(found, "__dict__", {}).get(step)
    is_it = isinstance(found, type) and (found.__module__, found.__qualname__) == (module, name)
    return found if is_it else None


_KINDS: dict[str, Callable[[type], bool]] = {
    "enum": lambda found: issubclass(found, Enum),
    "flag": lambda found: issubclass(found, Flag),
    "dataclass": dataclasses.is_dataclass,
}


def _class_of(owner: str, kind: str, module: str, name: str) -> type:
    found = _find_class(module, name)
    if found is None or not _KINDS[kind](found):
        raise UsageError(
            f"[load_state] The state of '{owner}' contains an object of type {module}.{name}, "
            f"which is not an imported enum or dataclass. Import {module} before load_state()"
        )
    return found


def _empty_instance(kind: type) -> Any:
    """Returns an instance that is created without calling `__init__`, as in pickle."""
    return object.__new__(kind)


def _attributes_of(instance: Any) -> dict[str, Any]:
    """Returns the attributes of an instance. For a dataclass, these are its fields and any other
    attributes that were set."""
    names = [field.name for field in dataclasses.fields(instance)]
    found = {name: getattr(instance, name) for name in names if hasattr(instance, name)}
    return found | {k: v for k, v in getattr(instance, "__dict__", {}).items() if k not in found}


def _make_dataclass(kind: type, attributes: dict[str, Any]) -> Any:
    made = _empty_instance(kind)
    for field in dataclasses.fields(kind):
        if field.name in attributes:
            value = attributes.pop(field.name)
        elif field.default is not dataclasses.MISSING:
            value = field.default
        elif field.default_factory is not dataclasses.MISSING:
            value = field.default_factory()
        else:
            continue
        object.__setattr__(made, field.name, value)
    if attributes:
        made.__dict__.update(attributes)
    return made


class _Encoder:
    """Encodes values as JSON, with tensors and the memory of arrays stored separately."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.tensors: list[torch.Tensor] = []

    def encode(self, value: Any) -> Any:
        kind = type(value)
        if kind in _PLAIN:
            return value
        if isinstance(value, torch.Tensor):
            return {"tensor": self._put(value)}
        name = _NAMES.get(kind)
        if name in _LISTS:
            if _PLAIN.issuperset(map(type, value)):  # E.g. the 625 numbers of Python's generator.
                return {name: list(value)}
            return {name: [self.encode(entry) for entry in value]}
        if name in _DICTS:
            return {name: [[self.encode(key), self.encode(value[key])] for key in value]}
        if kind is bytes:
            return {"bytes": self._put_bytes(value)}
        if kind is complex:
            return {"complex": [value.real, value.imag]}
        if kind in (torch.dtype, torch.device):
            return {kind.__name__: str(value).removeprefix("torch.")}
        if kind is deque:
            return {"deque": [[self.encode(entry) for entry in value], value.maxlen]}
        if kind is defaultdict:
            return {"defaultdict": [self._factory(value), self.encode(dict(value))]}
        if kind in _PATHS.values():
            return {"path": [kind.__name__, str(value)]}
        if kind is datetime.timedelta:
            return {"timedelta": [value.days, value.seconds, value.microseconds]}
        if kind is datetime.date:
            return {"date": value.isoformat()}
        if kind in (datetime.datetime, datetime.time):
            text = value.replace(tzinfo=None).isoformat()
            return {kind.__name__: [text, value.fold, self._zone(value.tzinfo)]}
        if _find_class(kind.__module__, kind.__qualname__) is kind:
            name = [kind.__module__, kind.__qualname__]
            if isinstance(value, Flag):
                return {"flag": [*name, value.value]}
            if isinstance(value, Enum):
                return {"enum": [*name, value.name]}
            if dataclasses.is_dataclass(kind) and self._is_plain(kind):
                return {"dataclass": [*name, self.encode(_attributes_of(value))]}
        # If NumPy is not imported, there are no arrays.
        numpy = sys.modules.get("numpy")
        if numpy is not None:
            if kind is numpy.ndarray and value.dtype.kind in "biufc":
                index = self._put_bytes(value.tobytes())
                return {"array": [value.dtype.str, list(value.shape), index]}
            if isinstance(value, numpy.generic) and value.dtype.kind in "biufc":
                return {"number": [value.dtype.str, self._put_bytes(value.tobytes())]}
        raise OnlyPickled(
            f"the state of '{self._name}' contains an object of type {kind.__name__}, but only "
            "tensors, numbers, strings and containers of these are supported"
        )

    def _factory(self, value: defaultdict) -> str | None:
        factory = value.default_factory
        if factory is not None and factory not in _FACTORIES.values():
            raise OnlyPickled(
                f"the state of '{self._name}' contains a defaultdict whose factory is a function, "
                "not a class such as int or list"
            )
        return None if factory is None else factory.__name__  # type: ignore[attr-defined]

    def _zone(self, zone: datetime.tzinfo | None) -> Any:
        if zone is None:
            return None
        if type(zone) is datetime.timezone:
            return {"offset": [zone.utcoffset(None).total_seconds(), zone.tzname(None)]}
        if type(zone) is ZoneInfo and zone.key is not None:
            return {"zone": zone.key}
        raise OnlyPickled(
            f"the state of '{self._name}' contains a time zone of type {type(zone).__name__}, "
            "expected datetime.timezone or ZoneInfo"
        )

    @staticmethod
    def _is_plain(kind: type) -> bool:
        """Whether an instance consists only of its attributes."""
        hooks = {"__reduce__", "__reduce_ex__", "__getnewargs__", "__getnewargs_ex__"}
        if not hasattr(kind, "__slots__"):  # Python adds these to frozen dataclasses with slots.
            hooks |= {"__getstate__", "__setstate__"}
        if any(not hooks.isdisjoint(vars(base)) for base in kind.__mro__[:-1]):
            return False
        try:
            _empty_instance(kind)
        except TypeError:
            return False
        return True

    def _put(self, tensor: torch.Tensor) -> int:
        if not _C.fits_into_files(tensor):
            raise OnlyPickled(
                f"the state of '{self._name}' contains a tensor of type {tensor.dtype} "
                f"({tensor.layout}, on {tensor.device}), which safetensors files cannot store"
            )
        self.tensors.append(tensor)
        return len(self.tensors) - 1

    def _put_bytes(self, data: bytes) -> int:
        return self._put(torch.frombuffer(bytearray(data or b"\0"), dtype=torch.uint8)[: len(data)])


def _path_of(kind: str, text: str) -> pathlib.PurePath:
    try:
        return _PATHS[kind](text)
    except NotImplementedError:  # The path belongs to another operating system.
        return _PATHS["Pure" + kind](text)


def flatten(value: Any, name: str) -> dict[str, Any]:
    """Stores containers and numbers as one string under `name`, and tensors separately under
    `name.0`, ... Raises `OnlyPickled`."""
    encoder = _Encoder(name)
    try:
        text = json.dumps(encoder.encode(value))
    except RecursionError as error:
        raise OnlyPickled(f"the state of '{name}' contains itself") from error
    return {name: text, **{f"{name}.{i}": t for i, t in enumerate(encoder.tensors)}}


def _zone_of(zone: dict[str, Any] | None) -> datetime.tzinfo | None:
    if zone is None:
        return None
    if "zone" in zone:
        return ZoneInfo(zone["zone"])
    seconds, name = zone["offset"]
    offset = datetime.timedelta(seconds=seconds)
    made = datetime.timezone(offset)
    return made if made.tzname(None) == name else datetime.timezone(offset, name)


def unflatten(flat: dict[str, Any], name: str, owner: str = "", copies: bool = True) -> Any:
    """Returns the value that was passed to `flatten`. Tensors are copied unless `copies` is false.
    Without copies, the result can only be used to check that all classes exist."""

    def data_of(index: int) -> bytes:
        held = flat[f"{name}.{index}"].cpu().contiguous()
        return ctypes.string_at(held.data_ptr(), held.numel())

    def decode(node: Any) -> Any:
        if not isinstance(node, dict):
            return node
        ((kind, content),) = node.items()
        if kind == "tensor":
            held = flat[f"{name}.{content}"]
            return held.clone() if copies else held
        if kind in _LISTS:
            return _LISTS[kind](map(decode, content))
        if kind in _DICTS:
            return _DICTS[kind]({decode(key): decode(entry) for key, entry in content})
        if kind == "bytes":
            return data_of(content)
        if kind == "complex":
            return complex(*content)
        if kind == "dtype":
            return getattr(torch, content)
        if kind == "device":
            return torch.device(content)
        if kind == "deque":
            return deque(map(decode, content[0]), content[1])
        if kind == "defaultdict":
            factory = None if content[0] is None else _FACTORIES[content[0]]
            return defaultdict(factory, decode(content[1]))
        if kind == "path":
            return _path_of(*content)
        if kind == "timedelta":
            return datetime.timedelta(*content)
        if kind == "date":
            return datetime.date.fromisoformat(content)
        if kind in ("datetime", "time"):
            text, fold, zone = content
            made = getattr(datetime, kind).fromisoformat(text)
            return made.replace(tzinfo=_zone_of(zone), fold=fold)
        if kind in _KINDS:
            module, qualified, value = content
            found = _class_of(owner or name, kind, module, qualified)
            if kind == "dataclass":
                return _make_dataclass(found, decode(value))
            if kind == "flag":
                return found(int(value))
            if value not in found.__members__:  # type: ignore[attr-defined]
                raise UsageError(
                    f"[load_state] The state of '{owner or name}' contains {module}.{qualified}."
                    f"{value}, which {qualified} no longer defines. Add it"
                )
            return found[value]  # type: ignore[index]
        if kind not in ("array", "number"):
            raise DataError(
                f"[load_state] The state of '{owner or name}' contains a value of kind '{kind}', "
                "which this version cannot read. Load it with the version of accelerate that "
                "saved it"
            )
        import numpy

        if kind == "array":
            dtype, shape, index = content
            return numpy.frombuffer(data_of(index), dtype).reshape(shape).copy()
        dtype, index = content
        return numpy.frombuffer(data_of(index), dtype)[0]

    if name not in flat:
        raise UsageError(
            f"[load_state_dict] '{name}' is missing. Was it saved from a different object?"
        )
    return decode(json.loads(flat[name]))


class ObjectState(_C.Stateful):
    """An object whose state is read and written by two functions."""

    # The object's name in the registry.
    name = ""

    def __init__(self, value: Callable[[], Any], put: Callable[[Any], None]) -> None:
        super().__init__()
        self.value = value
        self.put = put

    def state_dict(self) -> dict[str, Any]:
        return flatten(self.value(), "value")

    def check_state_dict(self, state: dict[str, Any]) -> None:
        # Detect missing classes before anything is changed.
        if any(f'{{"{kind}"' in state.get("value", "") for kind in _KINDS):
            unflatten(state, "value", self.name, copies=False)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        value = unflatten(state, "value", self.name)
        try:
            self.put(value)
        except Exception:
            warnings.warn(
                f"[load_state] The state of '{self.name}' could not be restored, but other objects "
                "of the run already were. Load a checkpoint again before you continue training",
                stacklevel=2,
            )
            raise


# The key of the state of a shared object that only Python has.
OWN = "python"


class SharedState(ObjectState):
    """An object that also exists in C++. `split` returns the state that both languages have, under
    the same keys as in C++, and the rest. `join` combines the two parts. The rest is None if C++
    saved the checkpoint. `check` raises an error if the joined state cannot be loaded."""

    def __init__(
        self,
        value: Callable[[], Any],
        put: Callable[[Any], None],
        split: Callable[[Any], tuple[dict[str, Any], Any]],
        join: Callable[[dict[str, Any], Any], Any],
        check: Callable[[dict[str, Any], Any], None] | None = None,
    ) -> None:
        super().__init__(value, put)
        self._split = split
        self._join = join
        self._check = check

    def state_dict(self) -> dict[str, Any]:
        shared, rest = self._split(self.value())
        return {**shared, **flatten(rest, OWN)}

    def check_state_dict(self, state: dict[str, Any]) -> None:
        if self._check is not None:
            self._check(state, self._joined(state))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.put(self._joined(state))

    def _joined(self, state: dict[str, Any]) -> Any:
        return self._join(state, unflatten(state, OWN) if OWN in state else None)
