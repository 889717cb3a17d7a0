# SPDX-License-Identifier: Apache-2.0
"""GPT-2's blocks."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch

from accelerate import kernels
from accelerate._fuse.attention import Backbone, attention_order, needed
from accelerate._fuse.pieces import (
    CONV1D,
    DROPOUT,
    GELUS,
    NORM,
    LayerNorm,
    Piece,
    add_and_norm,
    holding,
    is_bare,
    keep_ahead,
    modeling_name,
    name_of,
    next_norm,
    probability,
    same_dtype,
)


class _Gpt2Attention(Piece):
    _accelerate_takes = (
        "hidden_states",
        "past_key_values",
        "attention_mask",
        "encoder_hidden_states",
        "encoder_attention_mask",
        "output_attentions",
        "kwargs",
    )
    _accelerate_children = frozenset({"c_attn", "c_proj", "attn_dropout", "resid_dropout"})

    def forward(
        self,
        hidden_states: Any,
        past_key_values: Any = None,
        attention_mask: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        attention_mask = needed(attention_mask)
        with attention_order(hidden_states, attention_mask):
            return super().forward(hidden_states, past_key_values, attention_mask, *args, **kwargs)


class Gpt2Block(Piece):
    """Fuses each sum with its dropout and the following norm, and the GELU with its matrix
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
    _accelerate_children = frozenset({"ln_1", "attn", "ln_2", "mlp"})
    _accelerate_bypassed = {
        "ln_2": NORM,
        "attn.resid_dropout": DROPOUT,
        "mlp": ("transformers.models.gpt2.modeling_gpt2.GPT2MLP",),
        "mlp.c_fc": CONV1D,
        "mlp.act": tuple(GELUS),
        "mlp.c_proj": CONV1D,
        "mlp.dropout": DROPOUT,
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
            or not same_dtype(hidden_states, norm.weight, norm.bias, mlp.c_proj.bias)
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
        # A hook on the attention must see the same output as in transformers.
        is_held = is_bare(attention)
        with holding(attention.resid_dropout) if is_held else nullcontext():
            branch, _ = attention(
                self.ln_1(hidden_states),
                past_key_values=past_key_values,
                attention_mask=attention_mask,
                use_cache=use_cache,
                **kwargs,
            )
        p = probability(attention.resid_dropout) if is_held else 0.0
        x, normed = add_and_norm(hidden_states, branch, None, p, norm)
        branch = kernels.linear_gelu_linear(
            normed,
            mlp.c_fc.weight.t(),
            mlp.c_fc.bias,
            mlp.c_proj.weight.t(),
            GELUS[name_of(mlp.act.__class__)],
        )
        p, bias = probability(mlp.dropout), mlp.c_proj.bias
        behind = next_norm(self, LayerNorm, x)
        if behind is None:
            return kernels.add_dropout(x, branch, bias, p)
        x, normed = add_and_norm(x, branch, bias, p, behind)
        keep_ahead(behind, x, normed)
        return x


RECIPES: dict[str, type[Piece]] = {
    modeling_name("gpt2", "GPT2Model"): Backbone,
    modeling_name("gpt2", "GPT2Attention"): _Gpt2Attention,
    modeling_name("gpt2", "GPT2Block"): Gpt2Block,
}
# The blocks that a model calls consecutively, the norm at the start of each block, and the norm
# after the last block.
CHAINS = {modeling_name("gpt2", "GPT2Model"): ("h", "ln_1", "ln_f")}
