# SPDX-License-Identifier: Apache-2.0
"""A prepared optimizer. C++ decides whether a call to `step` updates weights."""

from __future__ import annotations

import copy
import inspect
import weakref
from collections.abc import Callable
from typing import Any

import torch

from accelerate import _C
from accelerate._base import debug as _debug
from accelerate._base.pickling import as_wrapped
from accelerate._placeholders import placeholders_for
from accelerate._state.values import OWN, flatten, unflatten
from accelerate.errors import UsageError
from accelerate.state import AcceleratorState, GradientState
from accelerate.utils.operations import send_to_device

_PLAIN = (bool, int, float, str)
_DECOUPLED = "decoupled_weight_decay"
# Options that say how torch computes a step, or that the class implies. C++ has no such options.
_OF_PYTHON = ("foreach", "fused", "capturable", "differentiable", _DECOUPLED)

# Listed by name, because most of these classes are in other packages. They use factored moments,
# orthogonal updates, norms of tensors, or searches along all parameters.
_OF_WHOLE_MATRICES = frozenset(
    "Adafactor Apollo CAME GaLoreAdamW LARS LBFGS Lamb LAMB Muon SOAP Shampoo SparseAdam".split()
)


def _is_plain(value: Any) -> bool:
    # Integers in C++ have 64 bits.
    return isinstance(value, _PLAIN) and (type(value) is not int or -(2**63) <= value < 2**63)


def _all_plain(values: tuple) -> bool:
    return len(values) > 0 and all(map(_is_plain, values))


def _entries_below(flat: dict[str, Any], prefix: str) -> dict[str, Any]:
    """Returns the entries under `prefix`. Numbered entries become a tuple."""
    values: dict[str, Any] = {}
    numbered: dict[str, dict[int, Any]] = {}
    for key, value in flat.items():
        if key.startswith(prefix + "."):
            name, _, number = key[len(prefix) + 1 :].partition(".")
            if number:
                numbered.setdefault(name, {})[int(number)] = value
            else:
                values[name] = value
    return {
        **values,
        **{name: tuple(found[i] for i in sorted(found)) for name, found in numbered.items()},
    }


def move_to_device(state: Any, device: Any) -> Any:
    """Returns the same structure with tensors on the device."""
    return send_to_device(state, device)


def _is_like(key: str, value: Any, parameter: torch.Tensor) -> bool:
    """Whether the state has one element per element of the parameter. The step count of a scalar
    parameter has the same shape, so it is recognised by its name, as in torch."""
    is_counter = parameter.dim() == 0 and key == "step"
    return isinstance(value, torch.Tensor) and value.shape == parameter.shape and not is_counter


def _is_new(state: dict, parameter: torch.Tensor) -> bool:
    """Whether the state looks like one that an optimizer such as Adagrad creates before its first
    step, with no steps and the same value in all elements."""
    return not state.get("step", 0) and all(
        not isinstance(value, torch.Tensor)
        or value.dim() == 0
        or (_is_like(key, value, parameter) and bool((value == value.flatten()[:1]).all()))
        for key, value in state.items()
    )


def _keys_of_state(
    kind: type[torch.optim.Optimizer], group: dict[str, Any], parameter: torch.Tensor
) -> tuple[set[str], set[str]] | None:
    """Returns the keys that an optimizer of this kind stores for a parameter like this one, before
    and after its first step. They are found by stepping a new optimizer on a single element.
    Returns None if that fails."""
    known = inspect.signature(kind).parameters
    options = {
        name: value.item() if isinstance(value, torch.Tensor) else value
        for name, value in group.items()
        if name in known and name != "params" and name not in _OF_PYTHON
    }
    tried = torch.zeros([1] * parameter.dim(), dtype=parameter.dtype, requires_grad=True)
    tried.grad = torch.zeros_like(tried)
    try:
        scratch: Any = kind([tried], **options)
        before = set(scratch.state.get(tried, ()))
        scratch.step()
    except Exception:  # A custom class may raise any exception.
        return None
    return before, set(scratch.state.get(tried, ()))


class _Adapter:
    """Adapts the optimizer to the interface of the engine."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self.closure: Callable | None = None
        # None if the optimizer decides.
        self.set_to_none: bool | None = None
        self.result: Any = None
        # Whether learning rates were converted to tensors for recorded steps.
        self._is_captured = False
        # Whether it trains shards or master weights. Models must then be notified of its steps.
        self._trains_others = False
        self._trains_shards = False
        self._is_stepping = False

    def parameters(self) -> list[torch.Tensor]:
        return [p for group in self._optimizer.param_groups for p in group["params"]]

    def num_groups(self) -> int:
        return len(self._optimizer.param_groups)

    def sum_of_learning_rates(self) -> float:
        rates = [group.get("lr") for group in self._optimizer.param_groups]
        # Skips tensors, because reading one could wait for a device.
        return float(sum(rate for rate in rates if isinstance(rate, (int, float))))

    def current_rates(self) -> list[float]:
        return [float(group.get("lr") or 0.0) for group in self._optimizer.param_groups]

    def set_current_rates(self, rates: list[float]) -> None:
        for group, rate in zip(self._optimizer.param_groups, rates):
            if isinstance(group.get("lr"), torch.Tensor):
                group["lr"].fill_(rate)
            elif group.get("lr") is not None:
                group["lr"] = rate

    def replace(self, replacements: list[tuple[str, torch.Tensor, torch.Tensor]]) -> None:
        state = self._optimizer.state
        made = [(name, b, new) for name, b, new in replacements if b in state]
        for name, before, _ in made:
            if not _is_new(state[before], before):
                raise UsageError(
                    f"[prepare] The optimizer already has state for '{name}', but this strategy "
                    "replaces that parameter with a different tensor. Prepare the model and the "
                    "optimizer before the first step, and load state after prepare()"
                )
        for _, before, new in made:
            state[new] = {
                key: torch.full_like(new, value.flatten()[0].item())
                if _is_like(key, value, before) and before.numel() > 0
                else value
                for key, value in state.pop(before).items()
            }
        self._trains_shards |= any(b.shape != new.shape for _, b, new in replacements)
        after = {id(before): new for _, before, new in replacements}
        for group in self._optimizer.param_groups:
            group["params"] = [after.get(id(p), p) for p in group["params"]]
        if not self._trains_others:
            self._trains_others = True
            # Not a bound method, because the optimizer would keep this object alive through it.
            self._optimizer.register_step_pre_hook(_refuse_own_steps(weakref.ref(self)))

    def why_no_slices(self) -> str:
        """Returns why the optimizer cannot be applied to shards of parameters, or an empty string
        if it can."""
        for kind in type(self._optimizer).__mro__:
            if kind.__name__ in _OF_WHOLE_MATRICES:
                return f"needs whole tensors ({kind.__name__})"
        return ""

    def takes_scalars(self) -> bool:
        # Whether it is one of torch's fused optimizers. Gradients from a closure would not be
        # checked.
        supports = getattr(self._optimizer, "_step_supports_amp_scaling", False)
        return bool(supports) and self.closure is None

    def prepare_capture(self) -> str:
        """Prepares the recording of steps by moving learning rates and step counts to the device.
        Returns why this is not possible, or an empty string."""
        for group in self._optimizer.param_groups:
            if "capturable" not in group:
                return (
                    f"{type(self._optimizer).__name__} has no option `capturable`. Use "
                    "torch.optim.AdamW"
                )
        left = [g for g in self._optimizer.param_groups if not isinstance(g["lr"], torch.Tensor)]
        for group in left:
            self._is_captured = group["capturable"] = True
            device = group["params"][0].device
            group["lr"] = torch.tensor(float(group["lr"]), device=device)
        for parameter, state in self._optimizer.state.items() if left else ():
            if isinstance(state.get("step"), torch.Tensor):
                state["step"] = state["step"].to(parameter.device)
        return ""

    def has_all_state(self) -> bool:
        state = self._optimizer.state
        return not state or all(p.grad is None or p in state for p in self.parameters())

    def step(self, found_inf: torch.Tensor | None) -> None:
        if found_inf is None:
            self._step()
            return
        optimizer: Any = self._optimizer
        # The same as in torch's own scaler: gradients are already unscaled, and the flag is on the
        # device.
        optimizer.grad_scale, optimizer.found_inf = None, found_inf.reshape(())
        try:
            self._step()
        finally:
            del optimizer.grad_scale, optimizer.found_inf

    def _step(self) -> None:
        self._is_stepping = True
        try:
            if self.closure is None:
                self.result = self._optimizer.step()
            else:
                self.result = self._optimizer.step(self.closure)
        finally:
            self._is_stepping = False

    def check_shapes(self, state_dict: dict[str, Any]) -> None:
        """Raises if a state does not belong to the trained shards, because torch would fail in the
        next step. With whole parameters, any shape may be valid, for example that of factored
        moments."""
        parameters = self.parameters() if self._trains_shards else []
        for index, entries in state_dict.get("state", {}).items():
            if not (isinstance(index, int) and index < len(parameters)):
                continue
            shape = parameters[index].shape
            for key, value in entries.items() if isinstance(entries, dict) else ():
                if isinstance(value, torch.Tensor) and value.dim() > 0 and value.shape != shape:
                    raise UsageError(
                        f"[load_state_dict] '{key}' has shape {tuple(value.shape)} for parameter "
                        f"{index}, but this process trains {tuple(shape)}. To load a checkpoint "
                        "from a different number of processes, call accelerator.load_state()"
                    )

    def zero_grad(self, set_to_none: bool) -> None:
        if self.set_to_none is None and set_to_none:
            self._optimizer.zero_grad()
        else:
            self._optimizer.zero_grad(set_to_none=set_to_none)

    @property
    def _kind(self) -> str:
        """The class name, by which C++ recognises the same kind of optimizer."""
        name = type(self._optimizer).__name__
        groups = self._optimizer.param_groups
        if any(group.get(_DECOUPLED, name == "AdamW") != (name == "AdamW") for group in groups):
            return f"{name} with {_DECOUPLED}"
        return name

    def state(self, names: list[str]) -> dict[str, Any]:
        """Returns `groups.N.OPTION` and `state.NAME.KEY` as in C++, and all other values as a
        string."""
        saved = self._optimizer.state_dict()
        if self._is_captured:
            for group in saved["param_groups"]:
                group.update(lr=float(group["lr"]), capturable=False)
        flat: dict[str, Any] = {"kind": self._kind}
        groups = []
        for number, group in enumerate(saved["param_groups"]):
            rest: dict[str, Any] = {}
            for option, value in group.items():
                prefix = f"groups.{number}.{option}"
                is_shared = option in self._optimizer.defaults and option not in _OF_PYTHON
                if option == "params":
                    for position, index in enumerate(value):
                        flat[f"groups.{number}.parameters.{position}"] = names[index]
                elif is_shared and _is_plain(value):
                    flat[prefix] = value
                elif is_shared and type(value) is tuple and _all_plain(value):
                    flat.update({f"{prefix}.{i}": element for i, element in enumerate(value)})
                else:
                    rest[option] = value
            groups.append(rest)
        state: dict[Any, Any] = {}
        for index, entries in saved["state"].items():
            if not isinstance(index, int) or not isinstance(entries, dict):
                state[index] = entries  # Global state of the optimizer, not of a parameter.
                continue
            for key, value in entries.items():
                if isinstance(value, torch.Tensor) or _is_plain(value):
                    flat[f"state.{names[index]}.{key}"] = value
                else:
                    state.setdefault(index, {})[key] = value
        return {**flat, **flatten({"groups": groups, "state": state}, OWN)}

    def check_state(self, names: list[str], flat: dict[str, Any]) -> None:
        """Raises if the state cannot be loaded correctly. Only warns if the state is probably
        wrong, because the original loads such state."""
        kind = flat["kind"].rpartition(":")[2]
        if kind != self._kind:
            what = (
                f"[load_state] The saved state belongs to {flat['kind']}, but the optimizer is "
                f"{self._kind}"
            )
            if OWN not in flat or not self._can_step_with(self._unflattened(names, flat)):
                raise UsageError(f"{what}. Load it into an optimizer of the same type")
            _debug.warn(
                f"{what}. Any state that the two optimizers do not share is lost", stacklevel=2
            )
        groups = self._optimizer.param_groups
        indices = iter(range(len(names)))
        own = [{names[next(indices)] for _ in group["params"]} for group in groups]
        saved = []
        while loaded := _entries_below(flat, f"groups.{len(saved)}"):
            saved.append(set(loaded.get("parameters", ())))
        if own != saved:
            raise UsageError(
                f"[load_state] The optimizer has the parameter groups {list(map(sorted, own))}, "
                f"but the saved optimizer has {list(map(sorted, saved))}. Create the same groups "
                "before loading"
            )

    def _can_step_with(self, saved: dict[str, Any]) -> bool:
        """Whether the `state_dict` of another kind of optimizer contains all keys that this kind
        saves."""
        for group, loaded in zip(self._optimizer.param_groups, saved["param_groups"]):
            if not self._optimizer.defaults.keys() <= loaded.keys():
                return False
            by_dim: dict[int, tuple[set[str], set[str]] | None] = {}
            for index, parameter in zip(loaded["params"], group["params"]):
                dim = parameter.dim()
                if dim not in by_dim:
                    by_dim[dim] = _keys_of_state(type(self._optimizer), loaded, parameter)
                keys = by_dim[dim]
                has = set(saved["state"].get(index, ()))
                if keys is None or not has >= keys[bool(has)]:
                    return False
        return True

    def _unflattened(self, names: list[str], flat: dict[str, Any]) -> dict[str, Any]:
        """Converts the result of `state` to a `state_dict`."""
        present = self._optimizer.state_dict()["param_groups"]
        # If C++ saved the state, values that C++ does not have keep their current value.
        own: dict[str, Any] = {"groups": present, "state": {}}
        if OWN in flat:
            own = unflatten(flat, OWN)
        groups = []
        for number, (group, rest) in enumerate(zip(present, own["groups"])):
            loaded = _entries_below(flat, f"groups.{number}")
            groups.append({**rest, **loaded, "params": group["params"]})
            groups[-1].pop("parameters", None)  # A group may be empty.
        state: dict[Any, Any] = dict(own["state"])
        for index, name in enumerate(names):
            prefix = f"state.{name}."
            for key, value in flat.items():
                # Excludes parameters whose name starts with this one's.
                if key.startswith(prefix) and "." not in key[len(prefix) :]:
                    held = value.clone() if isinstance(value, torch.Tensor) else value
                    state.setdefault(index, {})[key[len(prefix) :]] = held
        return {"state": state, "param_groups": groups}

    def load_state(self, names: list[str], flat: dict[str, Any]) -> None:
        self._optimizer.load_state_dict(self._unflattened(names, flat))


def _refuse_own_steps(adapter: weakref.ref[_Adapter]) -> Callable:
    """Returns a hook that rejects steps of the optimizer itself. Its models are notified only of
    steps of the prepared optimizer."""

    def check(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        owner = adapter()
        if owner is not None and not owner._is_stepping:
            raise UsageError(
                f"[step] The {type(optimizer).__name__} that you passed to prepare() was stepped, "
                "but the optimizer that prepare() returned trains the model. Call step() "
                "on that one"
            )

    return check


class AcceleratedOptimizer(torch.optim.Optimizer):
    """The optimizer that `prepare` returns. `step` and `zero_grad` do nothing during gradient
    accumulation. With fp16, all processes skip `step` if a gradient on any of them is not finite.
    Everything else works like the wrapped `optimizer`."""

    _is_accelerate_prepared = True

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        device_placement: bool = True,
        scaler: Any = None,
        *,
        _run: _C.TrainingRun | None = None,
    ) -> None:
        """`scaler` is the scaler of the run, which belongs to the latest `Accelerator` of this
        process."""
        run = _run or AcceleratorState().run
        self.optimizer = optimizer
        self.scaler = scaler
        self.device_placement = device_placement
        self._adapter = _Adapter(optimizer)
        self._step = run.prepare_optimizer(self._adapter)
        # Move state that was created or loaded before the model was moved.
        if device_placement and optimizer.state and run.device.type != "cpu":
            optimizer.load_state_dict(send_to_device(optimizer.state_dict(), run.device))

    @property
    def accelerator_state(self) -> AcceleratorState:
        return AcceleratorState()

    @property
    def gradient_state(self) -> GradientState:
        return GradientState()

    @property
    def state(self) -> Any:
        return self.optimizer.state

    @state.setter
    def state(self, state: Any) -> None:
        self.optimizer.state = state

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return self.optimizer.param_groups

    @param_groups.setter
    def param_groups(self, param_groups: list[dict[str, Any]]) -> None:
        self.optimizer.param_groups = param_groups

    @property
    def defaults(self) -> dict[str, Any]:
        return self.optimizer.defaults

    @defaults.setter
    def defaults(self, defaults: dict[str, Any]) -> None:
        self.optimizer.defaults = defaults

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        self.optimizer.add_param_group(param_group)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._adapter.check_shapes(state_dict)
        self.optimizer.load_state_dict(state_dict)

    def state_dict(self) -> dict[str, Any]:
        return self.optimizer.state_dict()

    def step(self, closure: Callable | None = None) -> Any:
        """Updates the weights if the current step ends with an update."""
        adapter = self._adapter
        if closure is not None and self._step.has_scaler:
            raise UsageError(
                "[step] A closure does not work with fp16 mixed precision, because its gradients "
                "would stay scaled. Call accelerator.backward() before step(), or use bf16"
            )
        adapter.closure = closure
        try:
            self._step.step()
            return adapter.result
        finally:
            # The engine owns the adapter, so references in the adapter would never be collected.
            adapter.closure = adapter.result = None

    def zero_grad(self, set_to_none: bool | None = None) -> None:
        """Drops the gradients. Has no effect during gradient accumulation."""
        self._adapter.set_to_none = set_to_none
        self._step.zero_grad(set_to_none is None or set_to_none)

    @property
    def _is_overflow(self) -> bool:
        # The original's name, which loops read.
        return self.step_was_skipped

    @property
    def step_was_skipped(self) -> bool:
        """Whether the latest `step` was skipped because of an overflow."""
        return self._step.was_skipped

    def train(self) -> None:
        """Switches the optimizer to training mode, if it has modes."""
        if callable(getattr(self.optimizer, "train", None)):
            self.optimizer.train()

    def eval(self) -> None:
        """Switches the optimizer to evaluation mode, if it has modes."""
        if callable(getattr(self.optimizer, "eval", None)):
            self.optimizer.eval()

    # Copies are plain optimizers, as copies of prepared modules are plain modules.
    def __deepcopy__(self, memo: dict) -> torch.optim.Optimizer:
        return copy.deepcopy(self.optimizer, memo)

    def __reduce_ex__(self, protocol: int) -> Any:
        return as_wrapped(self.optimizer)

    def __repr__(self) -> str:
        return f"AcceleratedOptimizer({self.optimizer!r})"


__getattr__ = placeholders_for(__name__)
