# SPDX-License-Identifier: Apache-2.0
"""User scripts under every starter, with their own use of torch.distributed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
import time

import pytest
import ranks
import tiers

TRAIN = """
    import os, sys
    import torch
    from accelerate import Accelerator

    accelerator = Accelerator()
    torch.manual_seed(accelerator.process_index)
    net = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net, optimizer = accelerator.prepare(net, optimizer)
    for step in range(4):
        rows = torch.full((2, 3), float(accelerator.process_index + step), device=accelerator.device)
        loss = net(rows).square().mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    weights = accelerator.gather(net.weight.detach().clone())
    assert weights.shape == (2, 3) and torch.equal(weights[0], weights[1]), weights
    # The same four steps by hand, on both processes' batches at once.
    torch.manual_seed(0)
    plain = torch.nn.Linear(3, 1)
    for step in range(4):
        rows = torch.tensor([[float(step)] * 3] * 2 + [[float(step + 1)] * 3] * 2)
        plain.zero_grad()
        plain(rows).square().mean().backward()
        with torch.no_grad():
            for p in plain.parameters():
                p -= 0.1 * p.grad
    # One sum of four rows against two sums of two: the last bits may differ.
    torch.testing.assert_close(net.weight.cpu(), plain.weight, rtol=1e-5, atol=1e-6)
    # In one write: lines of two processes may meet.
    os.write(1, f"trained {accelerator.process_index} of {accelerator.num_processes}\\n".encode())
"""


def check_both(out: str, word: str) -> None:
    assert f"{word} 0 of 2" in out and f"{word} 1 of 2" in out, out


@pytest.mark.parametrize("starter", ["LAUNCH", "TORCHRUN", "MPIRUN"])
def test_processes_are_connected_without_a_variable_set_by_hand(tmp_path, starter):
    if starter == "MPIRUN" and not os.path.exists(ranks.MPIRUN[0]):
        pytest.skip("Debian's Open MPI (openmpi-bin) is not installed")
    check_both(ranks.check(ranks.run(getattr(ranks, starter), tmp_path, TRAIN)), "trained")


def test_own_collectives_run_beside_those_of_the_package(tmp_path):
    script = """
    import torch
    import torch.distributed as dist
    from accelerate import Accelerator

    accelerator = Accelerator()
    net = accelerator.prepare(torch.nn.Linear(2, 1))
    mine = torch.tensor([accelerator.process_index + 1.0])
    dist.all_reduce(mine)
    accelerator.backward(net(torch.ones(1, 2, device=accelerator.device)).sum())
    dist.all_reduce(mine)
    assert mine.item() == 6, mine
    assert accelerator.reduce(torch.ones(1)).item() == 2
    pair = dist.new_group([0, 1])
    dist.all_reduce(mine, group=pair)
    assert mine.item() == 12
    print(f"both {accelerator.process_index} of {dist.get_world_size()}", flush=True)
    """
    check_both(ranks.fork_ours(script, tmp_path), "both")


def test_a_group_that_the_user_has_made_is_used(tmp_path):
    script = """
    import os
    import torch.distributed as dist
    dist.init_process_group("gloo")
    before = dist.group.WORLD
    """ + TRAIN + """
    assert dist.group.WORLD is before
    accelerator.end_training()
    assert not dist.is_initialized()
    """
    check_both(ranks.fork_ours(script, tmp_path), "trained")


def test_a_group_made_from_a_file_needs_no_variables(tmp_path):
    script = """
    import sys
    import torch.multiprocessing as mp

    def train(rank, path):
        import torch, torch.distributed as dist
        from accelerate import Accelerator
        dist.init_process_group("gloo", init_method="file://" + path, rank=rank, world_size=2)
        accelerator = Accelerator()
        assert accelerator.gather(torch.tensor([rank])).tolist() == [0, 1]
        print(f"met {accelerator.process_index} of {accelerator.num_processes}", flush=True)

    if __name__ == "__main__":
        mp.spawn(train, args=(sys.argv[1] + "/meeting",), nprocs=2)
    """
    result = ranks.run([sys.executable], tmp_path, script, str(tmp_path))
    check_both(ranks.check(result), "met")


def test_an_exception_in_one_process_ends_the_run_and_is_named(tmp_path):
    script = """
    import torch
    from accelerate import Accelerator
    accelerator = Accelerator()
    net = accelerator.prepare(torch.nn.Linear(2, 1))
    for step in range(100):
        if step == 3 and accelerator.process_index == 1:
            raise ValueError("the third batch is bad")
        accelerator.backward(net(torch.ones(1, 2, device=accelerator.device)).sum())
    """
    result = ranks.run(ranks.LAUNCH, tmp_path, script)
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
    script = f"""
    import torch
    from accelerate import Accelerator

    class Rows(torch.utils.data.Dataset):
        rows = [torch.ones(2)]
        def __len__(self):
            return 2
        def __getitem__(self, index):
            return self.rows[index]

    accelerator = Accelerator()
    loader = torch.utils.data.DataLoader(Rows(), num_workers={int("worker" in mistake)})
    net, loader = accelerator.prepare(torch.nn.Linear(2, 1), loader)
    loss = net(torch.ones(1, 2)).square().sum()
    {"list(loader)" if "worker" in mistake else line}
    """
    result = ranks.run([*ranks.LAUNCH[:-1], "1"], tmp_path, script)
    assert result.returncode == 1
    report, _, rest = result.stderr.partition("[launch] Rank 0 failed with exit code 1\n")
    assert report.startswith("Traceback (most recent call last):\n") and not rest, result.stderr
    assert said in report and line in report, report
    # A worker's own traceback is part of the error.
    assert report.count("Traceback") == 1 + ("worker" in mistake), report


def test_a_loop_that_one_rank_leaves_early_is_named(tmp_path):
    script = """
    import torch
    from accelerate import Accelerator
    accelerator = Accelerator()
    net = accelerator.prepare(torch.nn.Linear(2, 1))
    for step in range(4):
        if step == 2 and accelerator.process_index == 1:
            break
        accelerator.backward(net(torch.ones(1, 2, device=accelerator.device)).sum())
    if LAST:
        accelerator.wait_for_everyone()
    """
    result = ranks.run(ranks.LAUNCH, tmp_path, script.replace("LAST", "True"))
    assert result.returncode == 1
    assert result.stderr.endswith(
        "MismatchError: wait_for_everyone() was called on rank 1 (script.py:11) but backward() on "
        "rank 0 (script.py:9). Call them on every rank in the same order. Is one of them "
        "inside `if accelerator.is_main_process:`, or did a rank leave a loop early?\n"
    ), result.stderr
    result = ranks.run(ranks.LAUNCH, tmp_path, script.replace("LAST", "False"))
    assert result.returncode == 1
    # A slow machine shows the traceback before rank 0 has ended.
    assert "[launch] Rank 0 failed with exit code 1" in result.stderr
    assert re.search(
        r"accelerate\.errors\.CommError: \[backward\] Another rank exited during collective \d+ on "
        r"rank 0 \(script\.py:\d+\)\. Its error is above\. If there is no error, that rank left a loop "
        r"early \([^\n]+\)\n\Z",
        result.stderr,
    ), result.stderr


def test_a_crash_of_native_code_is_shown_with_the_line_that_called_it(tmp_path):
    script = """
    import ctypes, torch
    from accelerate import Accelerator
    accelerator = Accelerator()
    net = accelerator.prepare(torch.nn.Linear(2, 1))
    for step in range(4):
        if step == 2 and accelerator.process_index == 1:
            ctypes.string_at(0)
        accelerator.backward(net(torch.ones(1, 2, device=accelerator.device)).sum())
    """
    result = ranks.run(ranks.LAUNCH, tmp_path, script)
    assert result.returncode == 128 + signal.SIGSEGV
    assert "[launch] Rank 1 crashed (SIGSEGV: Segmentation fault)" in result.stderr
    assert "Fatal Python error: Segmentation fault\n" in result.stderr
    assert re.search(r'  File "[^"]*script\.py", line 8 in <module>\n', result.stderr), result.stderr


def test_a_run_that_ends_says_what_came_of_it(tmp_path):
    script = """
    import sys, torch
    from accelerate import Accelerator
    accelerator = Accelerator(log_with="jsonl", project_dir=sys.argv[1])
    accelerator.init_trackers("mine")
    net = torch.nn.Linear(2, 1)
    net, optimizer = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1))
    for step in range(3):
        accelerator.backward(net(torch.ones(1, 2, device=accelerator.device)).sum())
        optimizer.step()
        optimizer.zero_grad()
    accelerator.save_state(sys.argv[1] + "/state")
    accelerator.end_training()
    """
    result = ranks.run(ranks.LAUNCH, tmp_path, script, str(tmp_path / "runs"))
    ranks.check(result)
    last = result.stderr.splitlines()[-1]
    assert re.fullmatch(
        r"\[launch\] Finished in .*: 3 steps \([0-9.]+ steps/s\), "
        r"last checkpoint (.*/)?runs/state, logs in (.*/)?runs/mine",
        last,
    ), result.stderr


def test_a_killed_process_ends_the_run_and_is_named(tmp_path):
    script = """
    import os, signal, torch
    from accelerate import Accelerator
    accelerator = Accelerator()
    net = accelerator.prepare(torch.nn.Linear(2, 1))
    for step in range(1000):
        if step == 3 and accelerator.process_index == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        accelerator.backward(net(torch.ones(1, 2, device=accelerator.device)).sum())
    """
    result = ranks.run(ranks.LAUNCH, tmp_path, script)
    assert result.returncode == 128 + signal.SIGKILL
    assert "[launch] Rank 1 was killed (SIGKILL)" in result.stderr


def test_ctrl_c_ends_all_processes_of_a_script(tmp_path):
    script = """
    import os, time
    from accelerate import Accelerator
    accelerator = Accelerator()
    open(f"pid{accelerator.process_index}", "w").write(str(os.getpid()))
    time.sleep(600)
    """
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(script))
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
    script = """
    import torch
    from accelerate import Accelerator
    from accelerate.errors import MismatchError
    accelerator = Accelerator()
    rank = accelerator.process_index
    for value in (torch.ones(2, 2 + rank), {"ab"[rank]: torch.ones(1)}):
        try:
            accelerator.gather(value)
        except MismatchError as error:
            assert "rank 1" in str(error), error
        else:
            raise SystemExit("no error")
    ragged = accelerator.gather(torch.full((rank + 1,), rank))
    assert ragged.tolist() == [0, 1, 1]
    print(f"refused {rank} of {accelerator.num_processes}", flush=True)
    """
    check_both(ranks.fork_ours(script, tmp_path), "refused")
