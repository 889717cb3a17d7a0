# SPDX-License-Identifier: Apache-2.0
"""Seeds and states of random number generators."""

from __future__ import annotations

import operator
import random
from collections.abc import Callable

import torch

from accelerate import _C
from accelerate import state as _state
from accelerate._placeholders import placeholders_for
from accelerate.errors import UsageError
from accelerate.utils.dataclasses import RNGType
from accelerate.utils.operations import report_failure


def set_seed(seed: int, device_specific: bool = False, deterministic: bool = False) -> None:
    """Seeds the generators of Python, NumPy (if installed) and torch on every device.

    `device_specific` adds this process's index, so that processes differ. `deterministic` makes
    torch reject nondeterministic algorithms (docs/guide_python.md).
    """
    try:
        seed = operator.index(seed)
    except TypeError:
        raise UsageError(
            f"[set_seed] seed is {seed!r} ({type(seed).__name__}). Pass an int"
        ) from None
    if device_specific:
        seed += _state.PartialState().process_index
    if not 0 <= seed < 2**32:
        # Checked before any generator changes. NumPy accepts no other seeds.
        raise UsageError(f"[set_seed] seed is {seed}. Pass an int from 0 to 2**32 - 1")
    random.seed(seed)
    try:
        import numpy
    except ImportError:
        pass
    else:
        numpy.random.seed(seed)
    torch.manual_seed(seed)
    if deterministic:
        torch.use_deterministic_algorithms(True)


def _functions_of(kind: RNGType, generator: torch.Generator | None) -> tuple[Callable, Callable]:
    """Returns functions that get and set the state of this process's generator."""
    if kind == RNGType.TORCH:
        return torch.get_rng_state, torch.set_rng_state
    if kind == RNGType.GENERATOR:
        if generator is None:
            raise UsageError(
                "[synchronize_rng_state] The type 'generator' needs a generator. Pass one"
            )
        return generator.get_state, generator.set_state
    if kind.value == (accelerator := _C.default_device().type):
        device = torch.get_device_module(accelerator)
        return device.get_rng_state, device.set_rng_state
    raise UsageError(
        f"[synchronize_rng_state] Unknown type '{kind}'. Expected 'torch', 'generator' or "
        f"'{accelerator}', the device type of this process"
    )


def synchronize_rng_state(
    rng_type: RNGType | str | None = None, generator: torch.Generator | None = None
) -> None:
    """Copies the state of process 0's generator of this kind to all processes. The kind is "torch",
    the name of an accelerator such as "cuda", or "generator" for the generator that is passed."""
    try:
        get_state, set_state = _functions_of(RNGType(rng_type), generator)
        state = get_state()
    except Exception as error:
        report_failure(error)
        raise
    _state.PartialState().group.broadcast([state], "state", 0)
    set_state(state)


def synchronize_rng_states(
    rng_types: list[str | RNGType], generator: torch.Generator | None = None
) -> None:
    """Calls `synchronize_rng_state` for each kind."""
    for rng_type in rng_types:
        synchronize_rng_state(RNGType(rng_type), generator=generator)


__getattr__ = placeholders_for(__name__)
