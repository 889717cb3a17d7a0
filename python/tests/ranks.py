# SPDX-License-Identifier: Apache-2.0
"""Starts a program as several processes."""

from __future__ import annotations

import atexit
import functools
import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from original import PROGRAMS, originals_python

TIMEOUT_SECONDS = 180
LAUNCH = ["accelerate", "launch", "--cpu", "--num_processes", "2"]
# `--standalone` chooses a free port.
_TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
TORCHRUN = [sys.executable, *_TORCHRUN]
# Debian's Open MPI, whatever other mpirun is on the PATH.
_MPIRUN = "/usr/bin/mpirun.openmpi"
MPIRUN = [_MPIRUN, "--allow-run-as-root", "--oversubscribe", "-n", "2", sys.executable]
# Variables of the machine that runs the tests; a run must use those of its own starter.
PLACE = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
SERVER = Path(__file__).with_name("rank_server.py")
# The first step of an optimizer imports it, which takes most of the time of a script.
SLOW_MODULE = "torch._dynamo"
# Programs can import these modules.
SHARED = PROGRAMS / "shared"


def variables_of_a_run(**variables: str) -> dict[str, str]:
    """The environment of a run, with these variables."""
    environment = {name: value for name, value in os.environ.items() if name not in PLACE}
    environment |= {"HF_HUB_OFFLINE": "1"} | variables
    path = [str(SHARED), environment.get("PYTHONPATH", "")]
    return environment | {"PYTHONPATH": os.pathsep.join(filter(None, path))}


def run(
    starter: list[str], folder: Path, program: str, *arguments: str, **variables: str
) -> subprocess.CompletedProcess:
    """Runs a program of `PROGRAMS` in `folder` with `starter` and waits for the end."""
    return subprocess.run(
        [*starter, str(PROGRAMS / program), *arguments],
        cwd=folder,
        env=variables_of_a_run(**variables),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
    )


def line_of(program: str, text: str) -> int:
    """The number of the last line of a program that has this text."""
    lines = (PROGRAMS / program).read_text().splitlines()
    return max(number for number, line in enumerate(lines, 1) if line.strip() == text)


def check(result: subprocess.CompletedProcess) -> str:
    """The output of a successful run."""
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def _answers(folder: Path, num_ranks: int) -> list:
    return [json.loads((folder / f"answer{rank}").read_text()) for rank in range(num_ranks)]


class RankServer:
    """An interpreter with these modules imported that forks ranks (`rank_server.py`) while the
    tests of a file run."""

    def __init__(self, python: str, modules: list[str], **variables: str) -> None:
        self._process = subprocess.Popen(
            [python, str(SERVER), SLOW_MODULE, *modules],
            env=variables_of_a_run(**variables),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            text=True,
        )
        atexit.register(self._end)

    def start(
        self,
        script: Path,
        folder: Path,
        *arguments: str,
        num_ranks: int,
        seconds: int = TIMEOUT_SECONDS,
        **variables: str,
    ) -> tuple[list[int], str]:
        """The exit codes of the ranks, and their output."""
        order = {"script": str(script), "folder": str(folder), "arguments": arguments}
        order |= {"variables": variables, "num_ranks": num_ranks, "seconds": seconds}
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, f"the rank server ended with {self._process.wait()}; stderr says why"
        done = json.loads(answer)
        return done["codes"], done["output"]

    def run(self, program: str, folder: Path, *arguments: str, num_ranks: int = 2) -> str:
        """The output of the ranks, which must succeed."""
        path = PROGRAMS / program
        codes, output = self.start(path, folder, *arguments, num_ranks=num_ranks)
        assert not any(codes), f"{output}\nexit codes {codes}"
        return output

    def answers(self, program: str, folder: Path, *arguments: str, num_ranks: int = 2) -> list:
        """What each rank passed to `answer`."""
        folder.mkdir()
        self.run(program, folder, *arguments, num_ranks=num_ranks)
        return _answers(folder, num_ranks)

    def _end(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


@functools.cache
def _ours() -> RankServer:
    return RankServer(sys.executable, ["accelerate"], ACCELERATE_USE_CPU="true")


@functools.cache
def _originals() -> RankServer:
    python = originals_python()
    modules = ["accelerate", "original_package"]
    return RankServer(python, modules, ACCELERATE_USE_CPU="true", PYTHONPATH="")


def run_ours(program: str, folder: Path, *arguments: str, num_ranks: int = 2) -> list:
    """What each process that runs this program of `PROGRAMS` passed to `answer`."""
    return _ours().answers(program, folder / "ours", *arguments, num_ranks=num_ranks)


def fork_ours(program: str, folder: Path, *arguments: str, num_ranks: int = 2) -> str:
    """The output of the processes that run a program in `folder`; a single one has no launcher."""
    return _ours().run(program, folder, *arguments, num_ranks=num_ranks)


def launch_ours(program: str, folder: Path, *arguments: str) -> list:
    """As above with the launcher, which restarts them on request."""
    (folder / "ours").mkdir()
    check(run(LAUNCH, folder / "ours", program, *arguments))
    return _answers(folder / "ours", 2)


def run_original(program: str, folder: Path, *arguments: str) -> list:
    """`run_ours` with the original; skips the test if it is not installed."""
    return _originals().answers(program, folder / "original", *arguments)


def fork_original(program: str, folder: Path, *arguments: str, num_ranks: int = 2) -> str:
    """`fork_ours` with the original."""
    return _originals().run(program, folder, *arguments, num_ranks=num_ranks)
