# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os

import pytest


@pytest.fixture(scope="session")
def oracle() -> str:
    """A Python with Hugging Face Accelerate 1.15."""
    python = os.environ.get("ACCELERATE_ORACLE_PYTHON")
    if not python:
        pytest.skip("ACCELERATE_ORACLE_PYTHON is not set; ./dev test sets it")
    return python
