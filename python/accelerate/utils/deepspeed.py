# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed's configuration, and the original's classes for it. This package's own engine shards
models (docs/guide_sharding.md)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from accelerate._placeholders import placeholders_for
from accelerate._plugins.active import get_active_deepspeed_plugin as get_active_deepspeed_plugin
from accelerate._plugins.deepspeed_config import HfDeepSpeedConfig as HfDeepSpeedConfig
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.scheduler import AcceleratedScheduler
from accelerate.state import GradientState


class DummyOptim:
    """A placeholder for an optimizer that DeepSpeed's configuration names."""

    def __init__(
        self, params: Any, lr: float = 0.001, weight_decay: float = 0, **kwargs: Any
    ) -> None:
        self.params = params
        self.lr = lr
        self.weight_decay = weight_decay
        self.kwargs = kwargs


class DummyScheduler:
    """A placeholder for a scheduler that DeepSpeed's configuration names."""

    def __init__(
        self,
        optimizer: Any,
        total_num_steps: int | None = None,
        warmup_num_steps: int = 0,
        lr_scheduler_callable: Any = None,
        **kwargs: Any,
    ) -> None:
        self.optimizer = optimizer
        self.total_num_steps = total_num_steps
        self.warmup_num_steps = warmup_num_steps
        self.lr_scheduler_callable = lr_scheduler_callable
        self.kwargs = kwargs


class DeepSpeedOptimizerWrapper(AcceleratedOptimizer):
    """The optimizer that `prepare` returns with a `DeepSpeedPlugin`. `step` first clips gradients.
    After an update, it advances the scheduler of the configuration."""

    # `prepare` sets this.
    _clip: Callable[[], Any] | None = None
    _scheduler: DeepSpeedSchedulerWrapper | None = None
    _num_updates = 0

    def step(self, closure: Callable | None = None) -> Any:
        if self._clip is not None:
            self._clip()
        result = super().step(closure)
        if GradientState().sync_gradients and not self.step_was_skipped:
            self._num_updates += 1
        if self._scheduler is not None:
            self._scheduler.move()
        return result


class DeepSpeedSchedulerWrapper(AcceleratedScheduler):
    """The scheduler that `prepare` returns for a `DummyScheduler`. The optimizer's `step` advances
    it once per update."""

    def step(self) -> None:
        """Does nothing, because the optimizer advances the scheduler."""

    def move(self) -> None:
        super().step()


__getattr__ = placeholders_for(__name__)
