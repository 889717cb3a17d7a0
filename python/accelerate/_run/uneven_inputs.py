# SPDX-License-Identifier: Apache-2.0
"""Training with different numbers of batches per process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from accelerate import _C
from accelerate._base import debug as _debug
from accelerate._loaders.dispatch import DataLoaderDispatcher
from accelerate._models.prepared_module import Scope, context_for
from accelerate._models.run_context import RunContext
from accelerate.errors import UsageError


def join(
    context: RunContext, joinables: Iterable[Any], is_even: bool, even_batches: bool | None
) -> AbstractContextManager[None]:
    """Implements `Accelerator.join_uneven_inputs`. `is_even` says whether loaders complete the last
    batches when they are used outside of the block."""
    if not context.state.use_distributed:
        # The original does not check the models in this case either.
        return nullcontext()
    return _joined(context, _contexts(joinables), is_even, even_batches)


@contextmanager
def _joined(
    context: RunContext, models: list[_C.ModelContext], is_even: bool, even_batches: bool | None
) -> Iterator[None]:
    changed: list[tuple[Any, bool]] = []
    if even_batches is not None:
        is_even = even_batches
        changed = _set_even(context.loaders, even_batches)
    # Models that cannot be joined need loaders that complete the last batches. Other loops in the
    # block may use different loaders, so models that can be joined are always joined.
    joins = not is_even or any(model.can_join for model in models)
    try:
        with Scope(*([context.run.join(models, is_even)] if joins else [])):
            yield
    finally:
        for sampler, before in changed:
            sampler.even_batches = before


def _contexts(joinables: Iterable[Any]) -> list[_C.ModelContext]:
    # Some modules can be iterated over, so check for modules first.
    if isinstance(joinables, torch.nn.Module) or not isinstance(joinables, Iterable):
        raise UsageError(
            f"[join_uneven_inputs] Got an object of type {type(joinables).__name__}. Pass a list "
            "of the prepared models that the loop trains"
        )
    models = list(joinables)
    if not models:
        raise UsageError(
            "[join_uneven_inputs] The list of models is empty. Pass every prepared model that the "
            "loop trains"
        )
    return [context_for("join_uneven_inputs", model) for model in models]


def _set_even(loaders: list[Any], even_batches: bool) -> list[tuple[Any, bool]]:
    """Sets `even_batches` of the loaders that have it. Returns these loaders with their previous
    values."""
    changed = []
    for loader in loaders:
        sampler = getattr(loader, "batch_sampler", None)
        if isinstance(loader, DataLoaderDispatcher) or not hasattr(sampler, "even_batches"):
            _debug.warn(
                "[join_uneven_inputs] Overriding even_batches is only supported for map-style "
                "datasets, but some of the dataloaders are iterable",
                stacklevel=5,
            )
            continue
        changed.append((sampler, sampler.even_batches))
        sampler.even_batches = even_batches
    return changed
