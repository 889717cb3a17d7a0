# SPDX-License-Identifier: Apache-2.0
"""What `prepare` makes of a module: the same module, whose calls pass the engine.

A prepared module is a second object on the *same* attributes: both share one `__dict__`, so that
parameters, hooks, `train()` and everything else are those of the user's module, and its class is a
subclass of the user's. The user's own object stays as it was; calling it does not touch the engine,
which is what `unwrap_model` is for."""

from __future__ import annotations

import copy
import functools
import threading
import typing
from collections.abc import Callable
from typing import Any

import torch

from accelerate import _C
from accelerate._trees import tensors_of, with_tensors


def parameter_set(module: torch.nn.Module) -> _C.ParameterSet:
    """The named tensors of a module, each once."""
    parameters = dict(module.named_parameters())
    buffers = dict(module.named_buffers())
    sparse = {
        id(part.weight)
        for part in module.modules()
        if isinstance(part, (torch.nn.Embedding, torch.nn.EmbeddingBag)) and part.sparse
    }
    return _C.ParameterSet(
        names=list(parameters),
        parameters=list(parameters.values()),
        buffer_names=list(buffers),
        buffers=list(buffers.values()),
        sparse_gradients={name for name, p in parameters.items() if id(p) in sparse},
    )


class _Engine:
    """The seams around the calls of one prepared module."""

    def __init__(self, module: torch.nn.Module, context: _C.ModelContext) -> None:
        self.module = module
        self.context = context
        self._thread = threading.local()
        self._list_buffers()

    def _list_buffers(self) -> None:
        self._places = [
            (owner._buffers, name)
            for owner in self.module.modules()
            for name, buffer in owner._buffers.items()
            if buffer is not None
        ]
        self._buffers = [place[name] for place, name in self._places]

    @property
    def is_inside(self) -> bool:
        """Whether this thread is in a call of the module: calls inside of it are plain."""
        return getattr(self._thread, "is_inside", False)

    def run(self, function: Callable, args: tuple, kwargs: dict) -> Any:
        # `self.buffer = new` in the user's forward puts another tensor in the place of the old one.
        for (place, name), known in zip(self._places, self._buffers):
            if place.get(name) is not known:
                self._list_buffers()
                self.context.set_buffers(self._buffers)
                break
        forward = self.context.begin_forward()
        self._thread.is_inside = True
        try:
            output = function(*args, **kwargs)
        except BaseException:
            forward.abandon()
            raise
        finally:
            self._thread.is_inside = False
        if not forward.wants_outputs:
            forward.finish([])
            return output
        tensors = tensors_of(output)
        finished = forward.finish(tensors)
        if all(before is after for before, after in zip(tensors, finished)):
            return output
        return with_tensors(output, finished)


class _Prepared:
    """Comes before the user's class in the classes of prepared modules."""

    _accelerate_engine: _Engine
    _is_accelerate_prepared = True

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Not the user's: a prepared module is no new class of theirs, to be listed or checked."""

    def compile(self, *args: Any, **kwargs: Any) -> None:
        # What is compiled stays in the attributes, and must not know the engine.
        self._accelerate_engine.module.compile(*args, **kwargs)

    # Copies are plain modules: the engine belongs to the parameters that were prepared.
    def __deepcopy__(self, memo: dict) -> torch.nn.Module:
        return copy.deepcopy(self._accelerate_engine.module, memo)

    def __copy__(self) -> torch.nn.Module:
        return copy.copy(self._accelerate_engine.module)

    def __reduce_ex__(self, protocol: int) -> Any:
        # `cast` gives its second argument back: what is saved loads without this package.
        return typing.cast, (object, self._accelerate_engine.module)


class _Called(_Prepared):
    """A module whose calls pass the engine."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        engine = self._accelerate_engine
        if engine.is_inside:
            return super().__call__(*args, **kwargs)
        return engine.run(super().__call__, args, kwargs)


def _forward_of(kind: type) -> Callable:
    @functools.wraps(kind.forward)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        engine = self._accelerate_engine
        if engine.is_inside:
            return kind.forward(self, *args, **kwargs)
        return engine.run(functools.partial(kind.forward, self), args, kwargs)

    return forward


def attach(module: torch.nn.Module, context: _C.ModelContext) -> torch.nn.Module:
    """A prepared module on the attributes of `module`."""
    kind = type(module)
    members = {
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "__doc__": kind.__doc__,
        "_accelerate_engine": _Engine(module, context),
    }
    # Alone and in full precision the engine has nothing to do around a call.
    base = _Prepared if context.is_plain else _Called
    # Scripted modules have no forward in Python.
    if base is _Called and getattr(kind, "forward", None) is not None:
        members["forward"] = _forward_of(kind)
    prepared_kind = type(kind.__name__, (base, kind), members)
    # Not the user's __new__, which may want arguments.
    prepared = object.__new__(prepared_kind)
    object.__setattr__(prepared, "__dict__", module.__dict__)
    return prepared


def context_of(model: Any) -> _C.ModelContext | None:
    """None for an object that was not prepared."""
    return model._accelerate_engine.context if isinstance(model, _Prepared) else None


def unwrap(model: Any) -> Any:
    """The module that was prepared; any other object as it is."""
    return model._accelerate_engine.module if isinstance(model, _Prepared) else model
