# SPDX-License-Identifier: Apache-2.0
"""The forward and backward passes of one kind of input, recorded as graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from accelerate import _C
from accelerate._base.trees import tensors_of, with_tensors

# Larger outputs are handed out without a copy.
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
        graph = _C.record_graph(self._device, self._memory, lambda: results.extend(work()))
        return graph, results

    def is_recording(self) -> bool:
        return _C.is_recording_graph(self._device)

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

    def __init__(self, result: Any, known: list[torch.Tensor]) -> None:
        """`known` are inputs, parameters and buffers, which a model may return as they are."""
        positions = {id(tensor): i for i, tensor in enumerate(known)}
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

    def detach(self) -> list[torch.Tensor]:
        """Releases autograd's graph. Returns the detached tensors."""
        detached = [tensor.detach() for tensor in self.computed]
        known = {id(tensor): tensor for tensor in tensors_of(self.result)}
        for tensor, alone in zip(self.computed, detached):
            known[id(tensor)] = alone
        self.result = with_tensors(self.result, [known[id(t)] for t in tensors_of(self.result)])
        self.computed = detached
        return detached


def _are_inner(tensors: list[torch.Tensor]) -> list[bool]:
    """For each tensor, whether another one was computed from it, as a loss from logits."""
    nodes = [tensor.grad_fn for tensor in tensors]
    wanted = {node for node in nodes if node is not None}
    inner: set[Any] = set()
    if len(wanted) > 1:
        seen: set[Any] = set()
        waiting = [inner_node for node in wanted for inner_node, _ in node.next_functions]
        while waiting:
            node = waiting.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            if node in wanted:
                inner.add(node)
            waiting += [inner_node for inner_node, _ in node.next_functions]
    return [node in inner for node in nodes]


class Weights:
    """The tensors with which a model computes: its parameters, or copies of another dtype, which
    spare a cast of each weight and of everything that the weights touch."""

    def __init__(self, module: torch.nn.Module, dtype: torch.dtype | None) -> None:
        self._slots: list[tuple[dict, str, torch.Tensor]] = []
        self._copies: dict[int, torch.nn.Parameter] = {}
        self._parameters: list[torch.Tensor] = []
        for owner in module.modules() if dtype is not None else ():
            for name, parameter in owner._parameters.items():
                if parameter is None or parameter.dtype != torch.float32:
                    continue
                self._slots.append((owner._parameters, name, parameter))
                if id(parameter) not in self._copies:
                    self._parameters.append(parameter)
                    self._copies[id(parameter)] = torch.nn.Parameter(
                        parameter.detach().to(dtype), requires_grad=False
                    )

    def of(self, parameter: torch.Tensor) -> torch.Tensor:
        """The tensor with which the model computes instead of a parameter."""
        return self._copies.get(id(parameter), parameter)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Makes the module compute with the copies, which get the present values."""
        if not self._slots:
            yield
            return
        copies = list(self._copies.values())
        with torch.no_grad():
            torch._foreach_copy_(copies, self._parameters)
        for parameter, copy in zip(self._parameters, copies):
            copy.requires_grad_(parameter.requires_grad)
        try:
            for table, name, parameter in self._slots:
                table[name] = self._copies[id(parameter)]
            yield
        finally:
            for table, name, parameter in self._slots:
                table[name] = parameter


class Gradients:
    """The memory in which all graphs of a model leave the gradients of its parameters."""

    def __init__(self) -> None:
        self.memory = _C.ReusedMemory()
        self._known: dict[int, tuple[int, torch.Tensor]] = {}

    def of(self, parameter: torch.Tensor) -> tuple[int, torch.Tensor]:
        """Returns the index in `memory` and the tensor for the gradient of a parameter."""
        known = self._known.get(id(parameter))
        if known is None:
            tensor = torch.empty_like(parameter, requires_grad=False)
            known = self._known[id(parameter)] = (self.memory.add(tensor), tensor)
        return known


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
        gradients: Gradients,
        accumulates: bool,
    ) -> None:
        """`parameters` are those that require a gradient, `known` the parameters and buffers that
        the result may contain, and `used` tells which of the computed outputs have a gradient.
        With `accumulates`, a second backward pass is recorded, which adds to the gradients."""
        self._inputs = [t.detach().clone().requires_grad_(t.requires_grad) for t in call.tensors]
        leaves = [t for t in self._inputs if t.requires_grad]
        self._num_inputs, self._used = len(leaves), used
        state: dict[str, Outputs] = {}

        def forward() -> list[torch.Tensor]:
            with weights.applied(), torch.enable_grad():
                result = call.run(self._inputs)
            state["outputs"] = outputs = Outputs(result, [*self._inputs, *known])
            return [tensor.detach() for tensor in outputs.computed]

        # A cast that autocast has made before would keep the present values of a weight.
        torch.clear_autocast_cache()
        self._forward, self._results = recorder.record(forward)
        outputs = self.outputs = state["outputs"]
        self._gradients = gradients
        self._seeds = [torch.zeros_like(t) for t, is_used in zip(outputs.computed, used) if is_used]
        found: dict[str, list[torch.Tensor | None]] = {}

        def differentiate(retains: bool) -> None:
            computed = [t for t, is_used in zip(state["outputs"].computed, used) if is_used]
            found["all"] = list(
                torch.autograd.grad(
                    computed,
                    [*leaves, *map(weights.of, parameters)],
                    self._seeds,
                    retain_graph=retains,
                    allow_unused=True,
                )
            )

        def of_parameters() -> tuple[list[torch.Tensor], list[torch.Tensor]]:
            pairs = [
                (gradients.of(p)[1], g)
                for p, g in zip(parameters, found["all"][self._num_inputs :])
                if g is not None
            ]
            return [target for target, _ in pairs], [g for _, g in pairs]

        def of_inputs() -> list[torch.Tensor]:
            return [
                torch.zeros_like(leaf) if g is None else g
                for leaf, g in zip(leaves, found["all"][: self._num_inputs])
            ]

        def write() -> list[torch.Tensor]:
            differentiate(accumulates)
            targets, values = of_parameters()
            with torch.no_grad():
                if targets:
                    torch._foreach_copy_(targets, values)
            return of_inputs()

        def add() -> list[torch.Tensor]:
            differentiate(False)
            targets, values = of_parameters()
            with torch.no_grad():
                if targets:
                    torch._foreach_add_(targets, values)
            return of_inputs()

        self._write, self._of_inputs = recorder.record(write)
        has_gradient = [g is not None for g in found["all"][self._num_inputs :]]
        self.parameters = [p for p, has in zip(parameters, has_gradient) if has]
        self._places = [gradients.of(p)[0] for p in self.parameters]
        self._has_gradient = has_gradient
        self._add, self._of_inputs_too = recorder.record(add) if accumulates else (None, [])
        found.clear()
        state.clear()
        outputs.detach()
        torch.clear_autocast_cache()
        self._handed_out = _C.ReusedMemory()
        self._large = {
            i: self._handed_out.add(t)
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
        large = list(self._large.values())
        self._handed_out.reclaim(large)
        with torch.no_grad():
            for own, tensor in zip(self._inputs, tensors):
                own.copy_(tensor, non_blocking=True)
        self._forward.replay()
        shared = iter(self._handed_out.hand_out(large))
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

    def seed(self, gradients: tuple[torch.Tensor | None, ...]) -> None:
        """Sets the gradients of the outputs for the next backward pass."""
        given = [g for g, is_used in zip(gradients, self._used) if is_used]
        for own, gradient in zip(self._seeds, given):
            if gradient is None:
                own.zero_()
            else:
                own.copy_(gradient)

    def backward(self) -> list[torch.Tensor | None]:
        """Replays the backward pass. Returns the gradients of the inputs that require one, and of
        all parameters."""
        memory = self._gradients.memory
        memory.reclaim(self._places)
        self._write.replay()
        given = iter(memory.hand_out(self._places))
        return [
            *(t.clone() for t in self._of_inputs),
            *(next(given) if has else None for has in self._has_gradient),
        ]

    def accumulate(self) -> list[torch.Tensor | None]:
        """Like `backward`, but also does what autograd would do with the gradients of parameters:
        sets or increases `grad`."""
        memory = self._gradients.memory
        present = [p.grad for p in self.parameters]
        own = [g for g in present if g is not None]
        rest = [None] * len(self._has_gradient)
        if self._add is not None and len(own) == len(present) and memory.own_all(self._places, own):
            self._add.replay()
            return [*(t.clone() for t in self._of_inputs_too), *rest]
        memory.reclaim(self._places)
        self._write.replay()
        with torch.no_grad():
            for p, before, new in zip(self.parameters, present, memory.hand_out(self._places)):
                if before is None:
                    p.grad = new
                else:
                    before.add_(new)
        return [*(t.clone() for t in self._of_inputs), *rest]
