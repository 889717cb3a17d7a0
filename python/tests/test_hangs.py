# SPDX-License-Identifier: Apache-2.0
"""Reports of hanging ranks, and the output of `accelerate doctor --job`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from hosts import ADDRESSES, two_hosts
from original import PROGRAMS
from processes import wait_until
from ranks import LAUNCH, PLACE, line_of, run

# Workers that do not handle SIGTERM are killed after half of it.
SHORT_GRACE = ["--grace_seconds", "1"]
# A job ends when it has printed what it should, without waiting for timeouts.
PROGRAM = "hangs/possible_hang.py"

WAITING = [
    r"\[hang\] Possible hang: rank 0 has waited .* s in all_reduce\(float32\[4\]\) for rank 1:",
    r"rank 0: waiting in all_reduce\(float32\[4\]\)",
    r"possible_hang.py:\d+ in <module>: dist.all_reduce",
]
CASES = {
    # name: (what rank 0 does, what rank 1 does, the report)
    "endless_loop": (
        "all_reduce",
        "spin",
        [
            *WAITING,
            r"rank 1: in user code; .* no progress for",
            r"possible_hang.py:\d+ in spin_for_long: (while|pass)",
        ],
    ),
    "skipped": (
        "gather_and_barrier",
        "barrier",
        [
            r"\[hang\] Possible hang: rank 0 has waited .* s in gather\(\) for rank 1:",
            r"rank 1: elsewhere, waiting in barrier",
            r"possible_hang.py:\d+ in <module>: .*barrier",
        ],
    ),
    "handle": (
        "async_all_reduce",
        "spin",
        [
            r"\[hang\] Possible hang: rank 0 has waited .* s in wait\(\) of 'work' for rank 1:",
            r"rank 0: waiting in wait\(\) of 'work'",
            r"possible_hang.py:\d+ in <module>: .*work.wait\(\)",
        ],
    ),
    "another": (
        "all_reduce",
        "wait_for_everyone",
        [*WAITING, r"rank 1: elsewhere, waiting in wait_for_everyone"],
    ),
    "stopped": (
        "all_reduce",
        "stop",
        [
            *WAITING,
            r"rank 1: process \d+ on .* does not answer: it is stopped; continue it with kill -CONT \d+",
        ],
    ),
    "stuck_loader": (
        "all_reduce",
        "stuck_loader",
        [*WAITING, r"rank 1: waiting for data", r"in __getitem__: time.sleep\(300\)"],
    ),
}


class Job:
    """Processes that write to one file."""

    def __init__(
        self, folder: Path, arguments: tuple[str, ...], commands: list[list[str]], seconds: str
    ) -> None:
        self._folder = folder
        environment = {name: value for name, value in os.environ.items() if name not in PLACE}
        environment |= {"ACCELERATE_HANG_SECONDS": seconds, "ACCELERATE_JOB_TOKEN": "of this test"}
        with (folder / "log").open("w") as log:
            self.processes = [
                subprocess.Popen(
                    [*command, str(PROGRAMS / PROGRAM), *arguments],
                    cwd=folder,
                    env=environment,
                    stderr=log,
                )
                for command in commands
            ]

    def log(self) -> str:
        return (self._folder / "log").read_text()

    def expect(self, expressions: list[str]) -> None:
        """Waits until everything has been printed."""

        def is_said() -> bool:
            return all(re.search(expression, self.log()) for expression in expressions)

        assert wait_until(is_said), self.log()


@contextmanager
def job(
    folder: Path, arguments: tuple[str, ...], *commands: list[str], seconds: str = "0.5"
) -> Iterator[Job]:
    """Runs `PROGRAM`, and ends the job with the block."""
    started = Job(folder, arguments, list(commands) or [[*LAUNCH, *SHORT_GRACE]], seconds)
    try:
        yield started
    finally:
        for process in started.processes:
            process.terminate()
        for process in started.processes:
            process.wait()


@pytest.mark.parametrize("name", CASES)
def test_a_hang_is_explained(name: str, tmp_path: Path) -> None:
    first, second, said = CASES[name]
    with job(tmp_path, (first, second)) as started:
        started.expect(said)


@pytest.mark.parametrize("name", ["endless_loop", "stopped"])
def test_a_hang_is_explained_on_two_hosts(name: str, tmp_path: Path) -> None:
    first, second, said = CASES[name]
    with ExitStack() as stack:
        on_hosts = stack.enter_context(two_hosts())
        machines = ["--num_machines", "2", "--main_process_ip", ADDRESSES[0], "--machine_rank"]
        commands = [
            [*on, *LAUNCH, *SHORT_GRACE, *machines, str(host)] for host, on in enumerate(on_hosts)
        ]
        started = stack.enter_context(job(tmp_path, (first, second), *commands))
        started.expect(said)


def test_a_slow_rank_is_no_error(tmp_path: Path) -> None:
    with job(tmp_path, ("all_reduce", "be_slow", "--wait_for_end")) as started:
        started.expect([*WAITING, "rank 1: .*; slow, not missing: it last made progress"])
        (tmp_path / "go").touch()
        started.expect([r"\[hang\] rank 0 stopped waiting after"])
        (tmp_path / "end").touch()
        assert started.processes[0].wait() == 0, started.log()


def test_a_wrong_shape_that_is_compared_makes_no_rank_wait(tmp_path: Path) -> None:
    actions = ("gather_4_columns", "gather_5_columns")
    result = run(LAUNCH, tmp_path, PROGRAM, *actions, ACCELERATE_HANG_SECONDS="60")
    assert result.returncode != 0
    told = (
        "gather() was called with shape [2, 5] on rank 1 (possible_hang.py:{line}) but [2, 4] on "
        "rank 0 (possible_hang.py:{other}). Only the size of dimension 0 may differ between ranks"
    )
    first = line_of(PROGRAM, "accelerator.gather(torch.ones(2, 4))")
    second = line_of(PROGRAM, "accelerator.gather(torch.ones(2, 5))")
    assert f"MismatchError: {told.format(line=second, other=first)}" in result.stderr, result.stderr
    assert "[hang]" not in result.stderr


@pytest.mark.parametrize("name", ["gather", "backward"])
def test_the_end_of_another_rank_is_one_sentence(tmp_path: Path, name: str) -> None:
    run(LAUNCH, tmp_path, "hangs/end_of_another_rank.py", name)
    said = (tmp_path / "said").read_text()
    assert re.fullmatch(
        rf"\[{name}\] Another rank exited during collective \d+ on rank 0 "
        r"\(end_of_another_rank\.py:\d+\)\. Its error is above. If there is no error, that rank "
        r"left a loop early \([^\n]+\)\n",
        said,
    ), said
    assert said.count("Another rank") == 1, said


def test_collectives_of_some_ranks_are_named_with_both_lines(tmp_path: Path) -> None:
    calls = ("accelerator.gather(torch.ones(4))", "accelerator.wait_for_everyone()")
    first, second = (line_of(PROGRAM, call) for call in calls)
    actions = ("gather", "wait_for_everyone")
    result = run(LAUNCH, tmp_path, PROGRAM, *actions, ACCELERATE_HANG_SECONDS="60")
    assert result.returncode != 0
    told = (
        f"MismatchError: wait_for_everyone() was called on rank 1 (possible_hang.py:{second}) but "
        f"gather() on rank 0 (possible_hang.py:{first}). Call them on every rank in the same order. "
        "Is one of them inside `if accelerator.is_main_process:`, or did a rank leave a loop early?"
    )
    assert told in result.stderr, result.stderr


def test_a_hang_is_reported_once_and_ends_with_an_exception(tmp_path: Path) -> None:
    arguments = ("all_reduce", "spin", "--timeout", "4")
    result = run(LAUNCH, tmp_path, PROGRAM, *arguments, ACCELERATE_HANG_SECONDS="0.5")
    assert result.returncode != 0
    # A rank that arrived late from the previous collective is called slow first.
    assert result.stderr.count("no progress for") == 1, result.stderr
    assert result.stderr.count("Timed out") == 1, result.stderr


def test_the_doctor_asks_a_running_job(tmp_path: Path) -> None:
    with job(tmp_path, ("all_reduce", "spin"), seconds="0") as started:
        answers = []

        def is_told() -> bool:
            time.sleep(0.2)
            command = ["accelerate", "doctor", "--job", str(started.processes[0].pid)]
            answers.append(subprocess.run(command, capture_output=True, text=True).stdout)
            return "spin_for_long" in answers[-1] and "dist.all_reduce" in answers[-1]

        assert wait_until(is_told), answers[-1] + started.log()
    assert re.search(r"rank 1 of 2 \(process \d+\): in user code", answers[-1])
    where = r"rank 0 of 2 .*\n(.*\n)*.*possible_hang.py:\d+ in <module>: dist.all"
    assert re.search(where, answers[-1])


def said_after_two_seconds(folder: Path, script: str) -> str:
    """What two ranks print that finally continue."""
    result = run(LAUNCH, folder, script, ACCELERATE_HANG_SECONDS="2")
    said = result.stdout + result.stderr
    assert result.returncode == 0, said
    return said


def test_a_wait_that_follows_another_is_reported(tmp_path: Path) -> None:
    said = said_after_two_seconds(tmp_path, "hangs/keep_the_interpreter.py")
    assert "waiting in all_reduce(float32[3]), collective 3" in said, said
    assert "rank 1: in user code; collective 2 was its last" in said, said
    assert "waiting in ," not in said and "rank 1 stopped waiting" not in said, said


def test_a_rank_that_called_collectives_of_its_own_has_moved(tmp_path: Path) -> None:
    said = said_after_two_seconds(tmp_path, "hangs/own_collectives.py")
    seconds = re.search(r"rank 1: .*; no progress for ([0-9.]+) s", said)
    # The previous loop took five seconds more.
    assert seconds and float(seconds[1]) < 4.5, said


def test_step_times_say_where_the_time_goes(tmp_path: Path) -> None:
    script = "hangs/step_times.py"
    quiet = run([sys.executable], tmp_path, script)
    assert quiet.returncode == 0, quiet.stderr
    assert "of the step waits for data: raise num_workers" in quiet.stdout
    # Printed only on request.
    assert "[step_times]" not in quiet.stderr
    told = run([sys.executable], tmp_path, script, ACCELERATE_STEP_SUMMARY="1")
    assert "[step_times] 4 steps of" in told.stderr


def test_a_stack_is_taken_whole_from_a_thread_that_runs(tmp_path: Path) -> None:
    result = run([sys.executable, "-X", "faulthandler"], tmp_path, "hangs/moving_frames.py")
    assert (result.returncode, result.stdout) == (0, "True {'<module>'}\n"), result.stderr
