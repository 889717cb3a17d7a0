# SPDX-License-Identifier: Apache-2.0
"""Runs a function on the workers of `accelerate launch`, and returns its result.

The launcher is a child process in its own session, so a signal to this process's group does not
reach it. It exits when its stdin is closed, which happens even if this process is killed. No signal
handler or thread is needed: the calling thread shows the output while it waits.
"""

from __future__ import annotations

import codecs
import json
import linecache
import os
import pickle
import re
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from accelerate._launch import worker
from accelerate._launch.by_value import pickle_call

# The launcher kills unresponsive workers after 3 s and exits after 5 s.
PATIENCE_SECONDS = 10.0
# These variables would start the run on other machines.
FOREIGN_VARIABLES = ("ACCELERATE_HOSTS", "ACCELERATE_HOSTFILE", "ACCELERATE_MPIRUN_HOSTFILE")
FAILED_RANK = re.compile(r"Rank (\d+) ")
LOST_RESULT = re.compile(r" failed with .*\nTraceback.*\nResultError:")


class LaunchError(RuntimeError):
    """A run on several processes failed. `rank` is the first rank that failed, if known."""

    __module__ = "accelerate.launchers"  # The public module.

    def __init__(self, message: str, rank: int | None = None) -> None:
        super().__init__(message)
        self.rank = rank


def run_on_workers(
    where: str, function: Callable[..., Any], args: tuple[Any, ...], flags: list[str]
) -> Any:
    """Calls `function(*args)` on every worker that `flags` request, and returns rank 0's value.

    Raises `LaunchError` for the first worker that failed, and `TypeError` if the function cannot be
    pickled. An interrupt stops all workers and is reraised.
    """
    program = find_program(where)
    call = pickle_call(where, function, args)
    with tempfile.TemporaryDirectory(prefix="accelerate-") as name:
        folder = Path(name)
        _write_task(folder, call)
        # Use an empty configuration, because the user's configuration is for scripts.
        command = [program, "launch", "--config_file", str(folder / "config.yaml")]
        command += ["--parent_folder", name, *flags, sys.executable, "-u", worker.__file__]
        exit_code, stderr_tail = _run(command, folder)
        if exit_code == 0:
            return _result(folder)
        raise _failure(where, folder, exit_code, stderr_tail)


def find_program(where: str) -> str:
    """Returns the path of the `accelerate` program. Looks in the build folder that contains this
    package, then in this Python installation, and then on the PATH."""
    folders = (Path(__file__).parents[3] / "bin", Path(sys.executable).parent)
    found = shutil.which("accelerate", path=os.pathsep.join(map(str, folders)))
    found = found or shutil.which("accelerate")
    if found is None:
        raise FileNotFoundError(
            f"[{where}] Cannot find the command `accelerate` next to {sys.executable} or on the "
            "PATH. Install the package with pip, or add the command's folder to the PATH"
        )
    return found


def _write_task(folder: Path, call: bytes) -> None:
    # Pass on sources that exist only in memory, e.g. of notebook cells, so that tracebacks show
    # them.
    sources = {
        name: "".join(entry[2])
        for name, entry in linecache.cache.items()
        if len(entry) == 4 and entry[1] is None
    }
    task = {"path": [str(entry) for entry in sys.path], "argv": sys.argv, "sources": sources}
    # The launcher removes only folders with this mark.
    (folder / "accelerate_parent").touch()
    (folder / "config.yaml").write_text("compute_environment: LOCAL_MACHINE\n")
    (folder / "task.json").write_text(json.dumps(task))
    (folder / "function.pkl").write_bytes(call)


def _run(command: list[str], folder: Path) -> tuple[int, str]:
    variables = {k: v for k, v in os.environ.items() if k not in FOREIGN_VARIABLES}
    try:
        current = os.getcwd()
    except FileNotFoundError:
        # The working directory was removed. Python 3.12 cannot start a process there.
        current = str(folder)
    process = subprocess.Popen(
        command,
        bufsize=0,
        cwd=current,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        env=variables | {worker.FOLDER_VARIABLE: str(folder)},
    )
    with process:
        try:
            stderr_tail = _show_output(process)
            return process.wait(), stderr_tail
        except BaseException:
            _stop(process)
            raise


def _show_output(process: subprocess.Popen[bytes], limit: float | None = None) -> str:
    """Shows both streams until they end, for at most `limit` seconds. Returns the end of stderr."""
    end = None if limit is None else time.monotonic() + limit
    stderr_tail = ""
    with selectors.DefaultSelector() as selector:
        for file, name in ((process.stdout, "stdout"), (process.stderr, "stderr")):
            decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
            selector.register(file, selectors.EVENT_READ, (name, decoder))
        while selector.get_map() and (end is None or time.monotonic() < end):
            for key, _ in selector.select(None if end is None else end - time.monotonic()):
                name, decoder = key.data
                content = os.read(key.fd, 1 << 16)
                if not content:
                    selector.unregister(key.fileobj)
                text = decoder.decode(content, final=not content)
                # Look the stream up each time, because a cell may redirect it.
                stream = getattr(sys, name)
                if stream is not None:
                    encoding = getattr(stream, "encoding", None) or "utf-8"
                    stream.write(text.encode(encoding, "replace").decode(encoding))
                    stream.flush()
                if name == "stderr":
                    stderr_tail = (stderr_tail + text)[-4096:]
    return stderr_tail


def _stop(process: subprocess.Popen[bytes]) -> None:
    try:
        process.send_signal(signal.SIGINT)
        _show_output(process, PATIENCE_SECONDS)
        process.wait(PATIENCE_SECONDS)
    except BaseException:  # noqa: BLE001 - interrupted again, or the time limit has passed
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _result(folder: Path) -> Any:
    try:
        with open(folder / "result.pkl", "rb") as file:
            return pickle.load(file)
    except FileNotFoundError:
        return None  # Rank 0 is on another machine.


def _failure(where: str, folder: Path, exit_code: int, stderr_tail: str) -> LaunchError:
    ending_file = folder / "ending"
    if not ending_file.exists():
        said = stderr_tail.strip().rpartition("\n")[2]
        return LaunchError(f"[{where}] `accelerate launch` exited with code {exit_code}: {said}")
    ending = ending_file.read_text(errors="replace").strip().removeprefix("[launch] ")
    rank = FAILED_RANK.match(ending)
    ending = LOST_RESULT.sub("", ending)
    return LaunchError(f"[{where}] {ending}", int(rank[1]) if rank else None)
