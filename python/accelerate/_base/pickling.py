# SPDX-License-Identifier: Apache-2.0
"""How our objects are pickled as the user's objects that they wrap."""

from __future__ import annotations

import typing
from typing import Any


def as_wrapped(wrapped: Any) -> tuple[Any, tuple[Any, Any]]:
    """What `__reduce__` returns so that a pickle contains only `wrapped`.

    `typing.cast` returns its second argument. It is in the standard library, so pickles load where
    this package is not installed."""
    return typing.cast, (object, wrapped)
