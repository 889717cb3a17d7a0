# SPDX-License-Identifier: Apache-2.0
"""Runs one script as two connected processes on the CPU: with this package by `accelerate launch`,
with the original by torchrun."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from original import ROOT, originals_python

TIMEOUT_S = 180
# What a script calls to answer; `results[rank]` of the functions below.
PRELUDE = """
import json, os, sys
def answer(value):
    with open(os.path.join(os.environ["ANSWERS"], os.environ["RANK"]), "w") as file:
        json.dump(value, file)
"""


def _run(command: list[str], environment: dict, folder: Path) -> list:
    result = subprocess.run(
        command,
        env={**os.environ, **environment, "ANSWERS": str(folder), "OMP_NUM_THREADS": "1"},
        text=True,
        capture_output=True,
        timeout=TIMEOUT_S,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return [json.loads((folder / str(rank)).read_text()) for rank in range(2)]


def _script(code: str, folder: Path) -> str:
    folder.mkdir()
    path = folder / "script.py"
    path.write_text(PRELUDE + code)
    return str(path)


def _program() -> str:
    here = ROOT / "build" / "release" / "bin"
    found = shutil.which("accelerate", path=f"{here}{os.pathsep}{os.environ['PATH']}")
    if found is None:
        pytest.skip("no program accelerate: build it, or put it on PATH")
    return found


def run_ours(code: str, folder: Path) -> list:
    """What each rank passed to `answer`."""
    script = _script(code, folder / "ours")
    python = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return _run(
        [_program(), "launch", "--cpu", "--num_processes", "2", script],
        {"PYTHONPATH": str(ROOT / "python"), "PATH": python},
        folder / "ours",
    )


def run_original(code: str, folder: Path) -> list:
    """The same of the original; the test is skipped where it is not installed."""
    is_original = "import accelerate\nassert '+' not in accelerate.__version__\n"
    script = _script(is_original + code, folder / "original")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    address = ["--master_addr", "127.0.0.1", "--master_port", str(port)]
    launch = ["-m", "torch.distributed.run", "--nproc_per_node", "2", *address, script]
    return _run(
        [originals_python(), *launch],
        {"PYTHONPATH": "", "ACCELERATE_USE_CPU": "true"},
        folder / "original",
    )
