# SPDX-License-Identifier: Apache-2.0
"""Starts a script as several processes, for tests."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import textwrap

TIMEOUT_SECONDS = 180
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port", "0"]
LAUNCH = ["accelerate", "launch", "--cpu", "--num_processes", "2"]
MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2", sys.executable]
# Of the machine that runs the tests; a run must find its place by its own starter's variables.
_PLACE = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def run(
    starter: list[str], folder: pathlib.Path, script: str, *arguments: str, **variables: str
) -> subprocess.CompletedProcess:
    """Runs `script` in `folder` by `starter` and waits for the end."""
    path = folder / "script.py"
    path.write_text(textwrap.dedent(script))
    environment = {name: value for name, value in os.environ.items() if name not in _PLACE}
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
