# SPDX-License-Identifier: Apache-2.0
"""What `Accelerator.capture` makes of a function: the recording itself is in C++."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch

from accelerate import _C
from accelerate._trees import tensors_of, with_tensors


def _describe(value: Any) -> str:
    """A text that is the same for inputs that differ in the values of tensors only."""
    if isinstance(value, torch.Tensor):
        return "*"
    if isinstance(value, Mapping):
        items = (f"{key!r}: {_describe(item)}" for key, item in value.items())
        return "{" + ", ".join(items) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_describe(item) for item in value) + "]"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _describe(
            {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        )
    # Numbers and texts are part of what is recorded.
    return repr(value)


class CapturedStep:
    """Called as the function that was captured. Tensors in the result are copies of the caller's,
    without a graph."""

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

        outputs, result = self._capture.call(tensors_of(inputs), _describe(inputs), run)
        return with_tensors(result, outputs)

    @property
    def num_graphs(self) -> int:
        """Shapes of inputs that are replayed."""
        return self._capture.num_graphs

    @property
    def num_replays(self) -> int:
        """Calls that were replays."""
        return self._capture.num_replays

    @property
    def refusal(self) -> str:
        """Why calls run as they are; empty while they do not have to."""
        return self._capture.refusal
