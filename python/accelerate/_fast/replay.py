# SPDX-License-Identifier: Apache-2.0
"""Decides which calls of a model are replayed."""

from __future__ import annotations

import enum
import inspect
import random
import sys
import weakref
from collections import Counter, OrderedDict
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from operator import attrgetter
from typing import Any

import torch
from torch.nn.modules import module as torch_module
from torch.utils.hooks import RemovableHandle

from accelerate._base.trees import describe
from accelerate._fast.recorded import (
    Call,
    Memory,
    Outputs,
    RecordedPasses,
    Weights,
    differentiate,
    is_inside_call,
    leaves_of,
    nodes_from,
)
from accelerate._fast.watch import Watch
from accelerate.logging import get_logger

_MAX_GRAPHS = 64
# Libraries choose their kernels in the first eager calls. Each kind of input has at least one.
_NUM_WARM_UPS = 2
# Entries for calls that were made only once. Reached only if something changes in every call.
_MAX_ENTRIES = 1000
_PLAIN = (type(None), bool, int, float, str, bytes, enum.Enum, torch.dtype, torch.device)

_HOOKS_OF = attrgetter("_backward_hooks", "_post_accumulate_grad_hooks")

_log = get_logger(__package__)


class _Entry:
    """What is known about calls with one kind of input."""

    def __init__(self) -> None:
        # Which outputs have a gradient in the backward pass. Known after an eager one.
        self.used: tuple[bool, ...] | None = None
        self.passes: RecordedPasses | None = None

    def note_used(self, used: tuple[bool, ...]) -> None:
        self.used = tuple(a or b for a, b in zip(self.used or used, used))


class _Pass:
    """One forward pass, until its backward pass. Autograd's node owns it."""

    def __init__(self, replay: Replay, entry: _Entry, call: Call) -> None:
        self.replay, self.entry, self.call = replay, entry, call
        self.passes = entry.passes
        self.is_done = False
        self.random_state: Any = None
        self.outputs: Outputs
        # The inputs of an eager pass, and the tensors that it used in place of parameters.
        self.eager_inputs: list[torch.Tensor] | None = None
        self.own: dict[int, torch.Tensor] = {}
        # Tensors with a gradient that are neither inputs nor parameters.
        self.others: list[torch.Tensor] = []
        self.is_checkpointed = False
        # Hooks of outputs from which other outputs are computed, and outputs whose gradient is
        # wanted.
        self.hooks: OrderedDict[int, tuple[int, Callable]] = OrderedDict()
        self.retained: dict[int, weakref.ref] = {}
        # Outputs that are not copies, and their versions.
        self.shared: list[tuple[weakref.ref, int]] = []

    def forward(self) -> list[torch.Tensor]:
        self.random_state = self.replay.recorder.random_state()
        passes = self.passes
        if passes is not None:
            self.outputs = passes.outputs
            return passes.forward(self.call.tensors)
        inputs = [t.detach().requires_grad_(t.requires_grad) for t in self.call.tensors]
        recorder = self.replay.recorder
        with (
            self.replay.weights.applied() as own,
            recorder.as_if_recording(),
            torch.enable_grad(),
        ):
            result = self.call.run(inputs)
        self.outputs = Outputs(result, self.replay.known(inputs), own)
        self.eager_inputs, self.own = inputs, own
        usual = {id(t) for t in (*inputs, *self.replay.watch.parameters, *own.values())}
        nodes = nodes_from(tensor.grad_fn for tensor in self.outputs.computed)
        self.others = [t for t in leaves_of(nodes) if id(t) not in usual]
        # `torch.autograd.grad` does not reach what was computed in these.
        self.is_checkpointed = any(
            type(node).__name__ == "CheckpointFunctionBackward" for node in nodes
        )
        return [tensor.detach() for tensor in self.outputs.computed]

    def backward(
        self, leaves: list[torch.Tensor], gradients: tuple[torch.Tensor | None, ...], edges: tuple
    ) -> list[torch.Tensor | None]:
        used = tuple(g is not None for g in gradients)
        creates_graph = torch.is_grad_enabled()
        if creates_graph:
            return self._repeat(leaves, gradients, "a backward pass uses create_graph", True)
        if self.is_checkpointed:
            return self._repeat(leaves, gradients, "", False, is_plain=True)
        if self.eager_inputs is not None:
            self._note_of_warm_up(used)
            try:
                return self._differentiate(
                    self.outputs.computed, self.eager_inputs, leaves, self.own, gradients
                )
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:
                # For example, checkpoints compute the forward pass again, with the parameters
                # themselves.
                found = self._repeat(leaves, gradients, "", False, is_plain=True)
                line = str(error).splitlines()[0]
                self.replay.refuse(f"its backward pass cannot be recorded ({line})")
                return found
        if self.hooks or self.retained:
            why = "an output has a hook or keeps its gradient, and another output depends on it"
            return self._repeat(leaves, gradients, why, False)
        passes = self.passes
        assert passes is not None
        if any((t := ref()) is not None and t._version != version for ref, version in self.shared):
            # The backward pass may need what the output contained.
            passes.copy_outputs()
            return self._repeat(leaves, gradients, "", False)
        if not passes.covers(used):
            self.entry.note_used(used)
            self.entry.passes = None
            return self._repeat(leaves, gradients, "", False)
        are_reached = passes.seed(gradients)
        owns = (
            all(are_reached)
            and self.replay.owns_gradients
            and _only_accumulates(passes, len(leaves), edges)
        )
        return passes.accumulate() if owns else passes.backward(are_reached)

    def _note_of_warm_up(self, used: tuple[bool, ...]) -> None:
        self.entry.note_used(used)
        if any(p.is_leaf and p.grad is not None for p in self.replay.watch.parameters):
            self.replay.accumulates = True

    def _differentiate(
        self,
        outputs: list[torch.Tensor],
        inputs: list[torch.Tensor],
        leaves: list[torch.Tensor],
        own: dict[int, torch.Tensor],
        gradients: tuple[torch.Tensor | None, ...],
        creates_graph: bool = False,
        is_plain: bool = False,
    ) -> list[torch.Tensor | None]:
        handles = [outputs[position].register_hook(hook) for position, hook in self.hooks.values()]
        for position in self.retained:
            outputs[position].retain_grad()
        pairs = [(t, g) for t, g in zip(outputs, gradients) if g is not None]
        # The model may have set `requires_grad` of others.
        inputs = [t for t, original in zip(inputs, self.call.tensors) if original.requires_grad]
        try:
            if is_plain or self.others:
                wanted = None if is_plain else self.others
                keeps = not is_plain or _keeps_graph()
                torch.autograd.backward(*zip(*pairs), retain_graph=keeps, inputs=wanted)
            if is_plain:
                # Parameters have their gradients.
                return [*(t.grad for t in inputs), *[None] * (len(leaves) - len(inputs))]
            found = differentiate(
                [tensor for tensor, _ in pairs],
                [g for _, g in pairs],
                inputs,
                leaves[len(inputs) :],
                own,
                retain_graph=creates_graph or _keeps_graph(),
                create_graph=creates_graph,
            )
        finally:
            for handle in handles:
                handle.remove()
        for position, ref in self.retained.items():
            if (tensor := ref()) is not None:
                tensor.grad = outputs[position].grad
        return found

    def _repeat(
        self,
        leaves: list[torch.Tensor],
        gradients: tuple[torch.Tensor | None, ...],
        why: str,
        creates_graph: bool,
        is_plain: bool = False,
    ) -> list[torch.Tensor | None]:
        """Computes the gradients from an eager forward pass with the same random numbers. The model
        runs eagerly from then on if `why` is given."""
        replay = self.replay
        held = self.eager_inputs if self.passes is None else self.passes.inputs
        assert held is not None
        given = iter(leaves)
        inputs = [
            next(given) if original.requires_grad else t
            for t, original in zip(held, self.call.tensors)
        ]
        if is_plain:
            inputs = [
                t.detach().requires_grad_(original.requires_grad)
                for t, original in zip(inputs, self.call.tensors)
            ]
        buffers = [(buffer, buffer.clone()) for buffer in replay.watch.buffers]
        recorder = replay.recorder
        after = recorder.random_state()
        recorder.set_random_state(self.random_state)
        # A graph of the gradients needs the parameters themselves.
        none: dict[int, torch.Tensor] = {}
        applied = nullcontext(none) if creates_graph or is_plain else replay.weights.applied()
        try:
            with applied as own, recorder.as_if_recording(), torch.enable_grad():
                result = self.call.run(inputs)
        finally:
            recorder.set_random_state(after)
            with torch.no_grad():
                for buffer, before in buffers:
                    buffer.copy_(before)
        if why:
            replay.refuse(why)
        outputs = Outputs(result, replay.known(inputs), own).computed
        return self._differentiate(outputs, inputs, leaves, own, gradients, creates_graph, is_plain)


def _keeps_graph() -> bool:
    return torch._C._autograd._get_current_graph_task_keep_graph()


def _only_accumulates(passes: RecordedPasses, num_leaves: int, edges: tuple) -> bool:
    """Whether the running backward pass adds to the `grad` of all parameters, and nobody looks at
    their gradients on the way."""
    if any(map(any, map(_HOOKS_OF, passes.parameters))):
        return False
    first = len(edges) - num_leaves
    try:
        return all(
            torch._C._will_engine_execute_node(edges[first + i][0]) for i in passes.positions
        )
    except RuntimeError:  # `torch.autograd.grad` wants the gradient of a parameter.
        return False


class _Node(torch.autograd.Function):
    """The whole model as one node of autograd's graph."""

    @staticmethod
    def forward(ctx: Any, one: _Pass, *leaves: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.one = one
        ctx.set_materialize_grads(False)
        # Autograd then reports weights that change before the backward pass, and a second backward
        # pass without `retain_graph`, as for the model itself.
        ctx.save_for_backward(*leaves)
        results = one.forward()
        ctx.mark_non_differentiable(
            *(t for t, is_real in zip(results, one.outputs.is_differentiable) if not is_real)
        )
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple:
        leaves = list(ctx.saved_tensors)
        found = ctx.one.backward(leaves, gradients, ctx.next_functions)
        if not _keeps_graph():
            ctx.one.is_done = True
        return (None, *found)


class Replay:
    """Replays the passes of one prepared model where that is possible."""

    def __init__(
        self,
        module: torch.nn.Module,
        recorder: Any,
        device: torch.device,
        *,
        weight_dtype: torch.dtype | None = None,
        accumulates: bool = False,
        owns_gradients: bool = True,
        refusal: str = "",
    ) -> None:
        """With `weight_dtype`, the model computes with copies of its fp32 weights. `accumulates` is
        whether gradients are summed over several backward passes. `owns_gradients` is false if
        something else reads gradients while they arrive, such as an engine that averages them over
        processes. With `refusal`, all calls run eagerly."""
        self._name = module.__class__.__name__
        self._module = weakref.ref(module)
        self._device = device
        self._weight_dtype = weight_dtype
        self.weights: Weights
        self.recorder = recorder
        self.accumulates = accumulates
        self.owns_gradients = owns_gradients
        self.watch: Watch
        self._is_watching = False
        self._refusal = refusal
        self._addresses: tuple = ()
        self._num_graphs = 0
        self._num_replays = 0
        self._num_warm_ups = 0
        self._eager: Counter[str] = Counter()
        self._last: weakref.ref[_Pass] | None = None
        self._is_busy = False
        self._cache_position: int | None = None
        self._forget()
        if refusal:
            self._announce(refusal)

    def __reduce__(self) -> Any:
        # Copies of the module are plain modules.
        return type(None), ()

    def _forget(self) -> None:
        self._entries: dict[tuple, _Entry] = {}
        self._num_graphs = 0
        self._memory = Memory()

    def _alive(self) -> torch.nn.Module:
        module = self._module()
        assert module is not None
        return module

    def report(self) -> dict[str, Any]:
        """Returns the name of the model, how many forward passes were replayed and how many graphs
        exist, and how many passes ran eagerly for each reason."""
        return {
            "model": self._name,
            "replayed": self._num_replays,
            "graphs": self._num_graphs,
            "eager": {why: count for why, count in self._eager.items() if count},
        }

    def known(self, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        """The tensors that a result may contain as they are."""
        return [*inputs, *self.watch.parameters, *self.watch.buffers]

    def refuse(self, why: str) -> None:
        """Makes all later calls run eagerly."""
        self._forget()
        self._refusal = why
        self._announce(why)

    def _announce(self, why: str) -> None:
        if why not in self._eager:
            _log.warning(f"[fast] {self._name} runs eagerly: {why}")
            self._eager[why] = 0

    def __call__(self, function: Callable, args: tuple, kwargs: dict) -> Any:
        """Calls `function`, which is the `forward` of the module's class."""
        if not torch.is_grad_enabled() or self._is_busy or is_inside_call():
            return function(*args, **kwargs)
        if not self._refusal:
            args, kwargs = self._without_cache(args, kwargs)
        call = Call(function, args, kwargs, self._device.type)
        why = self._refusal or self._why_not_here()
        key, why = self._key_of(call) if not why else ((), why)
        if why:
            return self._run_eagerly(why, call)
        self._is_busy = True
        try:
            return self._run(self._entries.setdefault(key, _Entry()), call)
        finally:
            self._is_busy = False

    def _run_eagerly(self, why: str, call: Call) -> Any:
        self._announce(why)
        self._eager[why] += 1
        return call.run_plainly()

    def _without_cache(self, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        """Models of transformers fill the cache of `generate` in every call. In training, nobody
        reads the cache unless the caller passes `use_cache`."""
        module: Any = self._alive()
        if "use_cache" in kwargs or not getattr(
            getattr(module, "config", None), "use_cache", False
        ):
            return args, kwargs
        if self._cache_position is None:
            names = list(inspect.signature(module.__class__.forward).parameters)
            # The first parameter is the module.
            self._cache_position = names.index("use_cache") - 1 if "use_cache" in names else 0
        if len(args) >= self._cache_position:
            return args, kwargs
        return args, {**kwargs, "use_cache": False}

    def _why_not_here(self) -> str:
        """Returns why no call could be recorded at this point of the program."""
        autograd = torch._C._autograd
        if torch.compiler.is_compiling() or self.recorder.is_recording():
            return "it is called while another graph is recorded"
        if torch_module._has_any_global_hook():
            return "there are global module hooks"
        if torch._C._len_torch_dispatch_stack() or torch._C._len_torch_function_stack():
            return "a torch mode is active"
        if torch._C._functorch.peek_interpreter_stack() is not None:
            return "it is called in a transform of torch.func"
        if autograd._top_saved_tensors_default_hooks(False) is not None:
            return "hooks of saved tensors are active"
        if torch.is_anomaly_enabled():
            return "anomaly detection is on"
        return ""

    def _key_of(self, call: Call) -> tuple[tuple, str]:
        """Returns everything that makes another graph necessary, or why there can be none."""
        if not self._is_watching:
            self.watch, self._is_watching = Watch(self._alive()), True
        watch = self.watch
        watch.update()
        if watch.hooked:
            return (), f"the submodule '{watch.hooked}' has hooks"
        if any(p._backward_hooks for p in watch.parameters):
            return (), "a parameter has hooks"
        try:
            text = describe(call.inputs, _plain)
        except TypeError as error:
            return (), f"an argument is {error}"
        inputs = []
        for tensor in call.tensors:
            if type(tensor) is not torch.Tensor or tensor.layout != torch.strided:
                return (), f"an input is a {type(tensor).__name__} with {tensor.layout}"
            if tensor.device != self._device:
                return (), f"an input is on {tensor.device}. Move it to {self._device}"
            inputs.append((tensor.shape, tensor.stride(), tensor.dtype, tensor.requires_grad))
        trained = tuple([p.requires_grad for p in watch.parameters])
        if not any(trained) and not any(t.requires_grad for t in call.tensors):
            return (), "nothing requires a gradient"
        addresses = (
            tuple([(id(p), p.data_ptr()) for p in watch.parameters]),
            tuple([b.data_ptr() for b in watch.buffers]),
        )
        if len(self._entries) > _MAX_ENTRIES:
            self.refuse("its inputs or attributes are different in nearly every call")
            return (), self._refusal
        if addresses != self._addresses:
            self._forget()
            self._addresses = addresses
            self.weights = Weights(self._alive(), self._weight_dtype)
        switches = (
            torch.get_float32_matmul_precision(),
            torch.are_deterministic_algorithms_enabled(),
        )
        return (watch.state, trained, text, tuple(inputs), call.autocast, switches), ""

    def _run(self, entry: _Entry, call: Call) -> Any:
        last = self._last and self._last()
        if last is not None and not last.is_done:
            return self._run_eagerly("another forward pass came before the backward pass", call)
        if entry.passes is None:
            if self._num_warm_ups < _NUM_WARM_UPS or entry.used is None:
                return self._warm_up(entry, call)
            if self._num_graphs >= _MAX_GRAPHS:
                why = (
                    f"there are inputs of more than {_MAX_GRAPHS} kinds. Pad batches to fewer "
                    "lengths, and pass numbers that change as tensors"
                )
                return self._run_eagerly(why, call)
            try:
                self._record(entry, call)
            except Exception as error:  # Anything that `forward` raises while it is recorded.
                self.refuse(f"it cannot be recorded ({str(error).splitlines()[0]})")
                return self._run_eagerly(self._refusal, call)
        self._num_replays += 1
        return self._apply(_Pass(self, entry, call))

    def _record(self, entry: _Entry, call: Call) -> None:
        assert entry.used is not None
        entry.passes = RecordedPasses(
            self.recorder,
            call,
            self.weights,
            [p for p in self.watch.parameters if p.requires_grad],
            self.known([]),
            entry.used,
            self._memory,
            self.accumulates,
        )
        self._num_graphs += 1

    def _apply(self, one: _Pass) -> Any:
        tensors = one.call.tensors
        leaves = [t for t in (*tensors, *self.watch.parameters) if t.requires_grad]
        computed = list(_Node.apply(one, *leaves))
        passes = one.passes
        for position, tensor in enumerate(computed):
            if passes is not None and passes.is_shared(position):
                one.shared.append((weakref.ref(tensor), tensor._version))
            if one.outputs.is_inner[position] and tensor.requires_grad:
                # The node has no gradient of this tensor. If one is wanted, the pass is repeated.
                ref = weakref.ref(tensor)
                tensor.register_hook = partial(_register_hook, one, position)
                tensor.retain_grad = partial(one.retained.__setitem__, position, ref)
        self._last = weakref.ref(one)
        return one.outputs.put_together(computed, self.known(tensors))

    def _warm_up(self, entry: _Entry, call: Call) -> Any:
        # The first call may create what the model keeps.
        is_first = self._num_warm_ups == 0
        versions = [t._version for t in call.tensors]
        host = _host_generators()
        one = _Pass(self, entry, call)
        self._num_warm_ups += 1
        self._eager["warming up"] += 1
        result = self._apply(one)
        if versions != [t._version for t in call.tensors]:
            self.refuse("its forward changes an input in place")
        elif not is_first and self.watch.has_changed():
            self.refuse(f"its forward sets {self.watch.first_change()}")
        elif one.is_checkpointed:
            self.refuse("its forward uses checkpoints with use_reentrant=True")
        elif one.others:
            self.refuse("its forward uses a tensor that is neither an input nor a parameter")
        elif not is_first and host != _host_generators():
            self.refuse("its forward draws random numbers on the host")
        try:
            describe(one.outputs.result, _plain)
        except TypeError as error:
            self.refuse(f"its forward returns {error}")
        return result


def _register_hook(one: _Pass, position: int, hook: Callable) -> RemovableHandle:
    handle = RemovableHandle(one.hooks)
    one.hooks[handle.id] = (position, hook)
    return handle


def _plain(value: Any) -> str:
    if not isinstance(value, _PLAIN):
        raise TypeError(f"an object of type {type(value).__name__}")
    return repr(value)


def _host_generators() -> tuple:
    numpy: Any = sys.modules.get("numpy")
    own = None if numpy is None else repr(numpy.random.get_state())
    return torch.get_rng_state().tolist(), random.getstate(), own
