# SPDX-License-Identifier: Apache-2.0
"""Layers of BERT and related models, and blocks of DistilBERT."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch.nn import functional

from accelerate import kernels
from accelerate._fuse.pieces import (
    DROPOUT,
    GELUS,
    LINEAR,
    NORM,
    Piece,
    add_and_norm,
    is_bare,
    modeling_name,
    name_of,
    probability,
    same_dtype,
)


def _added(output: Any, residual: torch.Tensor, branch: torch.Tensor) -> torch.Tensor:
    p = probability(output.dropout)
    return add_and_norm(residual, branch, output.dense.bias, p, output.LayerNorm)[1]


def _fed_forward(x: torch.Tensor, first: Any, activation: Any, second: Any) -> torch.Tensor:
    """Computes both matrix products of the MLP, without the bias of the second."""
    return kernels.linear_gelu_linear(
        x, first.weight, first.bias, second.weight, GELUS[name_of(activation.__class__)]
    )


class _BertAttention(Piece):
    """Computes query, key and value with one matrix product."""

    _accelerate_takes = ("hidden_states", "attention_mask", "past_key_values", "kwargs")
    _accelerate_children = frozenset({"query", "key", "value", "dropout"})
    _accelerate_bypassed = {"query": LINEAR, "key": LINEAR, "value": LINEAR}

    @classmethod
    def _accelerate_fits(cls, module: torch.nn.Module) -> bool:
        return super()._accelerate_fits(module) and all(
            linear.bias is not None for linear in (module.query, module.key, module.value)
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
            # Autocast caches the casts of individual weights, but would cast the joined weights in
            # every call.
            or _would_be_cast(hidden_states.device.type, self.query.weight)
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
        heads = [states.view(shape).transpose(1, 2) for states in joined.chunk(3, -1)]
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


def _would_be_cast(device_type: str, weight: torch.Tensor) -> bool:
    return torch.is_autocast_enabled(device_type) and (
        weight.dtype != torch.get_autocast_dtype(device_type)
    )


class _BertOutput(Piece):
    """Fuses the bias, dropout, sum and norm that follow a matrix product."""

    _accelerate_takes = ("hidden_states", "input_tensor")
    _accelerate_children = frozenset({"dense", "LayerNorm", "dropout"})
    _accelerate_bypassed = {"dense": LINEAR, "LayerNorm": NORM, "dropout": DROPOUT}

    def forward(self, hidden_states: torch.Tensor, input_tensor: torch.Tensor) -> torch.Tensor:
        if not same_dtype(input_tensor, self.LayerNorm.weight) or not self._accelerate_may_bypass():
            return super().forward(hidden_states, input_tensor)
        return _added(self, input_tensor, functional.linear(hidden_states, self.dense.weight))


class _BertLayer(Piece):
    """Fuses both matrix products with the GELU between them."""

    _accelerate_takes = (
        "hidden_states",
        "attention_mask",
        "encoder_hidden_states",
        "encoder_attention_mask",
        "past_key_values",
        "kwargs",
    )
    _accelerate_children = frozenset({"attention", "intermediate", "output"})
    _accelerate_bypassed = {
        "intermediate.dense": LINEAR,
        "intermediate.intermediate_act_fn": tuple(GELUS),
        "output.dense": LINEAR,
        "output.LayerNorm": NORM,
        "output.dropout": DROPOUT,
    }

    def feed_forward_chunk(self, attention_output: torch.Tensor) -> torch.Tensor:
        inner, output = self.intermediate, self.output
        if (
            not same_dtype(attention_output, output.LayerNorm.weight)
            or not self._accelerate_may_bypass()
            or not (is_bare(inner) and is_bare(output))
        ):
            return super().feed_forward_chunk(attention_output)
        branch = _fed_forward(
            attention_output, inner.dense, inner.intermediate_act_fn, output.dense
        )
        return _added(output, attention_output, branch)


class _DistilBertBlock(Piece):
    _accelerate_takes = ("hidden_states", "attention_mask", "kwargs")
    _accelerate_children = frozenset({"attention", "sa_layer_norm", "ffn", "output_layer_norm"})
    _accelerate_bypassed = {
        "sa_layer_norm": NORM,
        "ffn": ("transformers.models.distilbert.modeling_distilbert.FFN",),
        "ffn.lin1": LINEAR,
        "ffn.activation": tuple(GELUS),
        "ffn.lin2": LINEAR,
        "ffn.dropout": DROPOUT,
        "output_layer_norm": NORM,
    }

    def forward(
        self, hidden_states: torch.Tensor, attention_mask: Any = None, **kwargs: Any
    ) -> torch.Tensor:
        first, ffn, second = self.sa_layer_norm, self.ffn, self.output_layer_norm
        if (
            ffn.chunk_size_feed_forward
            or not same_dtype(hidden_states, first.weight, second.weight)
            or not self._accelerate_may_bypass()
        ):
            return super().forward(hidden_states, attention_mask, **kwargs)
        branch, _ = self.attention(hidden_states, attention_mask=attention_mask, **kwargs)
        normed = add_and_norm(hidden_states, branch, None, 0.0, first)[1]
        branch = _fed_forward(normed, ffn.lin1, ffn.activation, ffn.lin2)
        p = probability(ffn.dropout)
        return add_and_norm(normed, branch, ffn.lin2.bias, p, second)[1]


_BERTS = {
    "bert": "Bert",
    "camembert": "Camembert",
    "electra": "Electra",
    "roberta": "Roberta",
    "xlm_roberta": "XLMRoberta",
}
RECIPES: dict[str, type[Piece]] = {
    modeling_name("distilbert", "TransformerBlock"): _DistilBertBlock,
    **{modeling_name(m, n + "SelfAttention"): _BertAttention for m, n in _BERTS.items()},
    **{modeling_name(m, n + "SelfOutput"): _BertOutput for m, n in _BERTS.items()},
    **{modeling_name(m, n + "Output"): _BertOutput for m, n in _BERTS.items()},
    **{modeling_name(m, n + "Layer"): _BertLayer for m, n in _BERTS.items()},
}
