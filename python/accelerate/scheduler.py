# SPDX-License-Identifier: Apache-2.0
"""A prepared scheduler. C++ decides how often a call to `step` advances it."""

from __future__ import annotations

import copy
import weakref
from functools import partial
from typing import Any

from torch.optim.lr_scheduler import LRScheduler

from accelerate import _C
from accelerate._base import debug as _debug
from accelerate._base.pickling import as_wrapped
from accelerate._placeholders import placeholders_for
from accelerate._state.values import SharedState
from accelerate.errors import UsageError
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.state import AcceleratorState, GradientState

# Schedules that C++ also has, with the same step count and learning rates.
_COUNTING = ("LambdaLR", "StepLR", "MultiStepLR", "ExponentialLR", "OneCycleLR")
_RATES = {"base_lr": "base_lrs", "last_lr": "_last_lr"}


def split_state(scheduler: Any, state: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the part of a scheduler's state that C++ also has, and the rest."""
    shared: dict[str, Any] = {"torch_class": type(scheduler).__name__}
    rest = dict(state)
    rates = [rate for name in _RATES.values() for rate in rest.get(name, [])]
    if shared["torch_class"] in _COUNTING and all(isinstance(r, (int, float)) for r in rates):
        shared["num_steps"] = rest.pop("_step_count") - 1
        shared["schedule.step"] = rest.pop("last_epoch")
        for key, name in _RATES.items():
            shared.update({f"{key}.{i}": float(rate) for i, rate in enumerate(rest.pop(name))})
    return shared, rest


def join_state(
    scheduler: Any, shared: dict[str, Any], rest: dict[str, Any] | None
) -> dict[str, Any]:
    """Reverses `split_state`. `rest` is None if C++ saved the checkpoint."""
    if rest is None:
        own = type(scheduler).__name__
        if own not in _COUNTING or shared.get("torch_class") != own:
            raise UsageError(
                f"[load_state] The checkpoint contains a C++ scheduler of type {shared.get('kind')}, but "
                f"this scheduler is of type {own}. Use the same type in both programs, one of "
                f"{', '.join(_COUNTING)}"
            )
        rest = scheduler.state_dict()
    if "num_steps" not in shared:
        return rest
    counts = {"_step_count": shared["num_steps"] + 1, "last_epoch": shared["schedule.step"]}
    num_groups = sum(key.startswith("base_lr.") for key in shared)
    rates = {
        name: [shared[f"{key}.{i}"] for i in range(num_groups)] for key, name in _RATES.items()
    }
    return {**rest, **counts, **rates}


def check_state(scheduler: Any, shared: dict[str, Any], state: dict[str, Any]) -> None:
    """Raises if the scheduler cannot load `state`. Only warns if the state belongs to a different
    kind of scheduler, because the original loads it."""
    saved, own = shared.get("torch_class"), type(scheduler).__name__
    lacking = sorted({"lr_lambdas"} & scheduler.state_dict().keys() - state.keys())
    if lacking:
        raise UsageError(
            f"[load_state] The saved state of type {saved} lacks {lacking[0]}, which {own} needs. "
            "Create the same scheduler before loading"
        )
    if saved != own:
        _debug.warn(
            f"[load_state] The saved state is of type {saved}, but this scheduler is of type {own}. "
            "Any state that the two schedulers do not share is lost",
            stacklevel=2,
        )


def state_of(scheduler: Any) -> SharedState:
    """Returns the state of a scheduler in a checkpoint."""
    return SharedState(
        scheduler.state_dict,
        scheduler.load_state_dict,
        partial(split_state, scheduler),
        partial(join_state, scheduler),
        partial(check_state, scheduler),
    )


# All existing schedulers of the process, in order of creation.
_made: list[weakref.ref[LRScheduler]] = []


def _remember(kind: type[LRScheduler], *args: Any, **kwargs: Any) -> LRScheduler:
    scheduler = object.__new__(kind)
    _made.append(weakref.ref(scheduler, _made.remove))
    return scheduler


# torch does not record which schedulers drive an optimizer, and some schedulers do not call
# `__init__` of this class.
LRScheduler.__new__ = _remember  # type: ignore[method-assign, assignment]


def unprepared_schedulers(
    optimizers: list[AcceleratedOptimizer], prepared: list[AcceleratedScheduler]
) -> list[LRScheduler]:
    """Returns the schedulers that drive one of the optimizers but were never prepared. Excludes
    schedulers that belong to another scheduler, because its state contains theirs."""
    driven = [known for opt in optimizers for known in (opt, opt.optimizer)]
    found = [scheduler for ref in _made if (scheduler := ref()) is not None]
    found = [
        scheduler
        for scheduler in found
        if any(getattr(scheduler, "optimizer", None) is known for known in driven)
    ]
    known = [wrapper.scheduler for wrapper in prepared]
    nested = [child for whole in found + known for child in getattr(whole, "_schedulers", ())]
    return [
        scheduler for scheduler in found if not any(scheduler is left for left in known + nested)
    ]


class AcceleratedScheduler:
    """The scheduler that `prepare` returns. It advances `num_processes` times per update of the
    weights (once with `split_batches`), so that a schedule counts the batches of all processes. It
    does not advance during gradient accumulation or after a skipped step. If `step_with_optimizer`
    is False, every call advances it once."""

    _is_accelerate_prepared = True

    def __init__(
        self,
        scheduler: Any,
        optimizers: AcceleratedOptimizer | list[AcceleratedOptimizer],
        step_with_optimizer: bool = True,
        split_batches: bool = False,
        *,
        _run: _C.TrainingRun | None = None,
    ) -> None:
        self.scheduler = scheduler
        self.optimizers = optimizers if isinstance(optimizers, (list, tuple)) else [optimizers]
        self.step_with_optimizer = step_with_optimizer
        self.split_batches = split_batches
        self.gradient_state = GradientState()
        # The run of the latest `Accelerator` of this process.
        self._run = _run or AcceleratorState().run

    def step(self, *args: Any, **kwargs: Any) -> None:
        end = getattr(self.scheduler, "total_steps", None)
        num_moves, num_counted = self._run.scheduler_moves(
            [opt._step for opt in self.optimizers],
            step_with_optimizer=self.step_with_optimizer,
            split_batches=self.split_batches,
            adjust_scheduler=self.gradient_state.adjust_scheduler,
            # torch counts the initial state as a step.
            num_counted=getattr(self.scheduler, "_step_count", 1) - 1,
            end=end,
        )
        if num_counted:
            self.scheduler._step_count += num_counted
        for _ in range(num_moves):
            self.scheduler.step(*args, **kwargs)

    # Copies are plain schedulers, as copies of prepared modules are plain modules.
    def __deepcopy__(self, memo: dict) -> Any:
        return copy.deepcopy(self.scheduler, memo)

    def __reduce_ex__(self, protocol: int) -> Any:
        return as_wrapped(self.scheduler)

    def get_last_lr(self) -> list[float]:
        return self.scheduler.get_last_lr()

    def get_lr(self) -> list[float]:
        return self.scheduler.get_lr()

    def print_lr(self, *args: Any, **kwargs: Any) -> None:
        self.scheduler.print_lr(*args, **kwargs)

    def state_dict(self) -> dict[str, Any]:
        return self.scheduler.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.scheduler.load_state_dict(state_dict)


__getattr__ = placeholders_for(__name__)
