# SPDX-License-Identifier: Apache-2.0
"""Layers of Llama and related models."""

from __future__ import annotations

import sys
import weakref
from typing import Any

import torch
from torch.nn.modules import module as torch_module

from accelerate import kernels
from accelerate._fuse.attention import Backbone, attention_order, needed
from accelerate._fuse.pieces import (
    SILUS,
    Norm,
    Piece,
    is_bare,
    keep_ahead,
    modeling_name,
    name_of,
    next_norm,
    same_dtype,
    thread,
)


class _RmsNorm(Norm):
    _accelerate_takes = ("hidden_states",)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        ahead = self._accelerate_ahead(hidden_states)
        if ahead is not None:
            return ahead
        if not same_dtype(hidden_states, self.weight):
            return super().forward(hidden_states)
        return kernels.rms_norm(hidden_states, self.weight, self.variance_epsilon)


class _LlamaMlp(Piece):
    _accelerate_takes = ("x",)
    _accelerate_children = frozenset({"gate_proj", "up_proj", "down_proj", "act_fn"})
    _accelerate_bypassed = {"act_fn": SILUS}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self._accelerate_may_bypass():
            return super().forward(x)
        return self.down_proj(kernels.swiglu(self.gate_proj(x), self.up_proj(x)))


class _LlamaAttention(Piece):
    _accelerate_takes = (
        "hidden_states",
        "position_embeddings",
        "attention_mask",
        "past_key_values",
        "kwargs",
    )
    _accelerate_children = frozenset({"q_proj", "k_proj", "v_proj", "o_proj"})

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
        attention_mask = needed(attention_mask)
        with attention_order(hidden_states, attention_mask):
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
    """Returns the angles in the form that the operator takes, computed once for all layers.
    Transformers stores each angle twice, once for each of the two channels that are rotated
    together."""
    kept = thread.angles
    if kept is not None and kept[0]() is cos:
        return kept[1:]
    half = cos.shape[-1] // 2
    angles = cos[..., :half].float().contiguous(), sin[..., :half].float().contiguous()
    thread.angles = (weakref.ref(cos), *angles)
    return angles


class _LlamaLayer(Piece):
    _accelerate_takes = (
        "hidden_states",
        "attention_mask",
        "position_ids",
        "past_key_values",
        "use_cache",
        "position_embeddings",
        "kwargs",
    )
    _accelerate_children = frozenset(
        {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
    )

    @classmethod
    def _accelerate_fits(cls, module: torch.nn.Module) -> bool:
        norm = getattr(module, "post_attention_layernorm", None)
        return (
            super()._accelerate_fits(module)
            and RECIPES.get(name_of(norm.__class__)) is _RmsNorm
            and _RmsNorm._accelerate_fits(norm)
        )

    def forward(self, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        norm = self.post_attention_layernorm
        if (
            not same_dtype(hidden_states, norm.weight)
            or not is_bare(norm)
            or not issubclass(type(norm), _RmsNorm)
            or torch_module._has_any_global_hook()
        ):
            return super().forward(hidden_states, *args, **kwargs)
        given = {"attention_mask": None, **dict(zip(self._accelerate_takes[1:], args)), **kwargs}
        branch, _ = self.self_attn(hidden_states=self.input_layernorm(hidden_states), **given)
        x, normed = kernels.add_rms_norm(hidden_states, branch, norm.weight, norm.variance_epsilon)
        branch = self.mlp(normed)
        behind = next_norm(self, _RmsNorm, x)
        if behind is None:
            return x + branch
        x, normed = kernels.add_rms_norm(x, branch, behind.weight, behind.variance_epsilon)
        keep_ahead(behind, x, normed)
        return x


_LLAMAS = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3"}
RECIPES: dict[str, type[Piece]] = {
    modeling_name("llama", "LlamaAttention"): _LlamaAttention,
    **{modeling_name(m, n + "Model"): Backbone for m, n in _LLAMAS.items()},
    **{modeling_name(m, n + "RMSNorm"): _RmsNorm for m, n in _LLAMAS.items()},
    **{modeling_name(m, n + "MLP"): _LlamaMlp for m, n in _LLAMAS.items()},
    **{modeling_name(m, n + "DecoderLayer"): _LlamaLayer for m, n in _LLAMAS.items()},
}
# The same as in `gpt2`.
CHAINS = {
    modeling_name(m, n + "Model"): ("layers", "input_layernorm", "norm") for m, n in _LLAMAS.items()
}
