# SPDX-License-Identifier: Apache-2.0
"""The head and the loss of causal language models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional
from torch.nn.modules import module as torch_module

from accelerate import kernels
from accelerate._base.pickling import as_wrapped
from accelerate._fuse.pieces import Piece, is_bare

# The same as in C++ (src/models/layers.cpp). The padded product saves more time than the copy of
# the weights costs.
_MULTIPLE = 64
_MIN_ROWS = 256


def is_padded(x: torch.Tensor, kind: torch.dtype) -> bool:
    is_reduced = kind in (torch.bfloat16, torch.float16)
    return not x.is_cpu and is_reduced and x.numel() >= _MIN_ROWS * x.shape[-1]


class Head(Piece):
    """Pads the vocabulary to a multiple of 64, because the matrix product takes several times as
    long with other sizes. The logits are a view of the first columns."""

    _accelerate_takes = ("input",)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        weight, bias = self.weight, self.bias
        num_missing = -weight.shape[0] % _MULTIPLE
        kind = input.dtype
        if torch.is_autocast_enabled(input.device.type):
            kind = torch.get_autocast_dtype(input.device.type)
        if (
            num_missing == 0
            or not is_padded(input, kind)
            or not is_bare(self)
            or torch_module._has_any_global_hook()
        ):
            return super().forward(input)
        padded = functional.linear(
            input,
            functional.pad(weight.to(kind), (0, 0, 0, num_missing)),
            None if bias is None else functional.pad(bias.to(kind), (0, num_missing)),
        )
        padded._accelerate_is_padded = True
        return padded[..., : weight.shape[0]]


class CausalLoss:
    """Transformers' `ForCausalLMLoss` without float32 copies of the logits. Pickles and copies
    contain transformers' function."""

    def __init__(self, original: Callable) -> None:
        self._original = original

    def __reduce__(self) -> Any:
        return as_wrapped(self._original)

    def __call__(
        self,
        logits: torch.Tensor,
        labels: torch.Tensor,
        vocab_size: int,
        num_items_in_batch: torch.Tensor | int | None = None,
        ignore_index: int = -100,
        shift_labels: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        if logits.shape[-1] != vocab_size:
            return self._original(
                logits, labels, vocab_size, num_items_in_batch, ignore_index, shift_labels, **kwargs
            )
        if shift_labels is None:
            # Shift the labels rather than the logits, which are much larger.
            shift_labels = functional.pad(labels, (0, 1), value=ignore_index)[..., 1:]
        classes = shift_labels.reshape(-1).to(logits.device)
        loss = kernels.cross_entropy(_rows_of(logits), classes, vocab_size, ignore_index)
        if num_items_in_batch is None:
            return loss
        if torch.is_tensor(num_items_in_batch):
            num_items_in_batch = num_items_in_batch.to(loss.device)
        # The mean of no values is NaN, but their sum is 0.
        count = classes.ne(ignore_index).sum()
        return torch.where(count > 0, loss * count, 0.0) / num_items_in_batch


def _rows_of(logits: torch.Tensor) -> torch.Tensor:
    """Returns the logits as rows, including the columns that the padded product has appended. The
    gradient of a view without them would need another copy."""
    base = logits._base
    if (
        getattr(base, "_accelerate_is_padded", False)
        and base.is_contiguous()
        and logits.storage_offset() == base.storage_offset()
        and logits.stride(-1) == 1
        and base.numel() * logits.shape[-1] == logits.numel() * logits.stride(-2)
    ):
        rows = base.view(-1, logits.stride(-2))
        if logits.stride() == rows.view(*logits.shape[:-1], -1).stride():
            return rows
    return logits.reshape(-1, logits.shape[-1])
