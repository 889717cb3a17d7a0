# SPDX-License-Identifier: Apache-2.0
"""The result of `Accelerator.capture`. The recording itself is in C++."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from accelerate import _C
from accelerate._base.trees import describe, tensors_of, with_tensors


class CapturedStep:
    """The result of `Accelerator.capture`. Call it like the captured function. Tensors in its
    result are detached copies that belong to the caller."""

    def __init__(self, function: Callable, capture: _C.StepCapture) -> None:
        self._function = function
        self._capture = capture
        functools.update_wrapper(self, function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        inputs = (args, kwargs)

        def run(tensors: list[torch.Tensor]) -> tuple[list[torch.Tensor], Any]:
            own_args, own_kwargs = with_tensors(inputs, tensors)
            result = self._function(*own_args, **own_kwargs)
            outputs = [tensor.detach() for tensor in tensors_of(result)]
            return outputs, with_tensors(result, outputs)

        # Numbers and strings are part of the recording.
        outputs, result = self._capture.call(tensors_of(inputs), describe(inputs), run)
        return with_tensors(result, outputs)

    @property
    def num_graphs(self) -> int:
        """The number of input shapes that have a graph."""
        return self._capture.num_graphs

    @property
    def num_replays(self) -> int:
        """The number of calls that replayed a graph."""
        return self._capture.num_replays

    @property
    def refusal(self) -> str:
        """Why calls run eagerly. Empty if they can be captured."""
        return self._capture.refusal
