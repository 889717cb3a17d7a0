# SPDX-License-Identifier: Apache-2.0
"""A run that is started in Python and finished in C++ (`resume.cpp`), and the reverse."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
import ranks
import torch
from safetensors.torch import load_file

TRAIN = "checkpoints/train_for_cpp.py"


def _train(folder: Path, num_processes: int, optimizer: str, end: int, **told) -> str:
    told |= {"optimizer": optimizer, "end": end, "options": told.get("options", {})}
    return ranks.fork_ours(TRAIN, folder, json.dumps(told), num_ranks=num_processes)


def _go_on(
    folder: Path, num_processes: int, optimizer: str, num_batches: int
) -> subprocess.CompletedProcess:
    starter = ranks.LAUNCH if num_processes == 2 else []
    command = [*starter, "checkpoint_resume", "begun", optimizer, str(num_batches), "taken"]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=ranks.TIMEOUT_SECONDS
    )


def _steps(out: str, rank: int) -> list[tuple[str, float]]:
    """Samples and loss of each batch of a process."""
    found = re.findall(rf"rank {rank} samples ([\d ]+) loss (\S+)", out)
    return [(samples, float.fromhex(loss)) for samples, loss in found]


def _values(folder: Path) -> dict:
    return json.loads((folder / "checkpoint.json").read_text())["state"]


# Python's optimizer, its options, C++'s, and the factor within which the next losses agree. Fused,
# both run the same operator, so that all bits agree. Else each of five updates rounds otherwise in
# its last bits: 2**-23 of a weight each, and losses are sums of squares of ten such weights.
CASES = {
    "fused": ("AdamW", {"fused": True}, "AdamW", 0.0),
    "adamw": ("AdamW", {}, "AdamW", 1e-5),
    "torch_adamw": ("AdamW", {}, "torch::optim::AdamW", 1e-5),
    "sgd": ("SGD", {"momentum": 0.9}, "SGD", 1e-5),
}


@pytest.mark.parametrize("num_processes, case", [(1, c) for c in CASES] + [(2, "fused")])
def test_cpp_resumes_a_checkpoint_of_python(tmp_path, num_processes, case):
    optimizer, options, theirs, rounding = CASES[case]
    # In the middle of an epoch, and during accumulation.
    save_at = 13 if num_processes == 1 else 7
    out = _train(tmp_path, num_processes, optimizer, save_at + 12, save_at=save_at, options=options)
    result = _go_on(tmp_path, num_processes, theirs, 12)
    assert result.returncode == 0, result.stderr
    for rank in range(num_processes):
        expected = _steps(out, rank)[save_at:]
        got = _steps(result.stdout, rank)
        assert [samples for samples, _ in got] == [samples for samples, _ in expected]
        losses = [loss for _, loss in expected]
        assert [loss for _, loss in got] == pytest.approx(losses, rel=rounding, abs=0)
    assert "'begun' was saved by Python: 'python_generators', 'python_loader'" in result.stderr

    # What C++ saves immediately is what it has loaded.
    begun, taken = tmp_path / "begun", tmp_path / "taken"
    for file in ("model.safetensors", "optimizer.safetensors"):
        before, after = load_file(begun / file), load_file(taken / file)
        if theirs.startswith("torch::"):
            # It counts steps in a number.
            before = {k: v for k, v in before.items() if not k.endswith(".step")}
        assert before.keys() == after.keys()
        assert all(torch.equal(before[name], after[name]) for name in before)
    before, after = _values(begun), _values(taken)
    assert before["scaler"] == after["scaler"]
    assert before["scaler"]["scale"] == 512 and before["scaler"]["_growth_tracker"] == 17
    for name, own in (("scheduler", ()), ("optimizer", ("kind",)), ("loader", ())):
        known = [key for key in before[name] if not key.startswith("python") and key not in own]
        left = {key for key in known if key not in after[name]}
        assert all(before[name][key] == after[name][key] for key in known if key not in left)
        # Options that are off, and that this optimizer of C++ does not have.
        assert all(before[name][key] is False for key in left)
    assert before["loader"]["num_done"] == (39 - 30 if num_processes == 1 else 42 - 30)

    # And the reverse: Python resumes from C++'s checkpoint as from its own.
    if case != "torch_adamw":
        back = _train(tmp_path, num_processes, optimizer, 12, load="taken", options=options)
        for rank in range(num_processes):
            assert _steps(back, rank) == _steps(out, rank)[save_at:]
        assert "was saved by C++: 'python_generators', 'python_loader'" in back
        rates = [before["scheduler"][f"last_lr.{i}"] for i in range(2)]
        assert f"lr {rates} scaler {json.dumps(before['scaler'])}" in back


def test_an_order_that_a_generator_drew_is_not_guessed(tmp_path):
    _train(tmp_path, 1, "AdamW", 4, save_at=4, seedable=False)
    result = _go_on(tmp_path, 1, "AdamW", 1)
    assert result.returncode == 1
    assert "use_seedable_sampler=True" in result.stderr
    # Between epochs there is nothing to lose.
    _train(tmp_path, 1, "AdamW", 10, save_at=10, seedable=False)
    result = _go_on(tmp_path, 1, "AdamW", 10)
    assert result.returncode == 0, result.stderr
    seen = [int(i) for samples, _ in _steps(result.stdout, 0) for i in samples.split()]
    assert sorted(seen) == list(range(30))


def test_weights_that_only_python_reads_are_refused(tmp_path):
    _train(tmp_path, 1, "AdamW", 3, save_at=3, safe=False)
    result = _go_on(tmp_path, 1, "AdamW", 1)
    assert result.returncode == 1
    line = "stores 'model' in 'pytorch_model.bin', which only Python can read"
    assert line in result.stderr and result.stderr.count("\n") == 1


def test_objects_of_python_are_named_and_left(tmp_path):
    _train(tmp_path, 1, "AdamW", 3, save_at=3, custom=True)
    result = _go_on(tmp_path, 1, "AdamW", 1)
    assert result.returncode == 0, result.stderr
    assert "'python_custom', 'python_generators'" in result.stderr
    # And one line that says where the loader starts.
    assert result.stderr.count("\n") == 2


def test_an_option_that_would_be_lost_is_refused(tmp_path):
    _train(tmp_path, 1, "AdamW", 3, save_at=3, options={"maximize": True})
    result = _go_on(tmp_path, 1, "torch::optim::AdamW", 1)
    assert result.returncode == 1
    assert "option 'maximize' that torch::optim::AdamW does not have" in result.stderr
    result = _go_on(tmp_path, 1, "SGD", 1)
    assert "The saved state belongs to AdamW, but the optimizer is SGD" in result.stderr
