# SPDX-License-Identifier: Apache-2.0
"""A prepared scheduler: how often a call of `step` moves it is decided in C++."""

from __future__ import annotations

import copy
import typing
from typing import Any

from accelerate import _C
from accelerate._placeholders import placeholders_for
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.state import AcceleratorState, GradientState


class AcceleratedScheduler:
    """What `prepare` makes of a scheduler. It moves `num_processes` times per update of the weights
    (once with `split_batches`), so that a schedule counts the batches of one process, and not while
    gradients are accumulated or after a skipped step. With `step_with_optimizer` false every call
    moves it once."""

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
        # That of the latest `Accelerator` of this process.
        self._run = _run or AcceleratorState().run

    def step(self, *args: Any, **kwargs: Any) -> None:
        end = getattr(self.scheduler, "total_steps", None)
        num_moves, num_counted = self._run.scheduler_moves(
            [opt._step for opt in self.optimizers],
            step_with_optimizer=self.step_with_optimizer,
            split_batches=self.split_batches,
            adjust_scheduler=self.gradient_state.adjust_scheduler,
            # torch counts the start as a step.
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
        return typing.cast, (object, self.scheduler)

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
