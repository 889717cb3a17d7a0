# SPDX-License-Identifier: Apache-2.0
"""The module that `prepare` returns. It is the same module, but its calls go through the engine.

If the engine has nothing to do around calls, as in a single process, this is the user's object.
Otherwise, a prepared module is a second object with the *same* attributes. Both objects share one
`__dict__`, so parameters, hooks, `train()` and everything else are those of the user's module. The
type of the prepared module is a subclass of the user's class. All modules of a class share one such
type. The `__class__` of a prepared module is the user's class, so code that inspects or replaces
`__class__`, or creates another module from it, uses the user's class. The engine is stored in a
slot outside of `__dict__`.

Calls to the user's own object do not use the engine. `unwrap_model` returns this object. As in
Hugging Face Accelerate, it also computes in mixed precision."""

from __future__ import annotations

import copy
import copyreg
import functools
import inspect
import sys
import threading
import types
import typing
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ContextDecorator, contextmanager
from typing import Any, NoReturn

import torch
from torch.utils.weak import WeakIdKeyDictionary

from accelerate import _C
from accelerate._base.pickling import as_wrapped
from accelerate._base.trees import map_tensors, tensors_of, with_tensors
from accelerate._models.deepspeed_engine import ConfigView, DeepSpeedEngine
from accelerate.errors import UsageError


class Scope(AbstractContextManager, ContextDecorator):
    """A context manager and decorator for engine objects with `enter` and `exit`. On an exception,
    it calls `abandon` instead, if the object has this method."""

    def __init__(self, *inner: Any) -> None:
        self._inner = inner

    def __enter__(self) -> None:
        for inner in self._inner:
            inner.enter()

    def __exit__(self, kind: type | None, *exception: Any) -> None:
        for inner in reversed(self._inner):
            if kind is not None and hasattr(inner, "abandon"):
                inner.abandon()
            else:
                inner.exit()


def parameter_set(
    module: torch.nn.Module, units: Sequence[str] = (), whole: Sequence[str] = ()
) -> _C.ParameterSet:
    """Returns the named tensors of a module, each of them once. `units` contains the names of
    modules that are shard units. `whole` contains the names of parameters that are not sharded."""
    parameters = dict(module.named_parameters())
    buffers = dict(module.named_buffers())
    tied = {
        **_second_names(module.named_parameters, parameters),
        **_second_names(module.named_buffers, buffers),
    }
    sparse = {
        id(submodule.weight)
        for submodule in module.modules()
        if isinstance(submodule, (torch.nn.Embedding, torch.nn.EmbeddingBag)) and submodule.sparse
    }
    return _C.ParameterSet(
        names=list(parameters),
        parameters=list(parameters.values()),
        buffer_names=list(buffers),
        buffers=list(buffers.values()),
        sparse_gradients={name for name, p in parameters.items() if id(p) in sparse},
        tied=tied,
        transient_buffers=_transient_buffers(module),
        units=list(units),
        whole=list(whole),
    )


def _second_names(named: Callable, listed: dict[str, torch.Tensor]) -> dict[str, str]:
    """Maps additional tensor names to the names under which the tensors are listed."""
    first = {id(tensor): name for name, tensor in listed.items()}
    everything = named(remove_duplicate=False)
    return {name: first[id(tensor)] for name, tensor in everything if name not in listed}


def _transient_buffers(module: torch.nn.Module) -> set[str]:
    """Returns the names of buffers that are not part of the module's state."""
    return {
        f"{prefix}.{name}" if prefix else name
        for prefix, submodule in module.named_modules(remove_duplicate=False)
        for name in submodule._non_persistent_buffers_set
    }


class Autocast(typing.NamedTuple):
    """The precision in which calls of a module compute."""

    device_type: str
    dtype: torch.dtype
    enabled: bool = True
    cache_enabled: bool | None = None
    # Whether the engine itself uses this precision.
    is_of_engine: bool = True

    @property
    def is_plain(self) -> bool:
        """Whether this is exactly the precision of the run."""
        return self.enabled and self.cache_enabled is None and self.is_of_engine

    def run(self, function: Callable, args: tuple, kwargs: dict) -> Any:
        if self.is_plain and torch.is_autocast_enabled(self.device_type):
            output = function(*args, **kwargs)
        else:
            with self._context():
                output = function(*args, **kwargs)
        if all(t.dtype not in _REDUCED for t in tensors_of(output)):
            return output
        return map_tensors(output, lambda t: t.float() if t.dtype in _REDUCED else t)

    def _context(self) -> AbstractContextManager:
        own = torch._C._get_privateuse1_backend_name()
        if self.device_type == own and not hasattr(
            getattr(torch, own, None), "get_amp_supported_dtype"
        ):
            return _bare_autocast(self.device_type, self.dtype, self.enabled)
        return torch.autocast(
            self.device_type, self.dtype, enabled=self.enabled, cache_enabled=self.cache_enabled
        )


@contextmanager
def _bare_autocast(device_type: str, dtype: torch.dtype, enabled: bool) -> Iterator[None]:
    """Like `torch.autocast`, but accepts devices whose module does not list its supported
    dtypes."""
    before = torch.is_autocast_enabled(device_type), torch.get_autocast_dtype(device_type)
    torch.set_autocast_enabled(device_type, enabled)
    torch.set_autocast_dtype(device_type, dtype)
    torch.autocast_increment_nesting()
    try:
        yield
    finally:
        if torch.autocast_decrement_nesting() == 0:
            torch.clear_autocast_cache()
        torch.set_autocast_enabled(device_type, before[0])
        torch.set_autocast_dtype(device_type, before[1])


def has_compiled_inner(module: torch.nn.Module) -> bool:
    """Whether `torch.compile` created the module or a submodule, or was applied to one in place."""
    return any(
        submodule._compiled_call_impl is not None or is_compiled_module(submodule)
        for submodule in module.modules()
    )


def refuse_compiled() -> NoReturn:
    raise UsageError(
        "[prepare] A compiled model cannot read sharded parameters. Leave out torch.compile, or "
        "keep parameters unsharded (SHARD_GRAD_OP, reshard_after_forward=False)"
    )


def refuse_compiled_twice(function: Any) -> None:
    """Rejects a compiled function, because it has no parameters that a prepared module could
    share."""
    module = _module_of_compiled(function)
    if module is not None and _prepared_in(module) is None:
        raise UsageError(
            f"[prepare] Got a function that calls an object of type {module.__class__.__name__}, "
            "because torch.compile was called twice. Compile the module once, or after prepare()"
        )


# The attribute of a module with what replays its calls (`accelerate._fast`).
REPLAY = "_accelerate_replay"

_REDUCED = (torch.float16, torch.bfloat16)
_READ_OF_MEMORY = "cannot be read, because this rank only has a shard of it"
_NO_GRADIENT = "received no gradient in the last backward pass"


class _Buckets:
    """Tells torch's compiler how the gradients of the running model are split into buckets.
    Compiled graphs then end at the buckets, so that communication overlaps with the backward
    pass."""

    def __init__(self, bucket_bytes_cap: int) -> None:
        self.bucket_bytes_cap = bucket_bytes_cap


class _Engine:
    """Callbacks around the calls of one prepared module."""

    def __init__(
        self,
        module: torch.nn.Module,
        context: _C.ModelContext,
        ddp: _C.DdpOptions,
        autocast: Autocast | None,
    ) -> None:
        self.module = module
        self.context = context
        # The context applies the precision of the run. `_autocast` applies other settings.
        self._autocast = None if autocast is None or autocast.is_plain else autocast
        # The dtype of the weights if master weights are trained, otherwise None.
        self._weights = context.weights
        self._buckets = _Buckets(ddp.bucket_cap_mb * 1024 * 1024)
        # `attach` sets this.
        self.deepspeed: DeepSpeedEngine | None = None
        self._thread = threading.local()
        self._inlined: Callable | None = None
        self._list_buffers()
        self._is_sharded = context.is_sharded
        # Whether gradients are synchronised even if a parameter has been removed.
        self._may_miss = self._is_sharded or ddp.find_unused_parameters
        self._parameters = dict(module.named_parameters(remove_duplicate=False))
        self._list_members()

    def _list_buffers(self) -> None:
        self._buffer_slots = [
            (owner._buffers, name)
            for owner in self.module.modules()
            for name, buffer in owner._buffers.items()
            if buffer is not None
        ]
        self._buffers = [table[name] for table, name in self._buffer_slots]

    def _list_members(self) -> None:
        # Without sharding, empty tables can be skipped. Adding a parameter to one of them removes
        # no prepared parameter, so all prepared parameters are still trained.
        self._tables = [
            table
            for owner in self.module.modules()
            for table in (owner._parameters, owner._modules)
            if table or self._is_sharded
        ]
        self._members = [member for table in self._tables for member in table.values()]

    def _check_members(self) -> None:
        """Checks that no parameter was added or removed. The gradient of an added parameter would
        not be synchronised. A removed parameter would block its bucket. In both cases, processes
        would diverge."""
        if _C.contain_exactly(self._tables, self._members):
            return
        now = dict(self.module.named_parameters(remove_duplicate=False))
        present = {id(parameter) for parameter in now.values()}
        prepared = {id(parameter) for parameter in self._parameters.values()}
        came = [n for n, p in now.items() if p.requires_grad and id(p) not in prepared]
        misses = not self._may_miss and any(
            p.requires_grad and id(p) not in present for p in self._parameters.values()
        )
        is_changed = any(now.get(n) is not p for n, p in self._parameters.items())
        if misses or (came and is_changed):
            self.context.check_unchanged("forward", parameter_set(self.module))
        if came and self._is_sharded:
            raise UsageError(
                f"[forward] Parameter '{came[0]}' was added after prepare(), so its gradient would "
                "not be synchronised. Add it before prepare(), or freeze it"
            )
        self._list_members()

    @property
    def is_inside(self) -> bool:
        """Whether this thread is in a call of the module. Nested calls bypass the engine."""
        return getattr(self._thread, "is_inside", False)

    def _compilable(self, function: Callable) -> Callable:
        # Torch's compiler skips the `forward` of torch.nn's modules unless a frame that it compiles
        # calls it.
        from torch._dynamo import trace_rules

        if not trace_rules.check(self.module.__class__.forward):
            return function
        if self._inlined is None:
            module = self.module

            def call(*args: Any, **kwargs: Any) -> Any:
                return module(*args, **kwargs)

            self._inlined = call
        return self._inlined

    def run(self, function: Callable, args: tuple, kwargs: dict) -> Any:
        frames: Any = torch._C._dynamo.eval_frame
        compiler = frames.get_eval_frame_callback()
        if compiler in (None, False):
            return self._run(function, args, kwargs)
        if self.context.is_spread:
            refuse_compiled()
        function = self._compilable(function)

        def compiled(*args: Any, **kwargs: Any) -> Any:
            frames.set_eval_frame(compiler)
            try:
                return function(*args, **kwargs)
            finally:
                frames.set_eval_frame(None)

        # The compiler must see only the user's frames. Our frames would break the graph, or fail
        # with `fullgraph`.
        frames.set_eval_frame(None)
        try:
            return self._run(compiled, args, kwargs)
        finally:
            frames.set_eval_frame(compiler)

    def _run(self, function: Callable, args: tuple, kwargs: dict) -> Any:
        # The user's `forward` may replace a buffer with `self.buffer = new`.
        for (table, name), known in zip(self._buffer_slots, self._buffers):
            if table.get(name) is not known:
                self._list_buffers()
                named = dict(self.module.named_buffers())
                self.context.set_buffers(list(named), list(named.values()))
                break
        if torch.is_grad_enabled():
            self._check_members()
            if self.context.watches_inputs:
                inputs = tensors_of((args, kwargs))
                self.context.note_inputs([t for t in inputs if type(t) is torch.Tensor])
        if self._autocast is not None:
            args, kwargs, function = (function, args, kwargs), {}, self._autocast.run
        if (kind := self._weights) is not None:
            args, kwargs = map_tensors(
                (args, kwargs), lambda t: t.to(kind) if t.dtype == torch.float32 else t
            )
        try:
            forward = self.context.begin_forward()
        except UsageError as error:
            if _NO_GRADIENT in str(error):
                # A parameter was replaced. This check raises an error that names it.
                self.context.check_unchanged("forward", parameter_set(self.module))
            raise
        self._thread.is_inside = True
        ddp: Any = torch.nn.parallel.DistributedDataParallel
        before, ddp._active_ddp_module = ddp._active_ddp_module, self._buckets
        try:
            output = function(*args, **kwargs)
        except BaseException as error:
            forward.abandon()
            # A compiled submodule reads parameters directly from memory. Sharded parameters do not
            # support this.
            if _READ_OF_MEMORY in str(error) and self.context.is_spread:
                if has_compiled_inner(self.module) or "forward" in self.module.__dict__:
                    refuse_compiled()
            raise
        finally:
            ddp._active_ddp_module = before
            self._thread.is_inside = False
        if not forward.wants_outputs:
            forward.finish([])
            return output
        tensors = tensors_of(output)
        finished = forward.finish(tensors)
        if all(before is after for before, after in zip(tensors, finished)):
            return output
        return with_tensors(output, finished)


class _Retyped:
    """The base class of this package's types, in which it precedes the user's class. `__class__` is
    the user's class."""

    _accelerate_kind: type

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Skips the user's hook, which is meant for classes that the user defines."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        # `type(model)(...)` creates a module of the user's class.
        return cls._accelerate_kind(*args, **kwargs)


class InPlace(_Retyped):
    """The user's own module, changed in place to a type of this package. Saved objects and copies
    have the user's class."""

    @property
    def __class__(self) -> type:  # type: ignore[override]
        return self._accelerate_kind

    @__class__.setter
    def __class__(self, kind: type) -> None:
        set_type(self, self._accelerate_type_for(kind))

    @classmethod
    def _accelerate_type_for(cls, kind: type) -> type:
        """Returns the new type of this module after user code sets its `__class__` to `kind`."""
        return kind

    def __reduce_ex__(self, protocol: int) -> Any:
        reduced = super().__reduce_ex__(protocol)
        if isinstance(reduced, str):
            return reduced
        made = tuple(self._accelerate_kind if x is type(self) else x for x in reduced[1])
        return (reduced[0], made, *reduced[2:])


class _InPrecision(InPlace):
    """The user's own module, whose calls compute in the precision of the run."""

    _accelerate_autocast: Autocast

    @classmethod
    def _accelerate_type_for(cls, kind: type) -> type:
        return _type_of(_InPrecision, kind, cls._accelerate_autocast)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._accelerate_autocast.run(super().__call__, args, kwargs)


class _Replayed(InPlace):
    """The user's own module, whose `forward` may be replayed."""

    @classmethod
    def _accelerate_type_for(cls, kind: type) -> type:
        return _type_of(_Replayed, kind)


class _Routed(InPlace):
    """The user's own module, whose calls go through the engine of the prepared module while that
    exists. Loops for DeepSpeed call either of the two."""

    @classmethod
    def _accelerate_type_for(cls, kind: type) -> type:
        return _type_of(_Routed, kind)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        prepared = _prepared_of[self]() if self in _prepared_of else None
        if prepared is None or prepared._accelerate_engine.is_inside:
            return super().__call__(*args, **kwargs)
        return prepared._accelerate_engine.run(super().__call__, args, kwargs)


class _Prepared(_Retyped):
    """A prepared module whose calls go through the engine."""

    __slots__ = ("_accelerate_engine",)
    _is_accelerate_prepared = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        engine = self._accelerate_engine
        if engine.is_inside:
            return super().__call__(*args, **kwargs)
        return engine.run(super().__call__, args, kwargs)

    @property
    def __class__(self) -> type:  # type: ignore[override]
        return self._accelerate_kind

    @__class__.setter
    def __class__(self, kind: type) -> None:
        # Done as in `torch.nn.utils.parametrize`, which adds a property to the module's class.
        self._accelerate_engine.module.__class__ = kind
        set_type(self, _type_of(type(self).__mro__[1], kind))

    def compile(self, *args: Any, **kwargs: Any) -> None:
        if self._accelerate_engine.context.is_spread:
            refuse_compiled()
        # The compiled function is stored in the attributes, and must not refer to the engine.
        self._accelerate_engine.module.compile(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        context = self._accelerate_engine.context
        if context.is_spread or context.weights is not None:
            how = "are sharded" if context.is_spread else "have master weights"
            raise UsageError(
                f"[load_state_dict] The parameters of this model {how}, so weights cannot be "
                "loaded into it directly. Load weights before prepare(), or load a checkpoint with "
                "accelerator.load_state()"
            )
        return super().load_state_dict(*args, **kwargs)

    # Copies are plain modules, because the engine belongs to the parameters that were prepared.
    def __deepcopy__(self, memo: dict) -> torch.nn.Module:
        return copy.deepcopy(self._accelerate_engine.module, memo)

    def __copy__(self) -> torch.nn.Module:
        return copy.copy(self._accelerate_engine.module)

    def __reduce_ex__(self, protocol: int) -> Any:
        return as_wrapped(self._accelerate_engine.module)


def _by_deepspeed_engine(method: Callable) -> Callable:
    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return method(self._accelerate_engine.deepspeed, *args, **kwargs)

    return call


class _DeepSpeedPrepared(_Prepared):
    """A prepared module with the methods of DeepSpeed's engine that loops call."""

    save_checkpoint = _by_deepspeed_engine(DeepSpeedEngine.save_checkpoint)
    load_checkpoint = _by_deepspeed_engine(DeepSpeedEngine.load_checkpoint)

    @property
    def config(self) -> Any:
        """The model's configuration, whose `get` also reads DeepSpeed's configuration. If the model
        has no configuration, this is DeepSpeed's configuration."""
        engine = self._accelerate_engine
        own = getattr(engine.module, "config", None)
        if engine.is_inside or hasattr(own, "get"):
            return engine.module.config
        sections = engine.deepspeed.config
        return sections if own is None else ConfigView(own, sections)

    @config.setter
    def config(self, value: Any) -> None:
        self._accelerate_engine.module.config = value


class _UsersOwn:
    """An attribute of `DistributedDataParallel` that user code reads on a prepared module. An
    attribute of the same name in the user's module takes precedence."""

    def __init__(self, instead: Callable[[Any], Any]) -> None:
        self._instead = instead

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, prepared: Any, owner: type | None = None) -> Any:
        if prepared is None:
            return self
        own = prepared.__dict__
        for table in (own["_modules"], own["_parameters"], own["_buffers"]):
            if self._name in table:
                return table[self._name]
        return self._instead(prepared._accelerate_engine)

    def __bool__(self) -> bool:
        # Since torch 2.14, its compiler reads `_is_fsdp_managed_module` without calling `__get__`,
        # and skips modules for which it is true. The compiler never sees a sharded module.
        return False


def _no_sync(engine: _Engine) -> Callable[[], Scope]:
    return lambda: Scope(engine.context.no_sync())


def _set_syncs(prepared: Any, value: bool) -> None:
    prepared._accelerate_engine.context.syncs_gradients = value


def _as_of_ddp() -> dict[str, Any]:
    return {
        "module": _UsersOwn(lambda engine: engine.module),
        "no_sync": _UsersOwn(_no_sync),
        # transformers reads this to decide whether processes must generate the same number of
        # tokens.
        "_is_fsdp_managed_module": _UsersOwn(lambda engine: engine.context.is_spread),
        "require_backward_grad_sync": property(
            lambda prepared: prepared._accelerate_engine.context.syncs_gradients, _set_syncs
        ),
    }


def _own_compiler_config(prepared: Any) -> NoReturn:
    # Torch's compiler treats modules with this attribute as its own.
    raise AttributeError("get_compiler_config")


def _run_compiled(prepared: Any, *args: Any, **kwargs: Any) -> Any:
    return prepared._accelerate_engine.run(prepared.__dict__["forward"], args, kwargs)


class _CompiledForward:
    """Intercepts a compiled `forward` that torch's compiler stores in the module's attributes, for
    example if a compiled module is compiled again. Otherwise, calls would bypass the engine."""

    def __get__(self, prepared: Any, owner: type | None = None) -> Any:
        if prepared is None:
            return self
        if prepared._accelerate_engine.is_inside:
            return prepared.__dict__["forward"]
        return types.MethodType(_run_compiled, prepared)

    def __set__(self, prepared: Any, forward: Callable) -> None:
        prepared.__dict__["forward"] = forward


def _keep_out_of_graphs(function: Callable) -> Callable:
    """Makes torch's compiler skip this frame and compile the frames that it calls. Does the same as
    torch's own `skip`, which is slow to import."""
    frames: Any = torch._C._dynamo.eval_frame
    action = frames._FrameAction
    strategy = frames._FrameExecStrategy(action.SKIP, action.DEFAULT)
    frames.set_code_exec_strategy(function.__code__, strategy)
    return function


def _is_prepared_as(kind: type, module: Any) -> bool:
    """Whether `module` is prepared and its class is exactly `kind`. False if a custom class calls
    `type(model).forward(self, ...)` to reach its base."""
    return getattr(type(module), "_accelerate_kind", None) is kind


def _forward_of(kind: type, module: Any, *args: Any, **kwargs: Any) -> Any:
    """Calls the user's `forward`, or replays it."""
    replay = module.__dict__.get(REPLAY)
    if replay is None:
        return kind.forward(module, *args, **kwargs)
    return replay(functools.partial(kind.forward, module), args, kwargs)


def _replayed_forward(kind: type) -> Callable:
    @functools.wraps(kind.forward)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not _is_prepared_as(kind, self):
            return kind.forward(self, *args, **kwargs)
        return _forward_of(kind, self, *args, **kwargs)

    return forward


def _engine_forward(kind: type) -> Callable:
    @functools.wraps(kind.forward)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not _is_prepared_as(kind, self):
            return kind.forward(self, *args, **kwargs)
        if (engine := self._accelerate_engine).is_inside:
            return _forward_of(kind, self, *args, **kwargs)
        return engine.run(functools.partial(kind.forward, self), args, kwargs)

    return _keep_out_of_graphs(forward)


def _inner_generate(kind: type) -> Callable:
    """Returns `generate` for PEFT's models, which call their inner module. The whole call goes
    through the engine once. All processes generate the same number of tokens, because gathers are
    collective."""

    @functools.wraps(kind.generate)
    def generate(self: Any, *args: Any, **kwargs: Any) -> Any:
        run = functools.partial(kind.generate, self)
        if not _is_prepared_as(kind, self):
            return run(*args, **kwargs)
        engine = self._accelerate_engine
        if engine.is_inside or not engine.context.is_spread:
            return run(*args, **kwargs)
        with torch.no_grad():
            return engine.run(run, args, {"synced_gpus": True, **kwargs})

    return generate


def _precise_forward(kind: type) -> Callable:
    @functools.wraps(kind.forward)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not _is_prepared_as(kind, self):
            return kind.forward(self, *args, **kwargs)
        run = functools.partial(_forward_of, kind, self)
        return self._accelerate_autocast.run(run, args, kwargs)

    return forward


for _function in (_Engine.run, _Prepared.__call__, _Routed.__call__, _run_compiled, _forward_of):
    _keep_out_of_graphs(_function)

_FORWARDS = {
    _Prepared: _engine_forward,
    _DeepSpeedPrepared: _engine_forward,
    _InPrecision: _precise_forward,
    _Replayed: _replayed_forward,
}
# One type for all modules of a class. A type exists while any of its modules exists.
_types: weakref.WeakValueDictionary[tuple, type] = weakref.WeakValueDictionary()


def _type_of(base: type, kind: type, autocast: Autocast | None = None) -> type:
    key = (base, kind, autocast)
    known = _types.get(key)
    if known is not None:
        return known
    members: dict[str, Any] = {}
    if autocast is not None:
        members["_accelerate_autocast"] = autocast
    # Scripted modules have no `forward` in Python.
    if base in _FORWARDS and getattr(kind, "forward", None) is not None:
        members["forward"] = _FORWARDS[base](kind)
    if (
        issubclass(base, _Prepared)
        and hasattr(kind, "generate")
        and hasattr(kind, "get_base_model")
    ):
        members["generate"] = _inner_generate(kind)
    if issubclass(base, _Prepared):
        for name, member in _as_of_ddp().items():
            if not hasattr(kind, name):
                members[name] = member
        if _is_compiled_kind(kind):
            members["forward"] = _CompiledForward()
            members["get_compiler_config"] = property(_own_compiler_config)
    _types[key] = made = subclass(base, kind, members)
    return made


# Maps each class that user code derived from our types to the user's classes that those types
# represent.
_made_of: weakref.WeakKeyDictionary[type, list[type]] = weakref.WeakKeyDictionary()


class _StandIn:
    """The first base of our types' metaclass. The second base is the user's metaclass. Makes
    `class Sub(type(model))` a subclass of the user's class."""

    def __new__(cls, name: str, bases: tuple, members: dict[str, Any], **kwargs: Any) -> Any:
        if "_accelerate_kind" in members:
            return super().__new__(cls, name, bases, members, **kwargs)  # type: ignore[call-arg]
        kinds = [base._accelerate_kind for base in bases if issubclass(base, _Retyped)]
        users = tuple(
            base._accelerate_kind if issubclass(base, _Retyped) else base for base in bases
        )
        made = types.new_class(name, users, kwargs, lambda space: space.update(members))
        _made_of[made] = kinds
        return made

    def __subclasscheck__(cls, other: type) -> bool:
        if super().__subclasscheck__(other):  # type: ignore[misc]
            return True
        kind = cls._accelerate_kind  # type: ignore[attr-defined]
        return any(kind in _made_of.get(base, ()) for base in other.__mro__)

    def __instancecheck__(cls, instance: Any) -> bool:
        return super().__instancecheck__(instance) or issubclass(  # type: ignore[misc]
            instance.__class__,
            cls,  # type: ignore[arg-type]
        )


@functools.cache
def _metaclass_over(kind: type) -> type:
    made = type(kind.__name__, (_StandIn, kind), {})
    copyreg.pickle(made, lambda ours: as_wrapped(ours._accelerate_kind))
    return made


def subclass(base: type, kind: type, members: dict[str, Any]) -> type:
    """Returns a type of this package that represents the user's class `kind`."""
    as_users = {
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "__doc__": kind.__doc__,
        "_accelerate_kind": kind,
    }
    return _metaclass_over(type(kind))(kind.__name__, (base, kind), as_users | members)


def set_type(module: Any, kind: type) -> None:
    object.__dict__["__class__"].__set__(module, kind)


# The contexts of modules that are prepared in place.
_local: Any = WeakIdKeyDictionary()
# Weak references from `_Routed` modules to their prepared modules.
_prepared_of: Any = WeakIdKeyDictionary()


def attach(
    module: torch.nn.Module,
    context: _C.ModelContext,
    autocast: Autocast | None,
    ddp: _C.DdpOptions,
    deepspeed: DeepSpeedEngine | None = None,
    replay: Any = None,
) -> torch.nn.Module:
    """Returns the module itself, or a prepared object that shares its attributes. The latter is
    needed if the engine has work to do around calls, or if `deepspeed` is given. Calls of `forward`
    go through `replay` if it is given."""
    kind = module.__class__
    module.__dict__.pop(REPLAY, None)
    if replay is not None:
        module.__dict__[REPLAY] = replay
    if autocast is not None:
        set_type(module, _type_of(_InPrecision, kind, autocast))
    elif replay is not None and context.is_local:
        set_type(module, _type_of(_Replayed, kind))
    if context.is_local and deepspeed is None:
        _local[module] = context
        return module
    _local.pop(module, None)
    # Bypasses the user's `__new__`, which may require arguments.
    base = _Prepared if deepspeed is None else _DeepSpeedPrepared
    prepared = object.__new__(_type_of(base, kind))
    object.__setattr__(prepared, "__dict__", module.__dict__)
    engine = _Engine(module, context, ddp, autocast)
    engine.deepspeed = deepspeed
    object.__setattr__(prepared, "_accelerate_engine", engine)
    if deepspeed is not None and context.is_spread:
        set_type(module, _type_of(_Routed, kind))
        _prepared_of[module] = weakref.ref(prepared)
    return prepared


# Compiled modules whose prepared inner module has been unwrapped.
_compiled: weakref.WeakKeyDictionary[Any, torch.nn.Module] = weakref.WeakKeyDictionary()


def is_compiled_module(module: Any) -> bool:
    """Whether `torch.compile` made this module."""
    return _is_compiled_kind(module.__class__)


def _is_compiled_kind(kind: type) -> bool:
    # The compiler is slow to import. If no code has imported it, no module is compiled.
    compiler = sys.modules.get("torch._dynamo.eval_frame")
    return compiler is not None and issubclass(kind, compiler.OptimizedModule)


def _module_of_compiled(function: Any) -> torch.nn.Module | None:
    """Returns the module of a function that `torch.compile` created from a module."""
    if not isinstance(function, types.FunctionType):
        return None
    called: Any = getattr(function, "_torchdynamo_orig_callable", None)
    called = inspect.unwrap(called, stop=lambda inner: hasattr(inner, "__self__"))
    module = getattr(called, "__self__", None)
    return module if isinstance(module, torch.nn.Module) else None


def _prepared_in(model: Any) -> torch.nn.Module | None:
    if (module := _module_of_compiled(model)) is not None:
        model = module
    if issubclass(type(model), _Prepared) or model in _local:
        return model
    if is_compiled_module(model):
        return _compiled[model] if model in _compiled else _prepared_in(model._orig_mod)
    return None


def context_of(model: Any) -> _C.ModelContext | None:
    """Returns the context of a prepared module, which may be compiled, or None for other
    objects."""
    prepared = _prepared_in(model)
    if prepared is None:
        return None
    own = _local.get(prepared)
    return prepared._accelerate_engine.context if own is None else own


def context_for(where: str, model: Any) -> _C.ModelContext:
    """Like `context_of`, but raises `UsageError` for an object that was not prepared."""
    context = context_of(model)
    if context is None:
        raise UsageError(
            f"[{where}] This {type(model).__name__} was not prepared. Pass the model that "
            "prepare() returned"
        )
    return context


def unwrap(model: Any) -> Any:
    """Returns the module that was passed to `prepare`. Other objects are returned unchanged."""
    return model._accelerate_engine.module if issubclass(type(model), _Prepared) else model


def replace_in_compiled(compiled: Any, inner: torch.nn.Module) -> None:
    """Makes `inner` the module that a compiled module exposes. Calls of the compiled module still
    go through the engine."""
    if (prepared := _prepared_in(compiled)) is not None:
        _compiled[compiled] = prepared
    compiled._orig_mod = inner


def take_off_precision(module: torch.nn.Module) -> None:
    """Makes calls of the user's own module compute in the precision of its weights again."""
    if issubclass(type(module), _InPrecision):
        set_type(module, module.__class__)
