# SPDX-License-Identifier: Apache-2.0
"""Selects which attention kernels are tried first, and which masks can be dropped."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from accelerate._fuse.pieces import Piece, is_checkpointed, thread

# The same as in C++ (src/models/attention.cpp): cuDNN creates a plan per shape, which takes less
# time than it saves in training.
_MIN_TOKENS_FOR_CUDNN = 512


@functools.cache
def _signature_of(kind: type) -> inspect.Signature:
    return inspect.signature(kind.forward)


class Backbone(Piece):
    """The module that calls the blocks. While a CUDA graph is recorded, transformers cannot inspect
    values. It then passes a mask to the blocks even if none is needed, which makes attention
    several times slower."""

    @classmethod
    def _accelerate_fits(cls, module: torch.nn.Module) -> bool:
        taken = _signature_of(module.__class__).parameters
        return {"attention_mask", "position_ids", "past_key_values"} <= taken.keys()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        given = _signature_of(self._accelerate_kind).bind_partial(self, *args, **kwargs).arguments
        before = thread.is_chained, thread.is_causal
        thread.is_chained = True
        thread.is_causal = (
            given.get("attention_mask") is None
            and given.get("position_ids") is None
            and given.get("past_key_values") is None
            and self.config._attn_implementation == "sdpa"
            and not (self.gradient_checkpointing and self.training)
        )
        try:
            return super().forward(*args, **kwargs)
        finally:
            thread.is_chained, thread.is_causal = before


def needed(mask: torch.Tensor | None) -> torch.Tensor | None:
    """Returns the mask, or None if it can be dropped. A checkpointed part of the model needs the
    original mask, because this part is recomputed outside of the model."""
    return None if thread.is_causal and not is_checkpointed() else mask


def attention_order(x: torch.Tensor, mask: torch.Tensor | None) -> Any:
    """While the returned object exists, torch tries cuDNN first for attention if cuDNN is the
    fastest kernel."""
    is_for_cudnn = (
        mask is None
        and x.is_cuda
        and torch.is_grad_enabled()
        and x.shape[1] >= _MIN_TOKENS_FOR_CUDNN
    )
    return _cudnn_first() if is_for_cudnn else nullcontext()


@contextmanager
def _cudnn_first() -> Iterator[None]:
    from torch.nn.attention import SDPBackend

    order = torch._C._get_sdp_priority_order()
    first = int(SDPBackend.CUDNN_ATTENTION.value)
    torch._C._set_sdp_priority_order(sorted(order, key=lambda backend: backend != first))
    try:
        yield
    finally:
        torch._C._set_sdp_priority_order(order)
