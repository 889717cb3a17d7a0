# SPDX-License-Identifier: Apache-2.0
"""Seeds and states of random number generators."""

from __future__ import annotations

import random

import torch

from accelerate._placeholders import placeholders_for


def set_seed(seed: int, device_specific: bool = False, deterministic: bool = False) -> None:
    """Seeds the generators of Python, NumPy (where installed) and torch on every device.

    `device_specific` adds this process's index, so that processes differ. `deterministic` makes
    torch refuse algorithms that do not repeat (docs/guide_python.md).
    """
    if device_specific:
        from accelerate.state import PartialState

        seed += PartialState().process_index
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


__getattr__ = placeholders_for(__name__)
