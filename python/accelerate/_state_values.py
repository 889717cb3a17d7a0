# SPDX-License-Identifier: Apache-2.0
"""State of Python objects as the flat values that the engine's registry holds."""

from __future__ import annotations

import ctypes
import json
import sys
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Any

import torch

from accelerate import _C
from accelerate.errors import UsageError

_PLAIN = (type(None), bool, int, float, str)
# Containers by the name that stands for them. Their types are kept, so a subclass is none of them.
_LISTS: dict[str, type] = {
    "list": list,
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "size": torch.Size,
}
_DICTS: dict[str, type] = {"dict": dict, "ordered": OrderedDict, "counter": Counter}
_NAMES = {kind: name for name, kind in (_LISTS | _DICTS).items()}


class OnlyPickled(UsageError):
    """A value that only a pickle can hold."""


class _Encoder:
    """Values as what JSON holds, tensors and the memory of arrays beside it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.tensors: list[torch.Tensor] = []

    def encode(self, part: Any) -> Any:
        kind = type(part)
        if kind in _PLAIN:
            return part
        if isinstance(part, torch.Tensor):
            return {"tensor": self._put(part)}
        name = _NAMES.get(kind)
        if name in _LISTS:
            return {name: [self.encode(entry) for entry in part]}
        if name in _DICTS:
            return {name: [[self.encode(key), self.encode(part[key])] for key in part]}
        if kind is bytes:
            return {"bytes": self._put_bytes(part)}
        if kind is complex:
            return {"complex": [part.real, part.imag]}
        if kind in (torch.dtype, torch.device):
            return {kind.__name__: str(part).removeprefix("torch.")}
        # Nobody has an array who has not imported it.
        numpy = sys.modules.get("numpy")
        if numpy is not None:
            if kind is numpy.ndarray and part.dtype.kind in "biufc":
                place = self._put_bytes(part.tobytes())
                return {"array": [part.dtype.str, list(part.shape), place]}
            if isinstance(part, numpy.generic) and part.dtype.kind in "biufc":
                return {"number": [part.dtype.str, self._put_bytes(part.tobytes())]}
        raise OnlyPickled(
            f"[state] got a {kind.__name__} in the state of '{self._name}', expected tensors, "
            "numbers, texts and containers of them"
        )

    def _put(self, tensor: torch.Tensor) -> int:
        if not _C.fits_into_files(tensor):
            raise OnlyPickled(
                f"[state] got a tensor of {tensor.dtype} ({tensor.layout}, on {tensor.device}) in "
                f"the state of '{self._name}', which safetensors files cannot hold"
            )
        self.tensors.append(tensor)
        return len(self.tensors) - 1

    def _put_bytes(self, data: bytes) -> int:
        return self._put(torch.frombuffer(bytearray(data or b"\0"), dtype=torch.uint8)[: len(data)])


def flatten(value: Any, name: str) -> dict[str, Any]:
    """Containers and numbers as one text under `name`, tensors beside it under `name.0`, ...
    Throws `OnlyPickled`."""
    encoder = _Encoder(name)
    try:
        text = json.dumps(encoder.encode(value))
    except RecursionError as error:
        raise OnlyPickled(f"[state] the state of '{name}' contains itself") from error
    return {name: text, **{f"{name}.{i}": t for i, t in enumerate(encoder.tensors)}}


def unflatten(flat: dict[str, Any], name: str) -> Any:
    """What `flatten` was given; tensors are copies."""

    def data_of(place: int) -> bytes:
        held = flat[f"{name}.{place}"].cpu().contiguous()
        return ctypes.string_at(held.data_ptr(), held.numel())

    def decode(part: Any) -> Any:
        if not isinstance(part, dict):
            return part
        (kind, content), = part.items()
        if kind == "tensor":
            return flat[f"{name}.{content}"].clone()
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
        import numpy

        if kind == "array":
            dtype, shape, place = content
            return numpy.frombuffer(data_of(place), dtype).reshape(shape).copy()
        dtype, place = content
        return numpy.frombuffer(data_of(place), dtype)[0]

    if name not in flat:
        raise UsageError(f"[load_state_dict] '{name}' is missing; was it saved by another object?")
    return decode(json.loads(flat[name]))


class ObjectState(_C.Stateful):
    """Any object whose state two functions give and take."""

    # In the registry.
    name = ""

    def __init__(self, value: Callable[[], Any], put: Callable[[Any], None]) -> None:
        super().__init__()
        self.value = value
        self.put = put

    def state_dict(self) -> dict[str, Any]:
        return flatten(self.value(), "value")

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.put(unflatten(state, "value"))


# What of the state of an object that both languages have is Python's alone.
OWN = "python"


class SharedState(ObjectState):
    """An object that C++ has too. `split` gives what both languages know of its state, under the
    names that it has there, and the rest; `join` makes the state of the two, the rest being None
    where C++ has saved it. `check` raises where the state that is joined cannot be taken."""

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
