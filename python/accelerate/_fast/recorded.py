# SPDX-License-Identifier: Apache-2.0
"""The forward and backward passes of one kind of input, recorded as graphs."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from accelerate import _C
from accelerate._base.trees import tensors_of, with_tensors

# Larger outputs are returned without a copy.
_COPIED_BYTES = 1 << 20


class DeviceRecorder:
    """Records the work of one model. Its graphs share memory, so only one of them may be between
    its forward and its backward pass."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._memory = _C.make_graph_memory(device)

    def record(self, work: Callable[[], list[torch.Tensor]]) -> tuple[Any, list[torch.Tensor]]:
        """Records what `work` launches. Returns an object with `replay`, and the tensors that each
        replay fills, which are those that `work` returns."""
        results: list[torch.Tensor] = []
        # Freeing an old graph is not allowed during a recording.
        collects = gc.isenabled()
        gc.disable()
        try:
            graph = _C.record_graph(self._device, self._memory, lambda: results.extend(work()))
        finally:
            if collects:
                gc.enable()
        return graph, results

    def is_recording(self) -> bool:
        return _C.is_recording_graph(self._device)

    @contextmanager
    def as_if_recording(self) -> Iterator[None]:
        """Makes libraries compute as they do while a graph is recorded. For example, transformers
        otherwise leaves out a mask that hides nothing, which selects another kernel for
        attention."""
        before = torch.cuda.is_current_stream_capturing
        torch.cuda.is_current_stream_capturing = lambda: True
        try:
            yield
        finally:
            torch.cuda.is_current_stream_capturing = before

    def _generator(self) -> torch.Generator:
        index = self._device.index
        return torch.cuda.default_generators[
            torch.cuda.current_device() if index is None else index
        ]

    def random_state(self) -> Any:
        """The state of the generator from which recorded work draws."""
        generator = self._generator()
        return generator.initial_seed(), generator.get_offset()

    def set_random_state(self, state: Any) -> None:
        generator = self._generator()
        generator.manual_seed(state[0])
        generator.set_offset(state[1])


_thread = threading.local()


def is_inside_call() -> bool:
    """Whether this thread is in `Call.run`. Models that the called one contains then run as part of
    it."""
    return getattr(_thread, "is_inside", False)


class Call:
    """The function and the arguments of a call, and the precision in which it was made."""

    def __init__(self, function: Callable, args: tuple, kwargs: dict, device_type: str) -> None:
        self._function = function
        self.inputs = (args, kwargs)
        self.tensors = tensors_of(self.inputs)
        self.autocast = (
            device_type,
            torch.get_autocast_dtype(device_type),
            torch.is_autocast_enabled(device_type),
            torch.is_autocast_cache_enabled(),
        )

    def run(self, tensors: list[torch.Tensor]) -> Any:
        """Calls the function with these tensors. Backward passes run on another thread, on which
        autocast is off."""
        args, kwargs = with_tensors(self.inputs, tensors)
        before, _thread.is_inside = is_inside_call(), True
        try:
            return self._run(args, kwargs)
        finally:
            _thread.is_inside = before

    def _run(self, args: tuple, kwargs: dict) -> Any:
        kind, dtype, is_enabled, has_cache = self.autocast
        if torch.is_autocast_enabled(kind) == is_enabled:
            return self._function(*args, **kwargs)
        with torch.autocast(kind, dtype, enabled=is_enabled, cache_enabled=has_cache):
            return self._function(*args, **kwargs)

    def run_plainly(self) -> Any:
        args, kwargs = self.inputs
        return self._function(*args, **kwargs)


class Outputs:
    """The tensors that a forward pass has computed, and how its result contains them."""

    def __init__(
        self, result: Any, known: list[torch.Tensor], own: dict[int, torch.Tensor]
    ) -> None:
        """`known` are inputs, parameters and buffers, which a model may return as they are. `own`
        are the tensors with which it computed in place of parameters."""
        positions = {id(own.get(id(t), t)): i for i, t in enumerate(known)}
        tensors = tensors_of(result)
        self.result = result
        self._same_as = [positions.get(id(tensor)) for tensor in tensors]
        self.computed = [t for t, same in zip(tensors, self._same_as) if same is None]
        self.is_differentiable = [t.requires_grad for t in self.computed]
        self.is_inner = _are_inner(self.computed)

    def put_together(self, computed: Iterable[torch.Tensor], known: list[torch.Tensor]) -> Any:
        """Returns the result with these tensors."""
        rest = iter(computed)
        tensors = [next(rest) if same is None else known[same] for same in self._same_as]
        return with_tensors(self.result, tensors)

    def detach(self) -> None:
        """Releases autograd's graph."""
        detached = [tensor.detach() for tensor in self.computed]
        known = {id(tensor): tensor for tensor in tensors_of(self.result)}
        for tensor, alone in zip(self.computed, detached):
            known[id(tensor)] = alone
        self.result = with_tensors(self.result, [known[id(t)] for t in tensors_of(self.result)])
        self.computed = detached


def _are_inner(tensors: list[torch.Tensor]) -> list[bool]:
    """For each tensor, whether another one was computed from it, as a loss from logits."""
    nodes = [tensor.grad_fn for tensor in tensors]
    behind = {inner for node in nodes if node is not None for inner, _ in node.next_functions}
    inner = set(nodes_from(behind))
    return [node in inner for node in nodes]


def nodes_from(starts: Iterable[Any]) -> list[Any]:
    """Returns these nodes of autograd's graph, and those that their gradients flow to. None is
    ignored."""
    found: list[Any] = []
    seen: set[Any] = {None}
    waiting = list(starts)
    while waiting:
        node = waiting.pop()
        if node not in seen:
            seen.add(node)
            found.append(node)
            waiting += [inner for inner, _ in node.next_functions]
    return found


def leaves_of(nodes: list[Any]) -> list[torch.Tensor]:
    """Returns the leaves among the nodes."""
    # Only nodes of leaves have this attribute.
    leaves = (getattr(node, "variable", None) for node in nodes)
    return [leaf for leaf in leaves if leaf is not None]


class Weights:
    """The tensors with which a model computes in place of its parameters: other tensors on the same
    memory, or copies of another dtype, which spare a cast of each weight and of everything that the
    weights touch. Graphs need tensors of their own because autograd remembers on which stream a
    leaf was first used."""

    def __init__(self, module: torch.nn.Module, dtype: torch.dtype | None) -> None:
        self._slots = [
            (owner._parameters, name, parameter)
            for owner in module.modules()
            for name, parameter in owner._parameters.items()
            if parameter is not None
        ]
        self._converted = list(
            {
                id(p): p for *_, p in self._slots if dtype is not None and p.dtype == torch.float32
            }.values()
        )
        self._copies = [p.detach().to(dtype) for p in self._converted]

    @contextmanager
    def applied(self) -> Iterator[dict[int, torch.Tensor]]:
        """Makes the module compute with new tensors that have the values of the parameters. Returns
        these by the id of the parameter."""
        with torch.no_grad():
            if self._copies:
                torch._foreach_copy_(self._copies, self._converted)
        memory = {id(p): copy for p, copy in zip(self._converted, self._copies)}
        own: dict[int, torch.Tensor] = {}
        for *_, p in self._slots:
            if id(p) not in own:
                values = memory.get(id(p), p).detach()
                own[id(p)] = torch.nn.Parameter(values, requires_grad=p.requires_grad)
        try:
            for table, name, p in self._slots:
                table[name] = own[id(p)]
            yield own
        finally:
            for table, name, p in self._slots:
                table[name] = p


def differentiate(
    outputs: list[torch.Tensor],
    gradients: list[torch.Tensor],
    inputs: list[torch.Tensor],
    parameters: list[torch.Tensor],
    own: dict[int, torch.Tensor],
    **options: Any,
) -> list[torch.Tensor | None]:
    """Returns the gradients of inputs and parameters. `own` are the tensors with which the model
    computed in place of its parameters; modules that keep their parameters elsewhere, such as
    LSTMs, may have used the parameters too."""
    instead = [own[id(p)] for p in parameters if id(p) in own]
    found = torch.autograd.grad(
        outputs, [*inputs, *parameters, *instead], gradients, allow_unused=True, **options
    )
    count = len(inputs) + len(parameters)
    more = iter(found[count:])
    of_parameters = zip(parameters, found[len(inputs) : count])
    return [
        *found[: len(inputs)],
        *(_sum(g, next(more)) if id(p) in own else g for p, g in of_parameters),
    ]


def _sum(a: torch.Tensor | None, b: torch.Tensor | None) -> torch.Tensor | None:
    if a is None or b is None:
        return b if a is None else a
    return a + b


class Memory:
    """What the graphs of one model share, besides the memory of their recorded work: tensors for
    the gradients of parameters, and the outputs that callers got without a copy."""

    def __init__(self) -> None:
        self.gradients = _C.ReusedMemory()
        self._outputs = _C.ReusedMemory()
        self._handed_out: list[int] = []
        self._known: dict[int, tuple[int, torch.Tensor]] = {}

    def gradient_of(self, parameter: torch.Tensor) -> tuple[int, torch.Tensor]:
        """Returns the index in `gradients` and the tensor for the gradient of a parameter. Must be
        called for the first time outside of a recording: memory of a recording is reused by the
        forward passes of all graphs."""
        known = self._known.get(id(parameter))
        if known is None:
            tensor = torch.empty_like(parameter, requires_grad=False)
            known = self._known[id(parameter)] = (self.gradients.add(tensor), tensor)
        return known

    def add_output(self, tensor: torch.Tensor) -> int:
        return self._outputs.add(tensor)

    def hand_out(self, outputs: list[int]) -> list[torch.Tensor]:
        """Returns outputs of the latest forward pass without a copy."""
        self._handed_out = outputs
        return self._outputs.hand_out(outputs)

    def reclaim_outputs(self) -> None:
        """Call this before any graph is replayed, because each may overwrite the outputs of the
        others."""
        self._outputs.reclaim(self._handed_out)
        self._handed_out = []


class RecordedPasses:
    """Recorded work and the tensors that it reads and writes."""

    def __init__(
        self,
        recorder: Any,
        call: Call,
        weights: Weights,
        parameters: list[torch.Tensor],
        known: list[torch.Tensor],
        used: tuple[bool, ...],
        memory: Memory,
        accumulates: bool,
    ) -> None:
        """`parameters` are those that require a gradient, `known` the parameters and buffers that
        the result may contain, and `used` tells which of the computed outputs have a gradient.
        With `accumulates`, a second backward pass is recorded, which adds to the gradients."""
        for parameter in parameters:
            memory.gradient_of(parameter)
        self._inputs = [t.detach().clone().requires_grad_(t.requires_grad) for t in call.tensors]
        leaves = [t for t in self._inputs if t.requires_grad]
        self._num_inputs, self._used = len(leaves), used
        state: dict[str, Any] = {}

        def forward() -> list[torch.Tensor]:
            with weights.applied() as own, torch.enable_grad():
                result = call.run(self._inputs)
            state["own"] = own
            state["outputs"] = outputs = Outputs(result, [*self._inputs, *known], own)
            return [tensor.detach() for tensor in outputs.computed]

        # A cast that autocast has made before would keep the present values of a weight.
        torch.clear_autocast_cache()
        self._forward, self._results = recorder.record(forward)
        outputs = self.outputs = state["outputs"]
        self._memory = memory
        self._seeds = [torch.zeros_like(t) for t, is_used in zip(outputs.computed, used) if is_used]
        # For each used output, the parameters from which it was computed.
        of_own = {id(t): number for number, t in state["own"].items()}
        self._reached = [
            {of_own.get(id(leaf), id(leaf)) for leaf in leaves_of(nodes_from([t.grad_fn]))}
            for t, is_used in zip(outputs.computed, used)
            if is_used
        ]
        found: dict[str, list[torch.Tensor | None]] = {}

        def backward(retains: bool) -> None:
            computed = [t for t, is_used in zip(state["outputs"].computed, used) if is_used]
            found["all"] = differentiate(
                computed, self._seeds, leaves, parameters, state["own"], retain_graph=retains
            )

        def store(operator: Callable, retains: bool) -> list[torch.Tensor]:
            """Returns the gradients of the inputs."""
            backward(retains)
            pairs = [
                (memory.gradient_of(p)[1], g)
                for p, g in zip(parameters, found["all"][self._num_inputs :])
                if g is not None
            ]
            with torch.no_grad():
                if pairs:
                    operator([target for target, _ in pairs], [g for _, g in pairs])
            return [g for g in found["all"][: self._num_inputs] if g is not None]

        def write() -> list[torch.Tensor]:
            return store(torch._foreach_copy_, accumulates)

        def add() -> list[torch.Tensor]:
            return store(torch._foreach_add_, False)

        self._write, self._of_inputs = recorder.record(write)
        self._has_input_gradient = [g is not None for g in found["all"][: self._num_inputs]]
        has_gradient = [g is not None for g in found["all"][self._num_inputs :]]
        self.parameters = [p for p, has in zip(parameters, has_gradient) if has]
        # Where these are among the leaves: the inputs that require a gradient, then parameters.
        self.positions = [len(leaves) + i for i, has in enumerate(has_gradient) if has]
        self._places = [memory.gradient_of(p)[0] for p in self.parameters]
        self._has_gradient = has_gradient
        self._add, self._of_inputs_too = recorder.record(add) if accumulates else (None, [])
        found.clear()
        state.clear()
        outputs.detach()
        torch.clear_autocast_cache()
        self._large = {
            i: memory.add_output(t)
            for i, t in enumerate(self._results)
            if t.numel() * t.element_size() > _COPIED_BYTES
        }

    def is_shared(self, position: int) -> bool:
        """Whether the caller gets this output without a copy."""
        return position in self._large

    def copy_outputs(self) -> None:
        """Copies all outputs from now on, because the caller changes them."""
        self._large.clear()

    def forward(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        """Replays the forward pass. The results belong to the caller."""
        self._memory.reclaim_outputs()
        with torch.no_grad():
            for own, tensor in zip(self._inputs, tensors):
                own.copy_(tensor, non_blocking=True)
        self._forward.replay()
        shared = iter(self._memory.hand_out(list(self._large.values())))
        return [
            next(shared) if i in self._large else t.clone() for i, t in enumerate(self._results)
        ]

    @property
    def inputs(self) -> list[torch.Tensor]:
        """The inputs of the latest forward pass."""
        return self._inputs

    def covers(self, used: tuple[bool, ...]) -> bool:
        """Whether the recorded backward pass reads the gradients of these outputs."""
        return all(own or not other for own, other in zip(self._used, used))

    def seed(self, gradients: tuple[torch.Tensor | None, ...]) -> list[bool]:
        """Sets the gradients of the outputs for the next backward pass. Returns which of
        `parameters` have a gradient in it."""
        given = [g for g, is_used in zip(gradients, self._used) if is_used]
        for own, gradient in zip(self._seeds, given):
            if gradient is None:
                own.zero_()
            else:
                own.copy_(gradient)
        if all(g is not None for g in given):
            return [True] * len(self.parameters)
        reached = set().union(*(ids for ids, g in zip(self._reached, given) if g is not None))
        return [id(p) in reached for p in self.parameters]

    def backward(self, are_reached: list[bool]) -> list[torch.Tensor | None]:
        """Replays the backward pass. Returns the gradients of the inputs that require one, and of
        all parameters. `are_reached` is the result of `seed`."""
        memory = self._memory.gradients
        memory.reclaim(self._places)
        self._write.replay()
        places = [place for place, is_reached in zip(self._places, are_reached) if is_reached]
        given, reached = iter(memory.hand_out(places)), iter(are_reached)
        return [
            *self._copies(self._of_inputs),
            *(next(given) if has and next(reached) else None for has in self._has_gradient),
        ]

    def _copies(self, of_inputs: list[torch.Tensor]) -> list[torch.Tensor | None]:
        given = iter(of_inputs)
        return [next(given).clone() if has else None for has in self._has_input_gradient]

    def accumulate(self) -> list[torch.Tensor | None]:
        """Like `backward`, but also does what autograd would do with the gradients of parameters:
        sets or increases `grad`."""
        memory, places = self._memory.gradients, self._places
        rest = [None] * len(self._has_gradient)
        # None if no parameter has a gradient.
        are_own = memory.owns_gradients(places, self.parameters)
        if self._add is not None and are_own:
            self._add.replay()
            return [*self._copies(self._of_inputs_too), *rest]
        memory.reclaim(places)
        self._write.replay()
        if are_own is None:
            memory.hand_out_gradients(places, self.parameters)
        else:
            self._add_to_gradients(memory.hand_out(places))
        return [*self._copies(self._of_inputs), *rest]

    def _add_to_gradients(self, new: list[torch.Tensor]) -> None:
        with torch.no_grad():
            for parameter, gradient in zip(self.parameters, new):
                if parameter.grad is None:
                    parameter.grad = gradient
                else:
                    parameter.grad.add_(gradient)
