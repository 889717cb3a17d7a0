# SPDX-License-Identifier: Apache-2.0
"""Loops in which processes have different numbers of batches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from accelerate import _debug
from accelerate._dispatch import DataLoaderDispatcher
from accelerate.prepared_module import Scope, context_of

if TYPE_CHECKING:
    from accelerate.accelerator import Accelerator


@contextmanager
def join(accelerator: Accelerator, joinables: list[Any], even_batches: bool | None) -> Iterator[None]:
    """What `Accelerator.join_uneven_inputs` gives."""
    if not accelerator.use_distributed:
        yield
        return
    is_even = accelerator.even_batches if even_batches is None else even_batches
    changed = [] if even_batches is None else _set_even(accelerator, even_batches)
    models = [context for model in joinables if (context := context_of(model)) is not None]
    if is_even:
        # Loaders that fill up are what a model needs that cannot be joined.
        models = [context for context in models if context.can_join]
    try:
        # Loops need no loader of ours: those of even loaders are joined too.
        with Scope(*([accelerator._run.join(models)] if models else [])):
            yield
    finally:
        for sampler, before in changed:
            sampler.even_batches = before


def _set_even(accelerator: Accelerator, even_batches: bool) -> list[tuple[Any, bool]]:
    """Sets it in the loaders that have it; gives these and what it was."""
    changed = []
    for loader in accelerator._dataloaders:
        sampler = getattr(loader, "batch_sampler", None)
        if isinstance(loader, DataLoaderDispatcher) or not hasattr(sampler, "even_batches"):
            _debug.warn(
                "[join_uneven_inputs] Overriding even_batches is only supported for map-style "
                "datasets, yet some dataloaders given were iterable",
                stacklevel=5,
            )
            continue
        changed.append((sampler, sampler.even_batches))
        sampler.even_batches = even_batches
    return changed
