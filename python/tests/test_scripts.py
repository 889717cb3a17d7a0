# SPDX-License-Identifier: Apache-2.0
"""User scripts under every starter, with their own use of torch.distributed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time

import pytest
import ranks
import tiers

TRAIN = "scripts/train_and_compare.py"


def check_both(out: str, word: str) -> None:
    assert f"{word} 0 of 2" in out and f"{word} 1 of 2" in out, out


@pytest.mark.parametrize("starter", ["LAUNCH", "TORCHRUN", "MPIRUN"])
def test_processes_are_connected_without_a_variable_set_by_hand(tmp_path, starter):
    if starter == "MPIRUN" and not os.path.exists(ranks.MPIRUN[0]):
        pytest.skip("Debian's Open MPI (openmpi-bin) is not installed")
    check_both(ranks.check(ranks.run(getattr(ranks, starter), tmp_path, TRAIN)), "trained")


def test_own_collectives_run_together_with_those_of_the_package(tmp_path):
    check_both(ranks.fork_ours("scripts/own_collectives.py", tmp_path), "both")


def test_a_group_that_the_user_has_made_is_used(tmp_path):
    check_both(ranks.fork_ours("scripts/own_group.py", tmp_path), "trained")


def test_a_group_made_from_a_file_needs_no_variables(tmp_path):
    result = ranks.run([sys.executable], tmp_path, "scripts/group_from_a_file.py", str(tmp_path))
    check_both(ranks.check(result), "met")


def test_an_exception_in_one_process_ends_the_run_and_is_named(tmp_path):
    result = ranks.run(ranks.LAUNCH, tmp_path, "scripts/bad_third_batch.py")
    assert result.returncode == 1
    # Once, last, and without the other rank's message about its lost connection.
    assert result.stderr.count("Traceback (most recent call last):") == 1
    assert result.stderr.endswith("\nValueError: the third batch is bad\n")
    assert "[launch] Rank 1 failed with exit code 1:\nTraceback" in result.stderr
    assert "[rank1]" not in result.stderr and "CommError" not in result.stderr


# A mistake, the line of the script that makes it, and the error of torch or Python.
MISTAKES = {
    "missing module": ("import torhc", "ModuleNotFoundError: No module named 'torhc'"),
    "wrong shape": ("net(torch.ones(2, 3))", "mat1 and mat2 shapes cannot be multiplied"),
    "backward twice": (
        "accelerator.backward(loss); accelerator.backward(loss)",
        "Trying to backward through the graph a second time",
    ),
    "worker of a loader": ("return self.rows[index]", "IndexError: Caught IndexError"),
    "memory": ("torch.empty(1 << 60)", "DefaultCPUAllocator: can't allocate memory"),
}


@pytest.mark.parametrize(
    "mistake", tiers.cases(list(MISTAKES), small=["missing module", "worker of a loader"])
)
def test_an_error_is_shown_once_with_the_line_that_made_it(tmp_path, mistake):
    line, said = MISTAKES[mistake]
    result = ranks.run([*ranks.LAUNCH[:-1], "1"], tmp_path, "scripts/mistake.py", mistake)
    assert result.returncode == 1
    report, _, rest = result.stderr.partition("[launch] Rank 0 failed with exit code 1\n")
    assert report.startswith("Traceback (most recent call last):\n") and not rest, result.stderr
    assert said in report and line in report, report
    # A worker's own traceback is part of the error.
    assert report.count("Traceback") == 1 + ("worker" in mistake), report


def test_a_loop_that_one_rank_leaves_early_is_named(tmp_path):
    script = "scripts/leave_a_loop_early.py"
    result = ranks.run(ranks.LAUNCH, tmp_path, script, "last")
    assert result.returncode == 1
    first, second = (
        f"leave_a_loop_early.py:{ranks.line_of(script, text)}"
        for text in (
            "accelerator.backward(net(torch.ones(1, 2, device=accelerator.device)).sum())",
            "accelerator.wait_for_everyone()",
        )
    )
    assert result.stderr.endswith(
        f"MismatchError: wait_for_everyone() was called on rank 1 ({second}) but backward() on "
        f"rank 0 ({first}). Call them on every rank in the same order. Is one of them "
        "inside `if accelerator.is_main_process:`, or did a rank leave a loop early?\n"
    ), result.stderr
    result = ranks.run(ranks.LAUNCH, tmp_path, script)
    assert result.returncode == 1
    # A slow machine shows the traceback before rank 0 has ended.
    assert "[launch] Rank 0 failed with exit code 1" in result.stderr
    assert re.search(
        r"accelerate\.errors\.CommError: \[backward\] Another rank exited during collective \d+ on "
        r"rank 0 \(leave_a_loop_early\.py:\d+\)\. Its error is above\. If there is no error, that "
        r"rank left a loop early \([^\n]+\)\n\Z",
        result.stderr,
    ), result.stderr


def test_a_crash_of_native_code_is_shown_with_the_line_that_called_it(tmp_path):
    script = "scripts/crash_in_native_code.py"
    result = ranks.run(ranks.LAUNCH, tmp_path, script)
    assert result.returncode == 128 + signal.SIGSEGV
    assert "[launch] Rank 1 crashed (SIGSEGV: Segmentation fault)" in result.stderr
    assert "Fatal Python error: Segmentation fault\n" in result.stderr
    line = ranks.line_of(script, "ctypes.string_at(0)")
    assert re.search(
        rf'  File "[^"]*crash_in_native_code\.py", line {line} in <module>\n', result.stderr
    ), result.stderr


def test_a_run_that_ends_says_what_came_of_it(tmp_path):
    result = ranks.run(ranks.LAUNCH, tmp_path, "scripts/finished_run.py", str(tmp_path / "runs"))
    ranks.check(result)
    last = result.stderr.splitlines()[-1]
    assert re.fullmatch(
        r"\[launch\] Finished in .*: 3 steps \([0-9.]+ steps/s\), "
        r"last checkpoint (.*/)?runs/state, logs in (.*/)?runs/mine",
        last,
    ), result.stderr


def test_a_killed_process_ends_the_run_and_is_named(tmp_path):
    result = ranks.run(ranks.LAUNCH, tmp_path, "scripts/killed_process.py")
    assert result.returncode == 128 + signal.SIGKILL
    assert "[launch] Rank 1 was killed (SIGKILL)" in result.stderr


def test_ctrl_c_ends_all_processes_of_a_script(tmp_path):
    path = ranks.PROGRAMS / "scripts/wait_for_ctrl_c.py"
    run = subprocess.Popen([*ranks.LAUNCH, str(path)], cwd=tmp_path, stderr=subprocess.PIPE)
    files = [tmp_path / "pid0", tmp_path / "pid1"]
    end = time.monotonic() + 60
    while not all(file.exists() and file.read_text() for file in files):
        assert time.monotonic() < end and run.poll() is None
        time.sleep(0.05)
    run.send_signal(signal.SIGINT)
    run.communicate(timeout=60)
    assert run.returncode == 128 + signal.SIGINT
    for file in files:
        with pytest.raises(ProcessLookupError):
            os.kill(int(file.read_text()), 0)


def test_values_that_do_not_fit_together_are_an_error_on_all(tmp_path):
    check_both(ranks.fork_ours("scripts/values_that_do_not_fit.py", tmp_path), "refused")
