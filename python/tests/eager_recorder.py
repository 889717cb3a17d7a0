# SPDX-License-Identifier: Apache-2.0
"""A recorder for machines without device graphs. A replay runs the recorded work again and writes
its results into the same tensors, as a graph does."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any
from unittest import mock

import torch


class EagerGraph:
    def __init__(self, work: Callable[[], list[torch.Tensor]], results: list[torch.Tensor]) -> None:
        self._work, self._results = work, results

    def replay(self) -> None:
        new = self._work()
        with torch.no_grad():
            for kept, tensor in zip(self._results, new):
                kept.copy_(tensor)


class EagerRecorder:
    def __init__(self, device: torch.device) -> None:
        pass

    def record(self, work: Callable[[], list[torch.Tensor]]) -> tuple[Any, list[torch.Tensor]]:
        # Recording a graph leaves the gradients as they are.
        with (
            mock.patch.object(torch, "_foreach_copy_", lambda *_: None),
            mock.patch.object(torch, "_foreach_add_", lambda *_: None),
        ):
            results = [tensor.clone() for tensor in work()]
        return EagerGraph(work, results), results

    def is_recording(self) -> bool:
        return False

    def as_if_recording(self) -> AbstractContextManager:
        return nullcontext()

    def random_state(self) -> Any:
        return torch.get_rng_state()

    def set_random_state(self, state: Any) -> None:
        torch.set_rng_state(state)
