# SPDX-License-Identifier: Apache-2.0
"""What `prepare(..., fuse=True)` replaces inside of transformers' models: operators of many passes
over memory by those of `accelerate.kernels`, whose results agree to rounding.

A piece that is known exactly (its class, its parts, what its forward takes) becomes a module of a
type of ours, in place: parameters, names, hooks and `__class__` stay, and copies are of the old
type. Where a call needs something that a fused forward leaves out, say a hook on a part that it
does not call, the forward of the class runs."""

from __future__ import annotations

import inspect
import sys
import threading
import typing
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch.nn import functional
from torch.nn.modules import module as torch_module
from torch.utils.weak import WeakIdKeyDictionary

from accelerate import kernels
from accelerate.errors import UsageError
from accelerate.logging import get_logger
from accelerate.prepared_module import (
    InPlace,
    has_compiled_parts,
    is_compiled_module,
    set_type,
    subclass,
)


class _Thread(threading.local):
    # The dropout that is left to whoever adds the branch.
    held: torch.nn.Module | None = None
    # A norm, what it is to be given, at which version, and what it gives then.
    ahead: tuple[Any, Any, int | None, torch.Tensor] | None = None
    # Whether all that a mask can say is that tokens see those before them.
    is_causal = False
    # The cosines that halves of both angles were made of.
    angles: tuple[Any, torch.Tensor, torch.Tensor] | None = None


_thread = _Thread()
# The norm behind each block; not one of the block's modules.
_norm_behind: Any = WeakIdKeyDictionary()

_GELUS = {
    "transformers.activations.GELUActivation": "none",
    "transformers.activations.NewGELUActivation": "tanh",
    "transformers.activations.FastGELUActivation": "tanh",
    "transformers.activations.GELUTanh": "tanh",
}
_SILUS = ("transformers.activations.SiLUActivation", "torch.nn.modules.activation.SiLU")
_LINEAR = ("torch.nn.modules.linear.Linear",)
_NORM = ("torch.nn.modules.normalization.LayerNorm",)
_DROPOUT = ("torch.nn.modules.dropout.Dropout",)
_CONV1D = ("transformers.pytorch_utils.Conv1D",)


def _name_of(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _is_bare(part: torch.nn.Module | None) -> bool:
    """Whether calling it is nothing but the forward of its class."""
    return part is not None and not (
        part._forward_hooks
        or part._forward_pre_hooks
        or part._backward_hooks
        or part._backward_pre_hooks
        or part._compiled_call_impl is not None
        or "forward" in part.__dict__
    )


def _meets(x: torch.Tensor, *others: torch.Tensor | None) -> bool:
    """Whether operators take them together: autocast brings them into one type."""
    return torch.is_autocast_enabled(x.device.type) or all(
        other is None or other.dtype == x.dtype for other in others
    )


def _probability(dropout: torch.nn.Module) -> float:
    return dropout.p if dropout.training else 0.0


class _Piece(InPlace):
    """Comes before the class of a piece in the types that are made here."""

    # What the forward that is replaced takes.
    _accelerate_takes: tuple[str, ...] = ()
    # All modules of the piece, and which classes those are of whose parameters are read, or whose
    # work is done, without a call.
    _accelerate_parts: frozenset[str] = frozenset()
    _accelerate_bypassed: dict[str, tuple[str, ...]] = {}

    @classmethod
    def _accelerate_fits(cls, part: torch.nn.Module) -> bool:
        kind = part.__class__
        return (
            tuple(inspect.signature(kind.forward).parameters) == ("self", *cls._accelerate_takes)
            and frozenset(part._modules) == cls._accelerate_parts
            and cls._accelerate_knows(part)
        )

    @classmethod
    def _accelerate_knows(cls, part: torch.nn.Module) -> bool:
        return all(
            (inner := _inner(part, path)) is not None and _name_of(inner.__class__) in names
            for path, names in cls._accelerate_bypassed.items()
        )

    def _accelerate_may_bypass(self) -> bool:
        """Not where a hook or another module came since, of which the classes' forwards know."""
        return (
            not torch_module._has_any_global_hook()
            and self._accelerate_knows(self)
            and all(_is_bare(_inner(self, path)) for path in self._accelerate_bypassed)
        )


def _inner(part: torch.nn.Module, path: str) -> Any:
    for name in path.split("."):
        part = getattr(part, name, None)
    return part


# --- torch's modules ----------------------------------------------------------------------------


class _Linear(_Piece):
    _accelerate_takes = ("input",)

    @classmethod
    def _accelerate_fits(cls, part: torch.nn.Module) -> bool:
        return super()._accelerate_fits(part) and part.bias is not None

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if input.dim() < 2:
            return super().forward(input)
        return kernels.linear(input, self.weight, self.bias)


class _Conv1D(_Piece):
    _accelerate_takes = ("x",)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return kernels.linear(x, self.weight.t(), self.bias)


class _Embedding(_Piece):
    _accelerate_takes = ("input",)

    @classmethod
    def _accelerate_fits(cls, part: torch.nn.Module) -> bool:
        is_plain = part.max_norm is None and not part.scale_grad_by_freq and not part.sparse
        # The gradient of a row is one block's work: not for two that serve all tokens.
        return super()._accelerate_fits(part) and is_plain and part.num_embeddings >= 32

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return kernels.embedding(input, self.weight, self.padding_idx)


class _Norm(_Piece):
    """What a block computed ahead for it comes from there."""

    def _accelerate_ahead(self, x: torch.Tensor) -> torch.Tensor | None:
        ahead, _thread.ahead = _thread.ahead, None
        if ahead is None or ahead[0]() is not self or ahead[1]() is not x or _is_checkpointed():
            return None
        return ahead[3] if ahead[2] == _version(x) else None


class _LayerNorm(_Norm):
    _accelerate_takes = ("input",)

    @classmethod
    def _accelerate_fits(cls, part: torch.nn.Module) -> bool:
        is_plain = part.weight is not None and part.bias is not None and part.weight.dim() == 1
        return super()._accelerate_fits(part) and is_plain

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        ahead = self._accelerate_ahead(input)
        if ahead is not None:
            return ahead
        if not _meets(input, self.weight, self.bias):
            return super().forward(input)
        return kernels.layer_norm(input, self.weight, self.bias, self.eps)


def _version(x: torch.Tensor) -> int | None:
    return None if x.is_inference() else x._version


def _is_checkpointed() -> bool:
    """Whether what is saved for backward goes elsewhere: a checkpoint computes its part again, for
    which nothing may come from another."""
    return torch._C._autograd._top_saved_tensors_default_hooks(False) is not None


def _next_norm(block: Any, kind: type, x: torch.Tensor) -> Any:
    """The norm behind the block, where it may be computed in it."""
    reference = _norm_behind.get(block)
    norm = None if reference is None else reference()
    if (
        norm is None
        or not issubclass(type(norm), kind)
        or (block.gradient_checkpointing and block.training)
        or _is_checkpointed()
    ):
        return None
    return norm if _meets(x, norm.weight, getattr(norm, "bias", None)) else None


def _keep_ahead(norm: torch.nn.Module, x: torch.Tensor, normed: torch.Tensor) -> None:
    _thread.ahead = (weakref.ref(norm), weakref.ref(x), _version(x), normed)


class _Gelu(_Piece):
    _accelerate_takes = ("input",)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return functional.gelu(input, approximate="tanh")


class _HeldDropout(_Piece):
    """Leaves its work to the block that holds it."""

    _accelerate_takes = ("input",)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return input if _thread.held is self else super().forward(input)


@contextmanager
def _holding(dropout: torch.nn.Module) -> Iterator[None]:
    before, _thread.held = _thread.held, dropout
    try:
        yield
    finally:
        _thread.held = before


# --- attention ----------------------------------------------------------------------------------

# As in C++ (src/models/attention.cpp): cuDNN makes a plan for each shape, which pays in training.
_MIN_TOKENS_FOR_CUDNN = 512


class _CausalModel(_Piece):
    """Under a recording transformers cannot look at values, and hands its blocks a mask where they
    would do without, with which attention takes several times longer."""

    @classmethod
    def _accelerate_fits(cls, part: torch.nn.Module) -> bool:
        taken = inspect.signature(part.__class__.forward).parameters
        return {"attention_mask", "position_ids", "past_key_values"} <= taken.keys()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        signature = inspect.signature(self._accelerate_kind.forward)
        given = signature.bind_partial(self, *args, **kwargs).arguments
        before = _thread.is_causal
        _thread.is_causal = (
            given.get("attention_mask") is None
            and given.get("position_ids") is None
            and given.get("past_key_values") is None
            and self.config._attn_implementation == "sdpa"
            and not (self.gradient_checkpointing and self.training)
        )
        try:
            return super().forward(*args, **kwargs)
        finally:
            _thread.is_causal = before


def _needed(mask: torch.Tensor | None) -> torch.Tensor | None:
    """What is computed again is computed outside of the model, with the mask as it was."""
    return None if _thread.is_causal and not _is_checkpointed() else mask


def _attention_order(x: torch.Tensor, mask: torch.Tensor | None) -> Any:
    """While it lives, torch asks cuDNN first for attention where that is the fastest."""
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


# --- GPT-2 --------------------------------------------------------------------------------------


class _Gpt2Attention(_Piece):
    _accelerate_takes = (
        "hidden_states",
        "past_key_values",
        "attention_mask",
        "encoder_hidden_states",
        "encoder_attention_mask",
        "output_attentions",
        "kwargs",
    )
    _accelerate_parts = frozenset({"c_attn", "c_proj", "attn_dropout", "resid_dropout"})

    def forward(
        self,
        hidden_states: Any,
        past_key_values: Any = None,
        attention_mask: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        attention_mask = _needed(attention_mask)
        with _attention_order(hidden_states, attention_mask):
            return super().forward(hidden_states, past_key_values, attention_mask, *args, **kwargs)


class _Gpt2Block(_Piece):
    """Each sum with its dropout and the norm behind it are one operator, the gelu is part of its
    product."""

    _accelerate_takes = (
        "hidden_states",
        "past_key_values",
        "attention_mask",
        "encoder_hidden_states",
        "encoder_attention_mask",
        "use_cache",
        "kwargs",
    )
    _accelerate_parts = frozenset({"ln_1", "attn", "ln_2", "mlp"})
    _accelerate_bypassed = {
        "ln_2": _NORM,
        "attn.resid_dropout": _DROPOUT,
        "mlp": ("transformers.models.gpt2.modeling_gpt2.GPT2MLP",),
        "mlp.c_fc": _CONV1D,
        "mlp.act": tuple(_GELUS),
        "mlp.c_proj": _CONV1D,
        "mlp.dropout": _DROPOUT,
    }

    def forward(
        self,
        hidden_states: torch.Tensor,
        past_key_values: Any = None,
        attention_mask: Any = None,
        encoder_hidden_states: Any = None,
        encoder_attention_mask: Any = None,
        use_cache: bool | None = False,
        **kwargs: Any,
    ) -> torch.Tensor:
        norm, mlp, attention = self.ln_2, self.mlp, self.attn
        if (
            encoder_hidden_states is not None
            or not _meets(hidden_states, norm.weight, norm.bias, mlp.c_proj.bias)
            or not self._accelerate_may_bypass()
        ):
            return super().forward(
                hidden_states,
                past_key_values,
                attention_mask,
                encoder_hidden_states,
                encoder_attention_mask,
                use_cache,
                **kwargs,
            )
        # A hook on the attention sees what transformers' gives.
        is_held = _is_bare(attention)
        with _holding(attention.resid_dropout) if is_held else nullcontext():
            branch, _ = attention(
                self.ln_1(hidden_states),
                past_key_values=past_key_values,
                attention_mask=attention_mask,
                use_cache=use_cache,
                **kwargs,
            )
        p = _probability(attention.resid_dropout) if is_held else 0.0
        x, normed = kernels.add_dropout_layer_norm(
            hidden_states, branch, None, norm.weight, norm.bias, p, norm.eps
        )
        branch = kernels.linear_gelu_linear(
            normed,
            mlp.c_fc.weight.t(),
            mlp.c_fc.bias,
            mlp.c_proj.weight.t(),
            _GELUS[_name_of(mlp.act.__class__)],
        )
        p, bias = _probability(mlp.dropout), mlp.c_proj.bias
        behind = _next_norm(self, _LayerNorm, x)
        if behind is None:
            return kernels.add_dropout(x, branch, bias, p)
        x, normed = kernels.add_dropout_layer_norm(
            x, branch, bias, behind.weight, behind.bias, p, behind.eps
        )
        _keep_ahead(behind, x, normed)
        return x


# --- BERT and its relatives ---------------------------------------------------------------------


def _added(output: Any, residual: torch.Tensor, branch: torch.Tensor) -> torch.Tensor:
    norm = output.LayerNorm
    return kernels.add_dropout_layer_norm(
        residual,
        branch,
        output.dense.bias,
        norm.weight,
        norm.bias,
        _probability(output.dropout),
        norm.eps,
    )[1]


class _BertAttention(_Piece):
    """Query, key and value as one product."""

    _accelerate_takes = ("hidden_states", "attention_mask", "past_key_values", "kwargs")
    _accelerate_parts = frozenset({"query", "key", "value", "dropout"})
    _accelerate_bypassed = {"query": _LINEAR, "key": _LINEAR, "value": _LINEAR}

    @classmethod
    def _accelerate_fits(cls, part: torch.nn.Module) -> bool:
        return super()._accelerate_fits(part) and all(
            linear.bias is not None for linear in (part.query, part.key, part.value)
        )

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: Any = None,
        past_key_values: Any = None,
        **kwargs: Any,
    ) -> Any:
        three = (self.query, self.key, self.value)
        if (
            past_key_values is not None
            # It keeps what it casts of each weight, and would cast the joined ones every time.
            or torch.is_autocast_enabled(hidden_states.device.type)
            or not self._accelerate_may_bypass()
        ):
            return super().forward(hidden_states, attention_mask, past_key_values, **kwargs)
        module = sys.modules[self._accelerate_kind.__module__]
        joined = kernels.linear(
            hidden_states,
            torch.cat([linear.weight for linear in three]),
            torch.cat([linear.bias for linear in three]),
        )
        shape = (*hidden_states.shape[:-1], -1, self.attention_head_size)
        heads = [part.view(shape).transpose(1, 2) for part in joined.chunk(3, -1)]
        attend = module.ALL_ATTENTION_FUNCTIONS.get_interface(
            self.config._attn_implementation, module.eager_attention_forward
        )
        context, weights = attend(
            self,
            *heads,
            attention_mask,
            dropout=self.dropout.p if self.training else 0.0,
            scaling=self.scaling,
            **kwargs,
        )
        return context.reshape(*hidden_states.shape[:-1], -1).contiguous(), weights


class _BertOutput(_Piece):
    """Bias, dropout, sum and norm behind a product."""

    _accelerate_takes = ("hidden_states", "input_tensor")
    _accelerate_parts = frozenset({"dense", "LayerNorm", "dropout"})
    _accelerate_bypassed = {"dense": _LINEAR, "LayerNorm": _NORM, "dropout": _DROPOUT}

    def forward(self, hidden_states: torch.Tensor, input_tensor: torch.Tensor) -> torch.Tensor:
        if not _meets(input_tensor, self.LayerNorm.weight) or not self._accelerate_may_bypass():
            return super().forward(hidden_states, input_tensor)
        return _added(self, input_tensor, functional.linear(hidden_states, self.dense.weight))


class _BertLayer(_Piece):
    """Both products with the gelu between them."""

    _accelerate_takes = (
        "hidden_states",
        "attention_mask",
        "encoder_hidden_states",
        "encoder_attention_mask",
        "past_key_values",
        "kwargs",
    )
    _accelerate_parts = frozenset({"attention", "intermediate", "output"})
    _accelerate_bypassed = {
        "intermediate.dense": _LINEAR,
        "intermediate.intermediate_act_fn": tuple(_GELUS),
        "output.dense": _LINEAR,
        "output.LayerNorm": _NORM,
        "output.dropout": _DROPOUT,
    }

    def feed_forward_chunk(self, attention_output: torch.Tensor) -> torch.Tensor:
        inner, output = self.intermediate, self.output
        if (
            not _meets(attention_output, output.LayerNorm.weight)
            or not self._accelerate_may_bypass()
            or not (_is_bare(inner) and _is_bare(output))
        ):
            return super().feed_forward_chunk(attention_output)
        branch = kernels.linear_gelu_linear(
            attention_output,
            inner.dense.weight,
            inner.dense.bias,
            output.dense.weight,
            _GELUS[_name_of(inner.intermediate_act_fn.__class__)],
        )
        return _added(output, attention_output, branch)


class _DistilBertBlock(_Piece):
    _accelerate_takes = ("hidden_states", "attention_mask", "kwargs")
    _accelerate_parts = frozenset({"attention", "sa_layer_norm", "ffn", "output_layer_norm"})
    _accelerate_bypassed = {
        "sa_layer_norm": _NORM,
        "ffn": ("transformers.models.distilbert.modeling_distilbert.FFN",),
        "ffn.lin1": _LINEAR,
        "ffn.activation": tuple(_GELUS),
        "ffn.lin2": _LINEAR,
        "ffn.dropout": _DROPOUT,
        "output_layer_norm": _NORM,
    }

    def forward(
        self, hidden_states: torch.Tensor, attention_mask: Any = None, **kwargs: Any
    ) -> torch.Tensor:
        first, ffn, second = self.sa_layer_norm, self.ffn, self.output_layer_norm
        if (
            ffn.chunk_size_feed_forward
            or not _meets(hidden_states, first.weight, second.weight)
            or not self._accelerate_may_bypass()
        ):
            return super().forward(hidden_states, attention_mask, **kwargs)
        branch, _ = self.attention(hidden_states, attention_mask=attention_mask, **kwargs)
        normed = kernels.add_dropout_layer_norm(
            hidden_states, branch, None, first.weight, first.bias, 0.0, first.eps
        )[1]
        branch = kernels.linear_gelu_linear(
            normed,
            ffn.lin1.weight,
            ffn.lin1.bias,
            ffn.lin2.weight,
            _GELUS[_name_of(ffn.activation.__class__)],
        )
        return kernels.add_dropout_layer_norm(
            normed,
            branch,
            ffn.lin2.bias,
            second.weight,
            second.bias,
            _probability(ffn.dropout),
            second.eps,
        )[1]


# --- Llama and its relatives --------------------------------------------------------------------


class _RmsNorm(_Norm):
    _accelerate_takes = ("hidden_states",)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        ahead = self._accelerate_ahead(hidden_states)
        if ahead is not None:
            return ahead
        if not _meets(hidden_states, self.weight):
            return super().forward(hidden_states)
        return kernels.rms_norm(hidden_states, self.weight, self.variance_epsilon)


class _LlamaMlp(_Piece):
    _accelerate_takes = ("x",)
    _accelerate_parts = frozenset({"gate_proj", "up_proj", "down_proj", "act_fn"})
    _accelerate_bypassed = {"act_fn": _SILUS}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self._accelerate_may_bypass():
            return super().forward(x)
        return self.down_proj(kernels.swiglu(self.gate_proj(x), self.up_proj(x)))


class _LlamaAttention(_Piece):
    _accelerate_takes = (
        "hidden_states",
        "position_embeddings",
        "attention_mask",
        "past_key_values",
        "kwargs",
    )
    _accelerate_parts = frozenset({"q_proj", "k_proj", "v_proj", "o_proj"})

    def forward(
        self,
        hidden_states: torch.Tensor,
        position_embeddings: Any = None,
        attention_mask: Any = None,
        past_key_values: Any = None,
        **kwargs: Any,
    ) -> Any:
        llama = sys.modules[self._accelerate_kind.__module__]
        shape = (*hidden_states.shape[:-1], -1, self.head_dim)
        angles = _halved(*position_embeddings)
        query = kernels.rotate(self.q_proj(hidden_states).view(shape), *angles).transpose(1, 2)
        key = kernels.rotate(self.k_proj(hidden_states).view(shape), *angles).transpose(1, 2)
        value = self.v_proj(hidden_states).view(shape).transpose(1, 2)
        if past_key_values is not None:
            key, value = past_key_values.update(key, value, self.layer_idx)
        attend = llama.ALL_ATTENTION_FUNCTIONS.get_interface(
            self.config._attn_implementation, llama.eager_attention_forward
        )
        attention_mask = _needed(attention_mask)
        with _attention_order(hidden_states, attention_mask):
            context, weights = attend(
                self,
                query,
                key,
                value,
                attention_mask,
                dropout=self.attention_dropout if self.training else 0.0,
                scaling=self.scaling,
                **kwargs,
            )
        return self.o_proj(context.reshape(*hidden_states.shape[:-1], -1).contiguous()), weights


def _halved(cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Angles as our operator takes them, made once for all layers: transformers' come twice, for
    both channels that are turned together."""
    kept = _thread.angles
    if kept is not None and kept[0]() is cos:
        return kept[1:]
    half = cos.shape[-1] // 2
    angles = cos[..., :half].float().contiguous(), sin[..., :half].float().contiguous()
    _thread.angles = (weakref.ref(cos), *angles)
    return angles


class _LlamaLayer(_Piece):
    _accelerate_takes = (
        "hidden_states",
        "attention_mask",
        "position_ids",
        "past_key_values",
        "use_cache",
        "position_embeddings",
        "kwargs",
    )
    _accelerate_parts = frozenset(
        {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
    )

    @classmethod
    def _accelerate_fits(cls, part: torch.nn.Module) -> bool:
        norm = getattr(part, "post_attention_layernorm", None)
        return super()._accelerate_fits(part) and _recipe_of(norm) is _RmsNorm

    def forward(self, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        norm = self.post_attention_layernorm
        if (
            not _meets(hidden_states, norm.weight)
            or not _is_bare(norm)
            or not issubclass(type(norm), _RmsNorm)
            or torch_module._has_any_global_hook()
        ):
            return super().forward(hidden_states, *args, **kwargs)
        given = dict(zip(self._accelerate_takes[1:], args), **kwargs)
        branch, _ = self.self_attn(hidden_states=self.input_layernorm(hidden_states), **given)
        x, normed = kernels.add_rms_norm(
            hidden_states, branch, norm.weight, norm.variance_epsilon
        )
        branch = self.mlp(normed)
        behind = _next_norm(self, _RmsNorm, x)
        if behind is None:
            return x + branch
        x, normed = kernels.add_rms_norm(x, branch, behind.weight, behind.variance_epsilon)
        _keep_ahead(behind, x, normed)
        return x


# --- the head and the loss of language models ---------------------------------------------------

# As in C++ (src/models/layers.cpp), where the copy of the weights pays for itself.
_MULTIPLE = 64
_MIN_ROWS = 256


def _is_padded(x: torch.Tensor, kind: torch.dtype) -> bool:
    is_reduced = kind in (torch.bfloat16, torch.float16)
    return not x.is_cpu and is_reduced and x.numel() >= _MIN_ROWS * x.shape[-1]


class _Head(_Piece):
    """Products with a vocabulary that is no multiple of 64 take several times longer. Logits are a
    view of the first columns of such a product."""

    _accelerate_takes = ("input",)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        weight, bias = self.weight, self.bias
        num_missing = -weight.shape[0] % _MULTIPLE
        kind = input.dtype
        if torch.is_autocast_enabled(input.device.type):
            kind = torch.get_autocast_dtype(input.device.type)
        if num_missing == 0 or not _is_padded(input, kind):
            return super().forward(input)
        padded = functional.linear(
            input,
            functional.pad(weight.to(kind), (0, 0, 0, num_missing)),
            None if bias is None else functional.pad(bias.to(kind), (0, num_missing)),
        )
        return padded[..., : weight.shape[0]]


class _CausalLoss:
    """Transformers' `ForCausalLMLoss` without float32 copies of the logits. What is saved or copied
    is transformers'."""

    def __init__(self, original: Callable) -> None:
        self._original = original

    def __reduce__(self) -> Any:
        return typing.cast, (object, self._original)

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
            # Labels move instead of logits, which are larger by the vocabulary.
            shift_labels = functional.pad(labels, (0, 1), value=ignore_index)[..., 1:]
        classes = shift_labels.reshape(-1).to(logits.device)
        loss = kernels.cross_entropy(_rows_of(logits), classes, vocab_size, ignore_index)
        if num_items_in_batch is None:
            return loss
        if torch.is_tensor(num_items_in_batch):
            num_items_in_batch = num_items_in_batch.to(loss.device)
        # The mean of nothing is NaN, its sum is 0.
        count = classes.ne(ignore_index).sum()
        return torch.where(count > 0, loss * count, 0.0) / num_items_in_batch


def _rows_of(logits: torch.Tensor) -> torch.Tensor:
    """Logits as rows, with the columns that a padded product has behind them: the gradient of a
    view would be written once more."""
    base = logits._base
    if (
        base is not None
        and base.is_contiguous()
        and logits.storage_offset() == base.storage_offset()
        and logits.stride(-1) == 1
        and base.numel() * logits.shape[-1] == logits.numel() * logits.stride(-2)
    ):
        rows = base.view(-1, logits.stride(-2))
        if logits.stride() == rows.view(*logits.shape[:-1], -1).stride():
            return rows
    return logits.reshape(-1, logits.shape[-1])


# --- what is replaced ---------------------------------------------------------------------------

_MODELS = "transformers.models.{0}.modeling_{0}.{1}"
_BERTS = {
    "bert": "Bert",
    "camembert": "Camembert",
    "electra": "Electra",
    "roberta": "Roberta",
    "xlm_roberta": "XLMRoberta",
}
_LLAMAS = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3"}

_RECIPES: dict[str, type[_Piece]] = {
    _LINEAR[0]: _Linear,
    _NORM[0]: _LayerNorm,
    _CONV1D[0]: _Conv1D,
    "torch.nn.modules.sparse.Embedding": _Embedding,
    "transformers.activations.NewGELUActivation": _Gelu,
    "transformers.activations.FastGELUActivation": _Gelu,
    _MODELS.format("gpt2", "GPT2Attention"): _Gpt2Attention,
    _MODELS.format("gpt2", "GPT2Block"): _Gpt2Block,
    _MODELS.format("distilbert", "TransformerBlock"): _DistilBertBlock,
    _MODELS.format("llama", "LlamaAttention"): _LlamaAttention,
    _MODELS.format("gpt2", "GPT2Model"): _CausalModel,
    _MODELS.format("llama", "LlamaModel"): _CausalModel,
    **{_MODELS.format(m, n + "SelfAttention"): _BertAttention for m, n in _BERTS.items()},
    **{_MODELS.format(m, n + "SelfOutput"): _BertOutput for m, n in _BERTS.items()},
    **{_MODELS.format(m, n + "Output"): _BertOutput for m, n in _BERTS.items()},
    **{_MODELS.format(m, n + "Layer"): _BertLayer for m, n in _BERTS.items()},
    **{_MODELS.format(m, n + "RMSNorm"): _RmsNorm for m, n in _LLAMAS.items()},
    **{_MODELS.format(m, n + "MLP"): _LlamaMlp for m, n in _LLAMAS.items()},
    **{_MODELS.format(m, n + "DecoderLayer"): _LlamaLayer for m, n in _LLAMAS.items()},
}
# Which blocks a model calls one behind the other, the norm that each begins with, and the norm
# behind the last.
_CHAINS = {
    _MODELS.format("gpt2", "GPT2Model"): ("h", "ln_1", "ln_f"),
    **{
        _MODELS.format(m, n + "Model"): ("layers", "input_layernorm", "norm")
        for m, n in _LLAMAS.items()
    },
}

_types: weakref.WeakValueDictionary[tuple, type] = weakref.WeakValueDictionary()
_log = get_logger(__name__)


def _recipe_of(part: Any) -> type[_Piece] | None:
    recipe = _RECIPES.get(_name_of(part.__class__))
    return recipe if recipe is not None and recipe._accelerate_fits(part) else None


class Plan:
    """What `fuse=True` finds in a module; refuses one without anything, before it is prepared."""

    def __init__(self, module: torch.nn.Module) -> None:
        if is_compiled_module(module) or has_compiled_parts(module):
            raise UsageError(
                "[prepare] got fuse=True and a compiled model, expected one of them: leave "
                "torch.compile out, or fuse, as the compiler fuses by itself"
            )
        self._name = module.__class__.__name__
        self._recipes: list[tuple[torch.nn.Module, type[_Piece]]] = []
        self._losses: list[tuple[Any, Callable]] = []
        self._blocks: list[tuple[torch.nn.Module, torch.nn.Module]] = []
        for model in _models_in(module):
            self._plan(model)
        if not self._recipes and not self._losses:
            raise UsageError(
                f"[prepare] got fuse=True and a {self._name} in which nothing is known, expected a "
                "model of transformers (GPT-2, BERT, DistilBERT, RoBERTa, Llama and their kind, or "
                "one with the loss of causal language models); leave fuse out"
            )

    def _plan(self, model: Any) -> None:
        own = {}
        for part in model.modules():
            if part is model or not _is_of_its_class(part):
                continue
            recipe = _recipe_of(part)
            if recipe is not None:
                own[part] = recipe
            if recipe is _Gpt2Block:
                own[part.attn.resid_dropout] = _HeldDropout
        loss = _causal_loss_of(model)
        if loss is not None:
            self._losses.append((model, loss))
            head = model.get_output_embeddings()
            if head.__class__ is torch.nn.Linear and _is_of_its_class(head):
                own[head] = _Head
        for part in model.modules():
            chain = _CHAINS.get(_name_of(part.__class__))
            if chain is not None:
                self._blocks += _links(part, *chain)
        self._recipes += own.items()

    def apply(self) -> None:
        counts: Counter[str] = Counter()
        for part, recipe in self._recipes:
            counts[part.__class__.__name__] += 1
            if not issubclass(type(part), recipe):
                set_type(part, _type_of(recipe, part.__class__))
        for block, norm in self._blocks:
            _norm_behind[block] = weakref.ref(norm)
        for model, loss in self._losses:
            counts["loss"] += 1
            model.loss_function = _CausalLoss(loss)
        parts = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
        _log.info(f"[prepare] fused in {self._name}: {parts}")


def _is_of_its_class(part: torch.nn.Module) -> bool:
    """Not one with a forward of its own, nor one that was prepared for itself."""
    kind = type(part)
    return "forward" not in part.__dict__ and (kind is part.__class__ or issubclass(kind, _Piece))


def _models_in(module: torch.nn.Module) -> list[Any]:
    """The outermost models of transformers."""
    base = getattr(sys.modules.get("transformers.modeling_utils"), "PreTrainedModel", None)
    if base is None:
        return []
    if isinstance(module, base):
        return [module]
    return [model for child in module.children() for model in _models_in(child)]


def _causal_loss_of(model: Any) -> Callable | None:
    losses = sys.modules.get("transformers.loss.loss_utils")
    known = getattr(losses, "ForCausalLMLoss", None)
    if known is None or not model.__class__.__name__.endswith(("ForCausalLM", "LMHeadModel")):
        return None
    loss = model.loss_function
    if isinstance(loss, _CausalLoss):
        return known
    return known if loss is known else None


def _links(
    model: Any, blocks: str, first: str, last: str
) -> list[tuple[torch.nn.Module, torch.nn.Module]]:
    listed = list(getattr(model, blocks))
    norms = [getattr(block, first, None) for block in listed[1:]] + [getattr(model, last)]
    return [(block, norm) for block, norm in zip(listed, norms) if norm is not None]


def _type_of(recipe: type[_Piece], kind: type) -> type:
    key = (recipe, kind)
    made = _types.get(key)
    if made is None:
        _types[key] = made = subclass(recipe, kind, {})
    return made
