# SPDX-License-Identifier: Apache-2.0
"""The cases of `./dev test long` and `./dev test`."""

from __future__ import annotations

import os
from typing import TypeVar

T = TypeVar("T")


def cases(whole: list[T], *, small: list[T]) -> list[T]:
    """The whole grid in a long run, otherwise its most informative part."""
    assert all(case in whole for case in small)
    return whole if "ACCELERATE_TEST_LONG" in os.environ else small
