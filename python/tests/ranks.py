# SPDX-License-Identifier: Apache-2.0
"""Starts a script as several processes."""

from __future__ import annotations

import atexit
import functools
import json
import os
import signal
import subprocess
import sys
import textwrap
from contextlib import suppress
from pathlib import Path

from original import originals_python

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
# Called by a script to return a result.
_ANSWER = """
import json, os
def answer(value):
    with open("answer" + os.environ.get("RANK", "0"), "w") as file:
        json.dump(value, file)
"""


def run(
    starter: list[str], folder: Path, script: str, *arguments: str, **variables: str
) -> subprocess.CompletedProcess:
    """Runs `script` in `folder` with `starter` and waits for the end."""
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
    """The output of a successful run."""
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def _answers(folder: Path) -> list:
    return [json.loads((folder / f"answer{rank}").read_text()) for rank in range(2)]


class RankServer:
    """An interpreter with these modules imported that forks ranks (`rank_server.py`) while the
    tests of a file run."""

    def __init__(self, python: str, modules: list[str], **variables: str) -> None:
        environment = {name: value for name, value in os.environ.items() if name not in PLACE}
        self._process = subprocess.Popen(
            [python, str(SERVER), SLOW_MODULE, *modules],
            env={**environment, **variables},
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

    def run(self, script: str, folder: Path, *arguments: str, num_ranks: int = 2) -> str:
        """The output of the ranks, which must succeed."""
        path = folder / "script.py"
        path.write_text(textwrap.dedent(script))
        codes, output = self.start(path, folder, *arguments, num_ranks=num_ranks)
        assert not any(codes), f"{output}\nexit codes {codes}"
        return output

    def answers(self, script: str, folder: Path) -> list:
        """What each of two ranks passed to `answer`."""
        folder.mkdir()
        self.run(_ANSWER + textwrap.dedent(script), folder)
        return _answers(folder)

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
    return RankServer(python, ["accelerate"], ACCELERATE_USE_CPU="true", PYTHONPATH="")


def run_ours(code: str, folder: Path) -> list:
    """What each of two processes passed to `answer`."""
    return _ours().answers(code, folder / "ours")


def fork_ours(code: str, folder: Path, *arguments: str, num_ranks: int = 2) -> str:
    """The output of the processes that run a script in `folder`; a single one has no launcher."""
    return _ours().run(code, folder, *arguments, num_ranks=num_ranks)


def launch_ours(code: str, folder: Path) -> list:
    """As above with the launcher, which restarts them on request."""
    (folder / "ours").mkdir()
    check(run(LAUNCH, folder / "ours", _ANSWER + textwrap.dedent(code)))
    return _answers(folder / "ours")


_IS_ORIGINAL = "import accelerate\nassert '+' not in accelerate.__version__\n"


def run_original(code: str, folder: Path) -> list:
    """`run_ours` with the original; skips the test if it is not installed."""
    return _originals().answers(_IS_ORIGINAL + textwrap.dedent(code), folder / "original")


def fork_original(code: str, folder: Path, *arguments: str, num_ranks: int = 2) -> str:
    """`fork_ours` with the original."""
    code = _IS_ORIGINAL + textwrap.dedent(code)
    return _originals().run(code, folder, *arguments, num_ranks=num_ranks)
