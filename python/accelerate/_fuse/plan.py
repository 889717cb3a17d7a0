# SPDX-License-Identifier: Apache-2.0
"""Finds and installs the pieces of `fuse=True`."""

from __future__ import annotations

import sys
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

from accelerate._fuse import bert, gpt2, llama
from accelerate._fuse.language_head import CausalLoss, Head
from accelerate._fuse.pieces import TORCH, HeldDropout, Piece, behind, name_of
from accelerate._models.prepared_module import (
    has_compiled_inner,
    is_compiled_module,
    set_type,
    subclass,
)
from accelerate.errors import UsageError
from accelerate.logging import get_logger

_RECIPES: dict[str, type[Piece]] = TORCH | gpt2.RECIPES | bert.RECIPES | llama.RECIPES
_CHAINS = gpt2.CHAINS | llama.CHAINS

_types: weakref.WeakValueDictionary[tuple, type] = weakref.WeakValueDictionary()
_log = get_logger(__package__)


def _recipe_of(submodule: Any) -> type[Piece] | None:
    recipe = _RECIPES.get(name_of(submodule.__class__))
    return recipe if recipe is not None and recipe._accelerate_fits(submodule) else None


class Plan:
    """The pieces found in a module."""

    def __init__(self, module: torch.nn.Module) -> None:
        if is_compiled_module(module) or has_compiled_inner(module):
            raise UsageError(
                "[prepare] fuse=True does not work with a compiled model, because the compiler "
                "also fuses operations. Leave out torch.compile or fuse"
            )
        self.module = module
        self._name = module.__class__.__name__
        self._recipes: list[tuple[torch.nn.Module, type[Piece]]] = []
        self._losses: list[tuple[Any, Callable]] = []
        self._blocks: list[tuple[torch.nn.Module, torch.nn.Module, torch.nn.Module]] = []
        for model in _models_in(module):
            self._plan(model)

    @property
    def is_empty(self) -> bool:
        return not self._recipes and not self._losses

    def check(self) -> None:
        """Raises an error if nothing was found."""
        if self.is_empty:
            raise UsageError(
                f"[prepare] fuse=True found nothing to fuse in {self._name}. Fusion supports "
                "GPT-2, BERT, DistilBERT, RoBERTa, Llama and similar transformers models. Leave "
                "fuse out"
            )

    def _plan(self, model: Any) -> None:
        own = {}
        for submodule in model.modules():
            if submodule is model or not _is_of_its_class(submodule):
                continue
            recipe = _recipe_of(submodule)
            if recipe is not None:
                own[submodule] = recipe
            if recipe is gpt2.Gpt2Block:
                own[submodule.attn.resid_dropout] = HeldDropout
        loss = _causal_loss_of(model)
        if loss is not None:
            self._losses.append((model, loss))
            head = model.get_output_embeddings()
            if head.__class__ is torch.nn.Linear and _is_of_its_class(head):
                own[head] = Head
        for submodule in model.modules():
            chain = _CHAINS.get(name_of(submodule.__class__))
            if chain is not None:
                self._blocks += _links(submodule, *chain)
        self._recipes += own.items()

    def apply(self) -> None:
        counts: Counter[str] = Counter()
        for submodule, recipe in self._recipes:
            counts[submodule.__class__.__name__] += 1
            if not issubclass(type(submodule), recipe):
                set_type(submodule, _type_of(recipe, submodule.__class__))
        for block, norm, following in self._blocks:
            behind[block] = (weakref.ref(norm), weakref.ref(following))
        for model, loss in self._losses:
            counts["loss"] += 1
            model.loss_function = CausalLoss(loss)
        if counts:
            kinds = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
            _log.info(f"[prepare] Fused in {self._name}: {kinds}")


def _is_of_its_class(module: torch.nn.Module) -> bool:
    """False for a module with its own forward attribute, or a module that was prepared
    separately."""
    kind = type(module)
    is_own = kind is module.__class__ or issubclass(kind, Piece)
    return "forward" not in module.__dict__ and is_own


def _models_in(module: torch.nn.Module) -> list[Any]:
    """Returns the outermost transformers models in the module."""
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
    if isinstance(loss, CausalLoss):
        return known
    return known if loss is known else None


def _links(
    model: Any, blocks: str, first: str, last: str
) -> list[tuple[torch.nn.Module, torch.nn.Module, torch.nn.Module]]:
    """Returns, for each block, the block, the norm after it, and the module that is called with its
    output."""
    listed = list(getattr(model, blocks))
    norms = [getattr(block, first, None) for block in listed[1:]] + [getattr(model, last)]
    following = [*listed[1:], getattr(model, last)]
    return [link for link in zip(listed, norms, following) if link[1] is not None]


def _type_of(recipe: type[Piece], kind: type) -> type:
    key = (recipe, kind)
    made = _types.get(key)
    if made is None:
        _types[key] = made = subclass(recipe, kind, {})
    return made
