# SPDX-License-Identifier: Apache-2.0
"""Ranks that stand still: what is said of them, and what `accelerate doctor --job` is told."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from processes import wait_until
from ranks import LAUNCH, run

# Each ends by the timeout of a collective, or goes on.
SCRIPT = """
import sys, time
from datetime import timedelta
import torch
import torch.distributed as dist
from accelerate import Accelerator, InitProcessGroupKwargs

accelerator = Accelerator(
    cpu=True, kwargs_handlers=[InitProcessGroupKwargs(timeout=timedelta(seconds=6))]
)

def spin_for_long():
    end = time.monotonic() + 30
    while time.monotonic() < end:
        pass

class Stuck(torch.utils.data.Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        time.sleep(30)

accelerator.wait_for_everyone()
is_first = accelerator.process_index == 0
"""

USERS_COLLECTIVE = "dist.all_reduce(torch.ones(4))"
CASES = {
    # name: (what rank 0 does, what rank 1 does, what is said)
    "endless_loop": (
        USERS_COLLECTIVE,
        "spin_for_long()",
        [
            r"\[hang\] all_reduce float32\[4\], collective \d+, waits for",
            r"rank 0: waiting in all_reduce float32\[4\]",
            r"rank 1: in code of the user's; .* it has not moved for",
            r"script.py:\d+ in spin_for_long: (while|pass)",
        ],
    ),
    "skipped": (
        "accelerator.gather(torch.ones(4)); dist.barrier()",
        "dist.barrier()",
        [
            r"\[hang\] gather .*Float\[\*\]",
            r"rank 1: elsewhere, waiting in barrier",
            r"script.py:\d+ in <module>: .*barrier",
        ],
    ),
    "stuck_loader": (
        USERS_COLLECTIVE,
        "next(iter(accelerator.prepare(torch.utils.data.DataLoader(Stuck()))))",
        [r"rank 1: waiting for data", r"in __getitem__: time.sleep\(30\)"],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_hang_is_explained_and_ends_in_an_exception(name: str, tmp_path: Path) -> None:
    first, second, said = CASES[name]
    script = SCRIPT + f"if is_first:\n    {first}\nelse:\n    {second}\n"
    result = run(LAUNCH, tmp_path, script, ACCELERATE_HANG_SECONDS="0.5")
    assert result.returncode != 0
    for expression in said:
        assert re.search(expression, result.stderr), result.stderr
    # Once; the launcher repeats the last lines of a rank that failed.
    said_by_ranks = result.stderr.partition("[launch] first failure")[0]
    assert said_by_ranks.count("not all ranks came") == 1, result.stderr


def test_a_slow_rank_is_no_error(tmp_path: Path) -> None:
    script = SCRIPT + f"if not is_first:\n    time.sleep(3)\n{USERS_COLLECTIVE}\ntime.sleep(1)\n"
    result = run(LAUNCH, tmp_path, script, ACCELERATE_HANG_SECONDS="0.5")
    assert result.returncode == 0, result.stderr
    assert "rank 1: in code of the user's" in result.stderr
    assert "no longer waits" in result.stderr


def test_the_doctor_asks_a_running_job(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT + f"if is_first:\n    {USERS_COLLECTIVE}\nelse:\n    spin_for_long()\n")
    log = tmp_path / "log"
    with log.open("w") as out, subprocess.Popen([*LAUNCH, str(path)], stderr=out) as job:
        answers = []

        def is_told() -> bool:
            time.sleep(0.2)
            command = ["accelerate", "doctor", "--job", str(job.pid)]
            answers.append(subprocess.run(command, capture_output=True, text=True).stdout)
            return "spin_for_long" in answers[-1]

        try:
            assert wait_until(is_told), answers[-1] + log.read_text()
        finally:
            job.terminate()
    assert re.search(r"rank 1 of 2 \(process \d+\): in code of the user's", answers[-1])
    assert re.search(r"rank 0 of 2 .*\n(.*\n)*.*script.py:\d+ in <module>: dist.all", answers[-1])


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
    # Nobody is told who did not ask.
    assert "[step_times]" not in quiet.stderr
    told = run([sys.executable], tmp_path, script, ACCELERATE_STEP_SUMMARY="1")
    assert "[step_times] 4 steps of" in told.stderr
