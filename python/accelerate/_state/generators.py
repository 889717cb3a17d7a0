# SPDX-License-Identifier: Apache-2.0
"""The state of the generators that samplers and datasets use by default: torch's CPU generator,
Python's `random`, and NumPy's generator."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

KINDS = ("torch", "python", "numpy")


def take(kinds: Iterable[str] = KINDS) -> dict[str, Any]:
    """Returns the current states. NumPy's state is included only if NumPy has been imported."""
    states: dict[str, Any] = {}
    for kind in kinds:
        if kind == "torch":
            states[kind] = torch.get_rng_state()
        elif kind == "python":
            states[kind] = random.getstate()
        elif "numpy" in sys.modules:
            states[kind] = sys.modules["numpy"].random.get_state()
    return states


def put(states: dict[str, Any]) -> None:
    """Restores states that `take` returned. Other generators are unchanged."""
    if "torch" in states:
        torch.set_rng_state(states["torch"])
    if "python" in states:
        random.setstate(states["python"])
    if "numpy" in states:
        import numpy

        numpy.random.set_state(states["numpy"])


def differ(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Returns the kinds whose state has changed."""
    return [kind for kind in before if not _same(before[kind], after[kind])]


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, tuple):
        return all(map(_same, one, other))
    equal = one == other
    return equal if isinstance(equal, bool) else bool(equal.all())


@contextmanager
def borrowed(states: dict[str, Any]) -> Iterator[None]:
    """Inside the block, generators have `states`. Their own states are restored afterwards."""
    if not states:
        yield
        return
    kept = take()
    put(states)
    try:
        yield
    finally:
        put(kept)
