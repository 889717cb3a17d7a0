# SPDX-License-Identifier: Apache-2.0
"""Helpers for tests of several processes."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

LIMIT_SECONDS = 60


def wait_until(condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + LIMIT_SECONDS
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return condition()


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
