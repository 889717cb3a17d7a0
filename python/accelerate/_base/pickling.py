# SPDX-License-Identifier: Apache-2.0
"""Pickles our objects as the user objects that they wrap."""

from __future__ import annotations

import typing
from typing import Any


def as_wrapped(wrapped: Any) -> tuple[Any, tuple[Any, Any]]:
    """Returns the result of `__reduce__` for a pickle that contains only `wrapped`.

    `typing.cast` returns its second argument. It is in the standard library, so pickles can be
    loaded where this package is not installed."""
    return typing.cast, (object, wrapped)
