# SPDX-License-Identifier: Apache-2.0
"""Local SGD: processes average their parameters every few steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from accelerate._base.checked_values import checked_argument, whole_number
from accelerate._models.prepared_module import context_for
from accelerate._models.run_context import context_of_run
from accelerate._placeholders import placeholders_for

if TYPE_CHECKING:
    import torch

    from accelerate.accelerator import Accelerator


class LocalSGD:
    """Inside the block, gradients of the model stay local, and every process trains by itself.
    After every `local_sgd_steps` calls to `step`, and at the end, the trained parameters are
    averaged over processes:

        with LocalSGD(accelerator=accelerator, model=model, local_sgd_steps=8) as local_sgd:
            for batch in loader:
                ...
                optimizer.step()
                optimizer.zero_grad()
                local_sgd.step()

    Has no effect on a single process, or if `enabled` is False. If an exception leaves the block,
    nothing is averaged."""

    def __init__(
        self,
        accelerator: Accelerator,
        model: torch.nn.Module,
        local_sgd_steps: int,
        enabled: bool = True,
    ) -> None:
        self.enabled = enabled and accelerator.use_distributed
        self.num_steps = 0
        if not self.enabled:
            return
        self.accelerator = accelerator
        self.model = model
        self.local_sgd_steps = checked_argument(
            "LocalSGD", "local_sgd_steps", local_sgd_steps, whole_number(1)
        )
        context = context_for("LocalSGD", model)
        self._steps = context_of_run(accelerator).run.local_steps(context, self.local_sgd_steps)

    def __enter__(self) -> LocalSGD:
        if self.enabled:
            self._steps.enter()
        return self

    def __exit__(self, kind: type | None, *exception: Any) -> None:
        if self.enabled and kind is None:
            self._steps.exit()
        elif self.enabled:
            self._steps.abandon()

    def step(self) -> None:
        """Call this after every step of the optimizer, the same number of times on all
        processes."""
        self.num_steps += 1
        if self.enabled:
            self._steps.step()


__getattr__ = placeholders_for(__name__)
