# SPDX-License-Identifier: Apache-2.0
"""Operators that torch has only in several passes over memory, for modules of your own.

All are differentiable, once. Where the package was built with a CUDA compiler they are kernels of
their own on NVIDIA GPUs; everywhere else they are made of torch's operators, with the same results
up to rounding. Sums and statistics are computed in float32 (float64 for such numbers), whatever
type the numbers have. Weights and what they meet are of one type: inside of `autocast` cast first.

    from accelerate import kernels

    class Block(torch.nn.Module):
        def forward(self, x):
            y = self.attention(x)
            x, normed = kernels.add_dropout_layer_norm(
                x, y, self.out.bias, self.norm.weight, self.norm.bias, p=0.1
            )
            ...
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence

import torch

# Registers the operators.
from accelerate import _C  # noqa: F401

__all__ = [
    "add_dropout",
    "add_dropout_layer_norm",
    "add_dropout_layer_norm_twice",
    "add_rms_norm",
    "cross_entropy",
    "embedding",
    "has_kernels",
    "layer_norm",
    "linear",
    "linear_gelu_linear",
    "packed_attention",
    "rms_norm",
    "rotate",
    "swiglu",
]


def has_kernels(device: torch.device | str) -> bool:
    """Whether the operators here are kernels of their own on such a device."""
    return torch.device(device).type == "cuda" and torch._C._dispatch_has_kernel_for_dispatch_key(
        "accelerate::_add_norm_forward", "CUDA"
    )


def cross_entropy(
    logits: torch.Tensor,
    labels: torch.Tensor,
    num_classes: int | None = None,
    ignore_index: int = -100,
) -> torch.Tensor:
    """The mean over rows, as `torch.nn.functional.cross_entropy` of `logits[:, :num_classes]` in
    float32, without a copy of the logits in it. Columns behind the classes are padding."""
    columns = logits.shape[-1] if num_classes is None else num_classes
    return torch.ops.accelerate.cross_entropy(logits, labels, columns, ignore_index)


def layer_norm(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float = 1e-5
) -> torch.Tensor:
    """The layer norm over the last dimension; its backward is one pass."""
    return torch.ops.accelerate.layer_norm(x, weight, bias, eps)


def add_dropout(
    residual: torch.Tensor,
    branch: torch.Tensor,
    branch_bias: torch.Tensor | None = None,
    p: float = 0.0,
) -> torch.Tensor:
    """`residual + dropout(branch + branch_bias, p)`. A GPU rounds `p` to 1/65536."""
    return torch.ops.accelerate.add_dropout(residual, branch, branch_bias, p)


def add_dropout_layer_norm(
    residual: torch.Tensor,
    branch: torch.Tensor,
    branch_bias: torch.Tensor | None,
    weight: torch.Tensor,
    bias: torch.Tensor,
    p: float = 0.0,
    eps: float = 1e-5,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`add_dropout`, and the layer norm of its result: what stands between two products of a
    transformer."""
    return torch.ops.accelerate.add_dropout_layer_norm(
        residual, branch, branch_bias, weight, bias, p, eps
    )


def add_dropout_layer_norm_twice(
    residual: torch.Tensor,
    branch: torch.Tensor,
    branch_bias: torch.Tensor | None,
    weight: torch.Tensor,
    bias: torch.Tensor,
    p: float = 0.0,
    eps: float = 1e-5,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The layer norm of `add_dropout` alone, once for each of two readers, whose gradients are
    added in the pass of backward. Both are one memory: change neither in place."""
    return torch.ops.accelerate.add_dropout_layer_norm_twice(
        residual, branch, branch_bias, weight, bias, p, eps
    )


def embedding(
    ids: torch.Tensor, weight: torch.Tensor, padding_idx: int | None = None
) -> torch.Tensor:
    """`torch.nn.functional.embedding`, whose gradient is the same bits every time, without
    sorting."""
    if padding_idx is not None:
        if not -weight.shape[0] <= padding_idx < weight.shape[0]:
            raise ValueError(
                f"[embedding] padding_idx is {padding_idx}, but weight has {weight.shape[0]} rows"
            )
        padding_idx %= weight.shape[0]
    return torch.ops.accelerate.embedding(weight, ids, padding_idx)


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """`torch.nn.functional.linear`, whose bias gets its gradient at the speed of memory."""
    return torch.ops.accelerate.linear(x, weight, bias)


def linear_gelu_linear(
    x: torch.Tensor,
    up: torch.Tensor,
    up_bias: torch.Tensor,
    down: torch.Tensor,
    approximate: str = "none",
) -> torch.Tensor:
    """`gelu(x up^T + up_bias, approximate) down^T`: the middle of a transformer's block. The bias
    of the second product is for `add_dropout`."""
    if approximate not in ("none", "tanh"):
        raise ValueError(
            f"[linear_gelu_linear] approximate is {approximate!r}, expected 'none' or 'tanh'"
        )
    return torch.ops.accelerate.linear_gelu_linear(x, up, up_bias, down, approximate == "tanh")


def packed_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    lengths: Sequence[int] | None = None,
    cu_seqlens: torch.Tensor | None = None,
    max_length: int | None = None,
    causal: bool = False,
    dropout: float = 0.0,
    scale: float | None = None,
) -> torch.Tensor:
    """`torch.nn.functional.scaled_dot_product_attention` of each of several sequences that lie one
    behind the other as tokens x heads x channels, without padding. `key` and `value` may have fewer
    heads than `query`: each serves a run of neighbouring ones.

    Either `lengths` of the sequences, as numbers of the host, or `cu_seqlens`: where each begins
    and the last ends, on the device of the numbers, with `max_length`, which none exceeds. A GPU
    believes these without looking; a step that is captured needs them.

    Numbers of 16 bits on a GPU go through torch's flash attention, where heads have a multiple of
    8 channels; all else is padded inside, with the same results up to rounding.

        lengths = [3, 1, 2]
        q, k, v = self.qkv(x).view(6, 3, heads, channels).unbind(1)  # x: 6 tokens
        y = kernels.packed_attention(q, k, v, lengths=lengths, causal=True)
    """
    if (lengths is None) == (cu_seqlens is None):
        raise ValueError("[packed_attention] Pass either lengths or cu_seqlens")
    if (cu_seqlens is None) != (max_length is None):
        raise ValueError("[packed_attention] Pass max_length with cu_seqlens, and only then")
    if cu_seqlens is not None and not isinstance(cu_seqlens, torch.Tensor):
        raise TypeError(
            f"[packed_attention] cu_seqlens is {cu_seqlens!r}, expected a tensor. Pass a list as "
            "lengths"
        )
    if lengths is not None:
        try:
            each = [operator.index(length) for length in lengths]
        except TypeError:
            raise TypeError(
                f"[packed_attention] lengths is {lengths!r}, expected a list of integers"
            ) from None
        starts, longest = [0, *itertools.accumulate(each)], max([1, *each])
        if not each or min(each) < 0 or starts[-1] != query.shape[0]:
            raise ValueError(
                f"[packed_attention] The lengths {each} sum to {starts[-1]}, but there are "
                f"{query.shape[0]} tokens. Pass lengths of at least 0 that sum to it"
            )
        cu_seqlens, max_length = torch.tensor(starts, dtype=torch.int32), longest
        cu_seqlens = cu_seqlens.to(query.device)
    return torch.ops.accelerate.packed_attention(
        query, key, value, cu_seqlens, max_length, causal, dropout, scale
    )


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    """x / root of its mean square over the last dimension, times `weight`."""
    return torch.ops.accelerate.rms_norm(x, weight, eps)


def add_rms_norm(
    residual: torch.Tensor, branch: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor]:
    """`residual + branch`, and the `rms_norm` of it."""
    return torch.ops.accelerate.add_rms_norm(residual, branch, weight, eps)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary positions: turns channels d and d + D / 2 of each head of batch x tokens x heads x D
    by an angle, given by its cosine and sine in float32 as (batch or 1) x tokens x D / 2."""
    return torch.ops.accelerate.rotate(x, cos, sin)


def swiglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """`silu(gate) * up`, of one type and shape."""
    return torch.ops.accelerate.swiglu(gate, up)
