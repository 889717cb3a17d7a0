# SPDX-License-Identifier: Apache-2.0
"""Fused operators for custom modules. With torch's own operators, these computations take several
passes over memory.

All of them support first derivatives. If the package was built with a CUDA compiler, NVIDIA GPUs
run its own kernels. On other devices, the operators are composed of torch operators, with the same
results up to rounding. Sums and statistics are computed in float32 (float64 for float64 input).
Weights and inputs must have the same dtype, so cast them first inside `autocast`.

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

# Importing the engine registers the operators.
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
    """Whether this device runs the package's own kernels."""
    return torch.device(device).type == "cuda" and torch._C._dispatch_has_kernel_for_dispatch_key(
        "accelerate::_add_norm_forward", "CUDA"
    )


def cross_entropy(
    logits: torch.Tensor,
    labels: torch.Tensor,
    num_classes: int | None = None,
    ignore_index: int = -100,
) -> torch.Tensor:
    """Returns the mean cross-entropy over rows, like `torch.nn.functional.cross_entropy` of
    `logits[:, :num_classes]` in float32, but without a float32 copy of the logits. Columns after
    the classes are padding."""
    columns = logits.shape[-1] if num_classes is None else num_classes
    return torch.ops.accelerate.cross_entropy(logits, labels, columns, ignore_index)


def layer_norm(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float = 1e-5
) -> torch.Tensor:
    """Computes the layer norm over the last dimension. The backward pass takes a single pass over
    memory."""
    return torch.ops.accelerate.layer_norm(x, weight, bias, eps)


def add_dropout(
    residual: torch.Tensor,
    branch: torch.Tensor,
    branch_bias: torch.Tensor | None = None,
    p: float = 0.0,
) -> torch.Tensor:
    """Computes `residual + dropout(branch + branch_bias, p)`. A GPU rounds `p` to a multiple of
    1/65536."""
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
    """Computes `add_dropout`, followed by the layer norm of its result. A transformer computes this
    between two matrix products."""
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
    """Like `add_dropout_layer_norm`, but returns the layer norm twice, for two consumers. The
    backward pass adds their gradients. The two tensors share memory, so do not modify them in
    place."""
    return torch.ops.accelerate.add_dropout_layer_norm_twice(
        residual, branch, branch_bias, weight, bias, p, eps
    )


def embedding(
    ids: torch.Tensor, weight: torch.Tensor, padding_idx: int | None = None
) -> torch.Tensor:
    """Like `torch.nn.functional.embedding`, but with a deterministic gradient that does not need
    sorting."""
    if padding_idx is not None:
        if not -weight.shape[0] <= padding_idx < weight.shape[0]:
            raise ValueError(
                f"[embedding] padding_idx is {padding_idx}, but weight has {weight.shape[0]} rows. "
                "Pass the index of a row"
            )
        padding_idx %= weight.shape[0]
    return torch.ops.accelerate.embedding(weight, ids, padding_idx)


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Like `torch.nn.functional.linear`, but computes the gradient of the bias at full memory
    bandwidth."""
    return torch.ops.accelerate.linear(x, weight, bias)


def linear_gelu_linear(
    x: torch.Tensor,
    up: torch.Tensor,
    up_bias: torch.Tensor,
    down: torch.Tensor,
    approximate: str = "none",
) -> torch.Tensor:
    """Computes `gelu(x up^T + up_bias, approximate) down^T`, the MLP of a transformer block. Pass
    the bias of the second product to `add_dropout`."""
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
    """Computes `torch.nn.functional.scaled_dot_product_attention` within each of several
    concatenated sequences, without padding. Tensors are tokens x heads x channels. `key` and
    `value` may have fewer heads than `query`. Each of their heads then serves a group of
    consecutive query heads.

    Pass either `lengths`, the lengths of the sequences as host integers, or `cu_seqlens` and an
    upper bound `max_length`. `cu_seqlens` contains the start of each sequence and the end of the
    last one, on the device of the inputs. It is not checked on a GPU. Captured steps require
    `cu_seqlens`.

    16-bit types on a GPU use torch's flash attention if the number of channels per head is a
    multiple of 8. All other inputs are padded internally, with the same results up to rounding.

        lengths = [3, 1, 2]
        q, k, v = self.qkv(x).view(6, 3, heads, channels).unbind(1)  # x: 6 tokens
        y = kernels.packed_attention(q, k, v, lengths=lengths, causal=True)
    """
    if (lengths is None) == (cu_seqlens is None):
        raise ValueError("[packed_attention] Pass either lengths or cu_seqlens")
    if (cu_seqlens is None) != (max_length is None):
        raise ValueError("[packed_attention] Pass max_length if and only if you pass cu_seqlens")
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
                f"{query.shape[0]} tokens. Pass lengths of at least 0 that sum to the number of "
                "tokens"
            )
        cu_seqlens, max_length = torch.tensor(starts, dtype=torch.int32), longest
        cu_seqlens = cu_seqlens.to(query.device)
    return torch.ops.accelerate.packed_attention(
        query, key, value, cu_seqlens, max_length, causal, dropout, scale
    )


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    """Computes x / (root mean square over the last dimension) * `weight`."""
    return torch.ops.accelerate.rms_norm(x, weight, eps)


def add_rms_norm(
    residual: torch.Tensor, branch: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor]:
    """Computes `residual + branch`, and its `rms_norm`."""
    return torch.ops.accelerate.add_rms_norm(residual, branch, weight, eps)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Computes the rotary position embedding, which rotates channels d and d + D / 2 of each head
    by an angle. `x` is batch x tokens x heads x D. The cosine and sine of the angles are float32
    tensors of shape (batch or 1) x tokens x D / 2."""
    return torch.ops.accelerate.rotate(x, cos, sin)


def swiglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """Computes `silu(gate) * up`. Both tensors must have the same dtype and shape."""
    return torch.ops.accelerate.swiglu(gate, up)
