# SPDX-License-Identifier: Apache-2.0
"""Fused pieces, which replace torch's own modules, and the values that a thread passes between the
pieces of one forward pass."""

from __future__ import annotations

import inspect
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn import functional
from torch.nn.modules import module as torch_module
from torch.utils.weak import WeakIdKeyDictionary

from accelerate import kernels
from accelerate._models.prepared_module import InPlace


class _Thread(threading.local):
    # A dropout that the block applies itself when it adds the branch.
    held: torch.nn.Module | None = None
    # A norm, its next input, the version of that tensor, and the precomputed result.
    ahead: tuple[Any, Any, int | None, torch.Tensor] | None = None
    # Whether a model calls its blocks directly after each other.
    is_chained = False
    # Whether the mask is purely causal.
    is_causal = False
    # The cosines from which both halved tensors were computed, and the two tensors.
    angles: tuple[Any, torch.Tensor, torch.Tensor] | None = None


thread = _Thread()
# Maps each block to the norm after it and to the module that is called next. This is the next
# block, or the norm after the last block. Not registered as submodules.
behind: Any = WeakIdKeyDictionary()

GELUS = {
    "transformers.activations.GELUActivation": "none",
    "transformers.activations.NewGELUActivation": "tanh",
    "transformers.activations.FastGELUActivation": "tanh",
    "transformers.activations.GELUTanh": "tanh",
}
SILUS = ("transformers.activations.SiLUActivation", "torch.nn.modules.activation.SiLU")
LINEAR = ("torch.nn.modules.linear.Linear",)
NORM = ("torch.nn.modules.normalization.LayerNorm",)
DROPOUT = ("torch.nn.modules.dropout.Dropout",)
CONV1D = ("transformers.pytorch_utils.Conv1D",)


def name_of(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def is_bare(module: torch.nn.Module | None) -> bool:
    """Whether a call runs only the `forward` of the module's class."""
    return module is not None and not (
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or module._compiled_call_impl is not None
        or "forward" in module.__dict__
    )


def same_dtype(x: torch.Tensor, *others: torch.Tensor | None) -> bool:
    """Whether operators accept these tensors together. This is always true under autocast, which
    converts them to one dtype."""
    return torch.is_autocast_enabled(x.device.type) or all(
        other is None or other.dtype == x.dtype for other in others
    )


def probability(dropout: torch.nn.Module) -> float:
    return dropout.p if dropout.training else 0.0


class Piece(InPlace):
    """The base class of all pieces. In the type of a piece, it precedes the original class."""

    # The arguments of the `forward` that the piece replaces.
    _accelerate_takes: tuple[str, ...] = ()
    # All submodules of the piece, and the classes of submodules that the piece does not call
    # although it reads their parameters or does their work.
    _accelerate_children: frozenset[str] = frozenset()
    _accelerate_bypassed: dict[str, tuple[str, ...]] = {}

    @classmethod
    def _accelerate_fits(cls, module: torch.nn.Module) -> bool:
        kind = module.__class__
        return (
            tuple(inspect.signature(kind.forward).parameters) == ("self", *cls._accelerate_takes)
            and frozenset(module._modules) == cls._accelerate_children
            and cls._accelerate_knows(module)
        )

    @classmethod
    def _accelerate_knows(cls, module: torch.nn.Module) -> bool:
        return all(
            (inner := _inner(module, path)) is not None
            and name_of(inner.__class__) in names
            and (names not in _WITH_BIAS or not _lacks_any(inner))
            for path, names in cls._accelerate_bypassed.items()
        )

    def _accelerate_may_bypass(self) -> bool:
        """False if a hook or another module was added that the original `forward` would use."""
        return (
            not torch_module._has_any_global_hook()
            and self._accelerate_knows(self)
            and all(is_bare(_inner(self, path)) for path in self._accelerate_bypassed)
        )


# These operators need weight and bias. Torch's modules may have neither.
_WITH_BIAS = (LINEAR, NORM, CONV1D)


def _lacks_any(module: torch.nn.Module) -> bool:
    return any(parameter is None for parameter in module._parameters.values())


def _inner(module: torch.nn.Module, path: str) -> Any:
    for name in path.split("."):
        module = getattr(module, name, None)
    return module


# --- torch's modules ----------------------------------------------------------------------------


class _Linear(Piece):
    _accelerate_takes = ("input",)

    @classmethod
    def _accelerate_fits(cls, module: torch.nn.Module) -> bool:
        return super()._accelerate_fits(module) and module.bias is not None

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if input.dim() < 2 or self.bias is None:
            return super().forward(input)
        return kernels.linear(input, self.weight, self.bias)


class _Conv1D(Piece):
    _accelerate_takes = ("x",)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return kernels.linear(x, self.weight.t(), self.bias)


class _Embedding(Piece):
    _accelerate_takes = ("input",)

    @classmethod
    def _accelerate_fits(cls, module: torch.nn.Module) -> bool:
        # One CUDA block computes the gradient of one row, which is slow if, for example, all tokens
        # use the same two rows.
        is_large = module.num_embeddings >= 32
        return super()._accelerate_fits(module) and is_large and cls._accelerate_is_plain(module)

    @staticmethod
    def _accelerate_is_plain(module: Any) -> bool:
        return module.max_norm is None and not module.scale_grad_by_freq and not module.sparse

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if not self._accelerate_is_plain(self):
            return super().forward(input)
        return kernels.embedding(input, self.weight, self.padding_idx)


class Norm(Piece):
    """Returns the result that a block has precomputed."""

    def _accelerate_ahead(self, x: torch.Tensor) -> torch.Tensor | None:
        ahead, thread.ahead = thread.ahead, None
        if ahead is None or ahead[0]() is not self or ahead[1]() is not x or is_checkpointed():
            return None
        return ahead[3] if ahead[2] == _version(x) else None


class LayerNorm(Norm):
    _accelerate_takes = ("input",)

    @classmethod
    def _accelerate_fits(cls, module: torch.nn.Module) -> bool:
        has_both = module.weight is not None and module.bias is not None
        is_plain = has_both and module.weight.dim() == 1
        return super()._accelerate_fits(module) and is_plain

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        ahead = self._accelerate_ahead(input)
        if ahead is not None:
            return ahead
        if _lacks_any(self) or not same_dtype(input, self.weight, self.bias):
            return super().forward(input)
        return kernels.layer_norm(input, self.weight, self.bias, self.eps)


def _version(x: torch.Tensor) -> int | None:
    return None if x.is_inference() else x._version


def is_checkpointed() -> bool:
    """Whether hooks redirect the tensors that are saved for the backward pass, as under
    `torch.utils.checkpoint`. Checkpointing recomputes its own blocks, and must not use the results
    of other blocks."""
    return torch._C._autograd._top_saved_tensors_default_hooks(False) is not None


def next_norm(block: Any, kind: type, x: torch.Tensor) -> Any:
    """Returns the norm after the block, if the block may compute it because no code observes or
    changes the values between them."""
    if not thread.is_chained or torch_module._has_any_global_hook():
        return None
    norm, following = (reference() for reference in behind.get(block, (_nothing, _nothing)))
    if (
        norm is None
        or not issubclass(type(norm), kind)
        or _lacks_any(norm)
        or not (is_bare(block) and is_bare(norm) and is_bare(following))
        or (block.gradient_checkpointing and block.training)
        or is_checkpointed()
    ):
        return None
    return norm if same_dtype(x, norm.weight, getattr(norm, "bias", None)) else None


def _nothing() -> None:
    """Returns None, like a weak reference to a destroyed object."""


def keep_ahead(norm: torch.nn.Module, x: torch.Tensor, normed: torch.Tensor) -> None:
    thread.ahead = (weakref.ref(norm), weakref.ref(x), _version(x), normed)


class _Gelu(Piece):
    _accelerate_takes = ("input",)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return functional.gelu(input, approximate="tanh")


class HeldDropout(Piece):
    """Does nothing if the block applies this dropout itself."""

    _accelerate_takes = ("input",)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return input if thread.held is self else super().forward(input)


@contextmanager
def holding(dropout: torch.nn.Module) -> Iterator[None]:
    before, thread.held = thread.held, dropout
    try:
        yield
    finally:
        thread.held = before


def add_and_norm(
    residual: torch.Tensor,
    branch: torch.Tensor,
    bias: torch.Tensor | None,
    p: float,
    norm: torch.nn.Module,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the residual plus the branch (after bias and dropout), and the layer norm of the
    sum."""
    return kernels.add_dropout_layer_norm(
        residual, branch, bias, norm.weight, norm.bias, p, norm.eps
    )


# Replacements of modules outside of blocks, by class.
TORCH: dict[str, type[Piece]] = {
    LINEAR[0]: _Linear,
    NORM[0]: LayerNorm,
    CONV1D[0]: _Conv1D,
    "torch.nn.modules.sparse.Embedding": _Embedding,
    "transformers.activations.NewGELUActivation": _Gelu,
    "transformers.activations.FastGELUActivation": _Gelu,
}


def modeling_name(model: str, name: str) -> str:
    return f"transformers.models.{model}.modeling_{model}.{name}"
