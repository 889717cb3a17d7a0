# SPDX-License-Identifier: Apache-2.0
"""Starts a script as several processes, for tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

from original import originals_python

TIMEOUT_SECONDS = 180
LAUNCH = ["accelerate", "launch", "--cpu", "--num_processes", "2"]
# `--standalone` chooses a free port.
_TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
TORCHRUN = [sys.executable, *_TORCHRUN]
MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2", sys.executable]
# Of the machine that runs the tests; a run must find its place by its own starter's variables.
PLACE = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
# What a script calls to answer.
_ANSWER = """
import json, os
def answer(value):
    with open("answer" + os.environ["RANK"], "w") as file:
        json.dump(value, file)
"""


def run(
    starter: list[str], folder: Path, script: str, *arguments: str, **variables: str
) -> subprocess.CompletedProcess:
    """Runs `script` in `folder` by `starter` and waits for the end."""
    path = folder / "script.py"
    path.write_text(textwrap.dedent(script))
    environment = {name: value for name, value in os.environ.items() if name not in PLACE}
    return subprocess.run(
        [*starter, str(path), *arguments],
        cwd=folder,
        env={**environment, **variables},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
    )


def check(result: subprocess.CompletedProcess) -> str:
    """The output of a run that went well."""
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def _answers(folder: Path) -> list:
    return [json.loads((folder / f"answer{rank}").read_text()) for rank in range(2)]


def run_ours(code: str, folder: Path) -> list:
    """What each of two processes passed to `answer`."""
    (folder / "ours").mkdir()
    check(run(LAUNCH, folder / "ours", _ANSWER + textwrap.dedent(code)))
    return _answers(folder / "ours")


def run_original(code: str, folder: Path) -> list:
    """The same of the original; the test is skipped where it is not installed."""
    (folder / "original").mkdir()
    is_original = "import accelerate\nassert '+' not in accelerate.__version__\n"
    check(
        run(
            [originals_python(), *_TORCHRUN],
            folder / "original",
            _ANSWER + is_original + textwrap.dedent(code),
            ACCELERATE_USE_CPU="true",
            PYTHONPATH="",
        )
    )
    return _answers(folder / "original")
