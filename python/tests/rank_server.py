# SPDX-License-Identifier: Apache-2.0
"""Forks ranks of scripts from an interpreter that has already imported torch and other modules,
which takes longer than most test scripts:

    python rank_server.py MODULE...

Imports must not leave threads behind: a rank would lack them, and locks that they held during the
fork would stay locked.

Reads one line of JSON per run (`script`, `folder`, `arguments`, `variables`, `num_ranks`,
`seconds`; a single rank is a process without a launcher), and answers with the exit codes and the
output of its ranks. Ranks that take longer are killed; their output contains the stacks of their
threads."""

from __future__ import annotations

import atexit
import faulthandler
import importlib
import json
import os
import random
import runpy
import signal
import socket
import sys
import traceback
from contextlib import suppress
from pathlib import Path

# Threads that do not make a fork unsafe, by name. jemalloc, which pyarrow uses on x86_64, holds all
# of its locks during a fork and does not need its thread in the child (pthread_atfork).
SAFE_THREADS = {"jemalloc_bg_thd"}


def free_port() -> int:
    """Below the ephemeral range, so that no connection takes it before the first rank does."""
    while True:
        port = random.SystemRandom().randrange(15000, 32000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue


def be_rank(rank: int, port: int, order: dict, output: int) -> None:
    """Runs the script as a separate process would, and exits."""
    os.dup2(output, 1)
    os.dup2(output, 2)
    faulthandler.enable()
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    os.chdir(order["folder"])
    os.environ.update(order["variables"])
    num_ranks = order["num_ranks"]
    if num_ranks > 1:
        os.environ.update(
            RANK=str(rank),
            LOCAL_RANK=str(rank),
            WORLD_SIZE=str(num_ranks),
            LOCAL_WORLD_SIZE=str(num_ranks),
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(port),
        )
    # New interpreters have different seeds.
    random.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    sys.argv = [order["script"], *order["arguments"]]
    sys.path.insert(0, os.path.dirname(order["script"]))
    code = 0
    try:
        runpy.run_path(order["script"], run_name="__main__")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def run(order: dict) -> dict:
    port = free_port()
    ranks: list[int] = []
    outputs: list[int] = []
    for rank in range(order["num_ranks"]):
        outputs.append(os.memfd_create("output"))
        child = os.fork()
        if child == 0:
            be_rank(rank, port, order, outputs[-1])
        ranks.append(child)
    codes: dict[int, int] = {}

    def end_those_left(_signal: int, _frame: object) -> None:
        for rank in set(ranks) - set(codes):
            os.kill(rank, signal.SIGABRT)

    signal.signal(signal.SIGALRM, end_those_left)
    signal.alarm(order["seconds"])
    while len(codes) < len(ranks):
        child, status = os.wait()
        codes[child] = os.waitstatus_to_exitcode(status)
        if codes[child] != 0:  # the others would wait for it
            for other in set(ranks) - set(codes):
                os.kill(other, signal.SIGTERM)
    signal.alarm(0)
    text = "".join(map(read_and_close, outputs))
    return {"codes": [codes[child] for child in ranks], "output": text}


def read_and_close(output: int) -> str:
    size = os.lseek(output, 0, os.SEEK_END)
    text = os.pread(output, size, 0).decode(errors="replace")
    os.close(output)
    return text


def unsafe_threads() -> list[str]:
    """The names of threads that make a fork unsafe."""
    names = []
    for thread in Path("/proc/self/task").iterdir():
        if thread.name != str(os.getpid()):
            with suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
                names.append((thread / "comm").read_text().strip())
    return sorted(set(names) - SAFE_THREADS)


def main() -> None:
    for module in sys.argv[1:]:
        importlib.import_module(module)
    if found := unsafe_threads():
        sys.exit(f"[rank_server] cannot fork beside the threads {found} of {sys.argv[1:]}")
    for line in sys.stdin:
        print(json.dumps(run(json.loads(line))), flush=True)


main()
