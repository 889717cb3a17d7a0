# SPDX-License-Identifier: Apache-2.0
"""Running code in other Python processes: with this package, or with the original one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# The programs that tests run.
PROGRAMS = Path(__file__).resolve().parent / "programs"


def originals_python() -> str:
    """The Python with the original; skips the test if there is none."""
    python = os.environ.get("ACCELERATE_ORACLE_PYTHON", ROOT / ".venv-oracle" / "bin" / "python")
    if not Path(python).exists():
        pytest.skip(f"[originals_python] no {python}: set ACCELERATE_ORACLE_PYTHON")
    return str(python)


def run_python(*words: str | Path, python: str = sys.executable, path: str = "") -> str:
    """The output of Python with these words, with `path` as PYTHONPATH; fails the test if Python
    fails."""
    environment = {**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1"}
    result = subprocess.run(
        [python, "-P", *words], env=environment, text=True, capture_output=True, timeout=300
    )
    assert result.returncode == 0, result.stderr
    return result.stdout
