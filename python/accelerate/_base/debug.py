# SPDX-License-Identifier: Apache-2.0
"""Warnings of this package, which become errors in debug mode (docs/guide_config.md)."""

from __future__ import annotations

import warnings

import torch  # noqa: F401, the compiled module needs its libraries

from accelerate import _C
from accelerate.errors import UsageError


def warn(message: str, category: type[Warning] = UserWarning, stacklevel: int = 1) -> None:
    """Like `warnings.warn`, but raises `UsageError` if `ACCELERATE_DEBUG_MODE` is set."""
    if _C.debug_is_on():
        raise UsageError(message)
    warnings.warn(message, category, stacklevel=stacklevel + 1)
