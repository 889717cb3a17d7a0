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
from processes import wait_until
from ranks import LAUNCH, PLACE, run

# Workers that do not handle SIGTERM are killed after half of it.
SHORT_GRACE = ["--grace_seconds", "1"]
# A job ends when it has printed what it should, without waiting for timeouts.
SCRIPT = """
import os, signal, time
from pathlib import Path
import torch
import torch.distributed as dist
from accelerate import Accelerator

accelerator = Accelerator(cpu=True)

def spin_for_long():
    end = time.monotonic() + 300
    while time.monotonic() < end:
        pass

class Stuck(torch.utils.data.Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        time.sleep(300)

def read(dataset):
    return next(iter(accelerator.prepare(torch.utils.data.DataLoader(dataset))))

def be_slow():
    while not Path("go").exists():
        read(list(range(4)))
    dist.all_reduce(torch.ones(4))

for _ in range(3):  # The third one is through shared memory.
    accelerator.wait_for_everyone()
"""

USERS_COLLECTIVE = "dist.all_reduce(torch.ones(4))"
WAITING = [
    r"\[hang\] Possible hang: rank 0 has waited .* s in all_reduce\(float32\[4\]\) for rank 1:",
    r"rank 0: waiting in all_reduce\(float32\[4\]\)",
    r"script.py:\d+ in <module>: dist.all_reduce",
]
CASES = {
    # name: (what rank 0 does, what rank 1 does, the report)
    "endless_loop": (
        USERS_COLLECTIVE,
        "spin_for_long()",
        [
            *WAITING,
            r"rank 1: in user code; .* no progress for",
            r"script.py:\d+ in spin_for_long: (while|pass)",
        ],
    ),
    "skipped": (
        "accelerator.gather(torch.ones(4)); dist.barrier()",
        "dist.barrier()",
        [
            r"\[hang\] Possible hang: rank 0 has waited .* s in gather\(\) for rank 1:",
            r"rank 1: elsewhere, waiting in barrier",
            r"script.py:\d+ in <module>: .*barrier",
        ],
    ),
    "handle": (
        "work = dist.all_reduce(torch.ones(4), async_op=True); work.wait()",
        "spin_for_long()",
        [
            r"\[hang\] Possible hang: rank 0 has waited .* s in wait\(\) of 'work' for rank 1:",
            r"rank 0: waiting in wait\(\) of 'work'",
            r"script.py:\d+ in <module>: .*work.wait\(\)",
        ],
    ),
    "another": (
        USERS_COLLECTIVE,
        "accelerator.wait_for_everyone()",
        [*WAITING, r"rank 1: elsewhere, waiting in wait_for_everyone"],
    ),
    "stopped": (
        USERS_COLLECTIVE,
        "os.kill(os.getpid(), signal.SIGSTOP)",
        [*WAITING, r"rank 1: process \d+ on .* does not answer: it is stopped; continue it with kill -CONT \d+"],
    ),
    "stuck_loader": (
        USERS_COLLECTIVE,
        "read(Stuck())",
        [*WAITING, r"rank 1: waiting for data", r"in __getitem__: time.sleep\(300\)"],
    ),
}


def script_of(first: str, second: str) -> str:
    return f"{SCRIPT}if accelerator.process_index == 0:\n    {first}\nelse:\n    {second}\n"


class Job:
    """Processes that write to one file."""

    def __init__(self, folder: Path, script: str, commands: list[list[str]], seconds: str) -> None:
        (folder / "script.py").write_text(script)
        self._folder = folder
        environment = {name: value for name, value in os.environ.items() if name not in PLACE}
        environment |= {"ACCELERATE_HANG_SECONDS": seconds, "ACCELERATE_JOB_TOKEN": "of this test"}
        with (folder / "log").open("w") as log:
            self.processes = [
                subprocess.Popen([*command, "script.py"], cwd=folder, env=environment, stderr=log)
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
    folder: Path, script: str, *commands: list[str], seconds: str = "0.5"
) -> Iterator[Job]:
    """Ends the job with the block."""
    started = Job(folder, script, list(commands) or [[*LAUNCH, *SHORT_GRACE]], seconds)
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
    with job(tmp_path, script_of(first, second)) as started:
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
        started = stack.enter_context(job(tmp_path, script_of(first, second), *commands))
        started.expect(said)


def test_a_slow_rank_is_no_error(tmp_path: Path) -> None:
    wait = "\nwhile not Path('end').exists():\n    time.sleep(0.01)\n"
    with job(tmp_path, script_of(USERS_COLLECTIVE, "be_slow()") + wait) as started:
        started.expect([*WAITING, "rank 1: .*; slow, not missing: it last made progress"])
        (tmp_path / "go").touch()
        started.expect([r"\[hang\] rank 0 stopped waiting after"])
        (tmp_path / "end").touch()
        assert started.processes[0].wait() == 0, started.log()


def test_a_wrong_shape_that_is_compared_makes_nobody_wait(tmp_path: Path) -> None:
    wrong = "accelerator.gather(torch.ones(2, 4 + accelerator.process_index))"
    result = run(LAUNCH, tmp_path, script_of(wrong, wrong), ACCELERATE_HANG_SECONDS="60")
    assert result.returncode != 0
    told = (
        "gather() was called with shape [2, 5] on rank 1 (script.py:{line}) but [2, 4] on rank 0 "
        "(script.py:{other}). Only the size of dimension 0 may differ between ranks"
    )
    lines = script_of(wrong, wrong).splitlines()
    first, second = (i + 1 for i, line in enumerate(lines) if line.strip() == wrong)
    assert f"MismatchError: {told.format(line=second, other=first)}" in result.stderr, result.stderr
    assert "[hang]" not in result.stderr


@pytest.mark.parametrize(
    ("call", "name"),
    [
        ("accelerator.gather(torch.ones(4))", "gather"),
        ("accelerator.backward(model(torch.ones(1, 2)).sum())", "backward"),
    ],
)
def test_the_end_of_another_rank_is_one_sentence(tmp_path: Path, call: str, name: str) -> None:
    script = f"""
import os, sys, torch
from accelerate import Accelerator
from accelerate.errors import CommError

accelerator = Accelerator(cpu=True)
model = accelerator.prepare(torch.nn.Linear(2, 1))
{call}
accelerator.wait_for_everyone()
if accelerator.process_index == 1:
    os._exit(0)
try:
    while True:
        {call}
except CommError as error:
    print(error, file=open("said", "w"))
"""
    run(LAUNCH, tmp_path, script)
    said = (tmp_path / "said").read_text()
    assert re.fullmatch(
        rf"\[{name}\] Another rank exited during collective \d+ on rank 0 \(script\.py:\d+\)\. Its "
        r"error is above. If there is no error, that rank left a loop early \([^\n]+\)\n",
        said,
    ), said
    assert said.count("Another rank") == 1, said


def test_collectives_of_some_ranks_are_named_with_both_lines(tmp_path: Path) -> None:
    calls = ("accelerator.gather(torch.ones(4))", "accelerator.wait_for_everyone()")
    script = script_of(*calls)
    lines = script.splitlines()
    first, second = (max(i for i, line in enumerate(lines, 1) if line.strip() == c) for c in calls)
    result = run(LAUNCH, tmp_path, script, ACCELERATE_HANG_SECONDS="60")
    assert result.returncode != 0
    told = (
        f"MismatchError: wait_for_everyone() was called on rank 1 (script.py:{second}) but gather() "
        f"on rank 0 (script.py:{first}). Call them on every rank in the same order. Is one of them "
        "inside `if accelerator.is_main_process:`, or did a rank leave a loop early?"
    )
    assert told in result.stderr, result.stderr


def test_a_hang_is_said_once_and_ends_in_an_exception(tmp_path: Path) -> None:
    with_timeout = SCRIPT.replace(
        "Accelerator(cpu=True)",
        "Accelerator(cpu=True, kwargs_handlers=[InitProcessGroupKwargs(timeout=timedelta(seconds=4))])",
    )
    script = (
        "from datetime import timedelta\nfrom accelerate import InitProcessGroupKwargs\n"
        f"{with_timeout}if accelerator.process_index == 0:\n    {USERS_COLLECTIVE}\n"
        "else:\n    spin_for_long()\n"
    )
    result = run(LAUNCH, tmp_path, script, ACCELERATE_HANG_SECONDS="0.5")
    assert result.returncode != 0
    # A rank that arrived late from the previous collective is called slow first.
    assert result.stderr.count("no progress for") == 1, result.stderr
    assert result.stderr.count("Timed out") == 1, result.stderr


def test_the_doctor_asks_a_running_job(tmp_path: Path) -> None:
    script = script_of(USERS_COLLECTIVE, "spin_for_long()")
    with job(tmp_path, script, seconds="0") as started:
        answers = []

        def is_told() -> bool:
            time.sleep(0.2)
            command = ["accelerate", "doctor", "--job", str(started.processes[0].pid)]
            answers.append(subprocess.run(command, capture_output=True, text=True).stdout)
            return "spin_for_long" in answers[-1] and "dist.all_reduce" in answers[-1]

        assert wait_until(is_told), answers[-1] + started.log()
    assert re.search(r"rank 1 of 2 \(process \d+\): in user code", answers[-1])
    assert re.search(r"rank 0 of 2 .*\n(.*\n)*.*script.py:\d+ in <module>: dist.all", answers[-1])


def said_after_two_seconds(folder: Path, script: str) -> str:
    """What two ranks print that finally continue."""
    result = run(LAUNCH, folder, script, ACCELERATE_HANG_SECONDS="2")
    said = result.stdout + result.stderr
    assert result.returncode == 0, said
    return said


# A wait that ends shortly before it would be reported, and then one that does not.
KEEPING = """
import time
import torch
import torch.distributed as dist
from accelerate import Accelerator

def keep_the_interpreter(seconds):
    begin = time.monotonic()
    sum(range(10**7))
    sum(range(int(10**7 * seconds / (time.monotonic() - begin))))

accelerator = Accelerator(cpu=True)
x = torch.ones(3)
dist.all_reduce(x)
if accelerator.process_index == 0:
    time.sleep(1.7)
dist.all_reduce(x)
if accelerator.process_index == 1:
    keep_the_interpreter(9)
dist.all_reduce(x)
accelerator.end_training()
"""


def test_a_wait_that_follows_another_is_told_of(tmp_path: Path) -> None:
    said = said_after_two_seconds(tmp_path, KEEPING)
    assert "waiting in all_reduce(float32[3]), collective 3" in said, said
    assert "rank 1: in user code; collective 2 was its last" in said, said
    assert "waiting in ," not in said and "rank 1 stopped waiting" not in said, said


# The user's own collectives show progress.
MOVING_ON = """
import time
import torch
import torch.distributed as dist
from accelerate import Accelerator

accelerator = Accelerator(cpu=True)
x = torch.ones(3)
for _ in range(25):
    dist.all_reduce(x)
    time.sleep(0.2)
if accelerator.process_index == 1:
    time.sleep(6)
dist.all_reduce(x)
accelerator.end_training()
"""


def test_a_rank_that_called_collectives_of_its_own_has_moved(tmp_path: Path) -> None:
    said = said_after_two_seconds(tmp_path, MOVING_ON)
    seconds = re.search(r"rank 1: .*; no progress for ([0-9.]+) s", said)
    # The previous loop took five seconds more.
    assert seconds and float(seconds[1]) < 4.5, said


def test_step_times_say_where_the_time_goes(tmp_path: Path) -> None:
    script = """
    import time
    import torch
    from accelerate import Accelerator

    class Slow(torch.utils.data.Dataset):
        def __len__(self):
            return 4
        def __getitem__(self, index):
            time.sleep(0.05)
            return torch.ones(2)

    accelerator = Accelerator(cpu=True)
    model = torch.nn.Linear(2, 1)
    model, optimizer, loader = accelerator.prepare(
        model, torch.optim.SGD(model.parameters(), 0.1), torch.utils.data.DataLoader(Slow())
    )
    for batch in loader:
        accelerator.backward(model(batch).sum())
        optimizer.step()
        optimizer.zero_grad()
    times = accelerator.step_times()
    assert times.num_steps == len(times.last) == 4, times.num_steps
    assert times.sum.data >= 0.2
    assert times.sum.backward > 0 and times.sum.optimizer > 0
    assert abs(sum(step.total for step in times.last) - times.sum.total) < 1e-6
    print(times.summary())
    accelerator.end_training()
    """
    quiet = run([sys.executable], tmp_path, script)
    assert quiet.returncode == 0, quiet.stderr
    assert "of the step waits for data: raise num_workers" in quiet.stdout
    # Printed only on request.
    assert "[step_times]" not in quiet.stderr
    told = run([sys.executable], tmp_path, script, ACCELERATE_STEP_SUMMARY="1")
    assert "[step_times] 4 steps of" in told.stderr


# Finalizers in one thread's collections let the other one run, whose frames differ in size, so that
# the memory of a freed frame contains something else.
MOVING = """
import gc, sys, threading, time
from accelerate._process import stacks as _stacks

main = threading.get_ident()

class Knot:
    def __init__(self):
        self.me = self
    def __del__(self):
        if threading.get_ident() != main:
            time.sleep(0.0002)

num_calls = 0
lines = []
for size in range(12):
    lines += [f"def f{size}(depth):"]
    lines += [f"    v{number} = depth + {number}.5" for number in range(3 * size)]
    lines += ["    if depth: return functions[(depth * 7 + num_calls) % 12](depth - 1)"]
    lines += ["    if num_calls % 20 == 0: Knot()"]
exec("\\n".join(lines))
functions = [globals()[f"f{size}"] for size in range(12)]
is_over = False
looks = []

def look():
    while not is_over:
        looks.append(_stacks._take_stack()[0][-1][0])

gc.set_threshold(5)
sys.setswitchinterval(1e-5)
looker = threading.Thread(target=look)
looker.start()
while len(looks) < 5000 and looker.is_alive():
    for depth in range(1, 30):
        functions[num_calls % 12](depth)
        num_calls += 1
is_over = True
gc.disable()
looker.join()
print(len(looks) >= 5000, {look.partition(" in ")[2].partition(":")[0] for look in looks})
"""


def test_a_stack_is_taken_whole_from_a_thread_that_runs(tmp_path: Path) -> None:
    result = run([sys.executable, "-X", "faulthandler"], tmp_path, MOVING)
    assert (result.returncode, result.stdout) == (0, "True {'<module>'}\n"), result.stderr
