# SPDX-License-Identifier: Apache-2.0
"""`accelerate verify` on Python programs: it finds each mistake and passes correct programs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import ranks
from tiers import cases

STEPS = "verify/steps.py"


def verify(
    folder: Path, program: str, *arguments: str, num_processes: int = 2, steps: int = 3
) -> subprocess.CompletedProcess:
    command = ["accelerate", "verify", "--cpu", "--num_processes", str(num_processes)]
    return ranks.run([*command, "--steps", str(steps), sys.executable], folder, program, *arguments)


CORRECT = [
    [],
    ["accumulate", "clip"],
    ["sharded"],
    ["zero", "clip"],
    ["weighted"],
    ["accumulate", "weighted"],
    ["global_count"],
    ["scaled_rate"],
    ["sharded", "accumulate", "clip"],
    ["adversarial"],
]


@pytest.mark.parametrize(
    "num_processes, options",
    cases(
        [(n, options) for n in (2, 4) for options in CORRECT],
        small=[(2, ["accumulate", "clip"]), (2, ["adversarial"])],
    ),
)
def test_a_correct_program_passes(tmp_path, num_processes, options):
    result = verify(tmp_path, STEPS, "right", *options, num_processes=num_processes)
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"3 steps on {num_processes} processes agree with one process" in result.stdout
    assert "parameters" in result.stdout
    assert " s in one process" in result.stdout
    assert not list(tmp_path.iterdir()), "files are left"


MISTAKES = {
    "unequal": "each rank averages its loss over its own count, but the counts differ (labels: ",
    "raw_model": "This loss does not depend on any prepared model",
    "raw_optimizer": "The optimizer AdamW trains a prepared model, but was not prepared itself",
    "raw_loader": "The step trains on a batch of a loader that was not prepared",
    "buffer": "the buffer 'mean' on RANKS differs from rank 0's",
    "rank_seed": "the module 'noise' computes different values from the same batch on rank 1",
    "adapter": "A tensor of shape [24, 24] is trained, but does not belong to any prepared model",
    "outside": "A tensor of shape [50] is trained, but does not belong to any prepared model",
    "raw_backward": "gradients that accelerator.backward() did not compute",
    "extra_backward": "gradients that accelerator.backward() did not compute",
    "changed": "the gradient of 'head.weight' on rank 1 differs from rank 0's",
    "sampler": "The samplers of ranks 0 and 1 return different samples",
    "frozen": "the frozen parameter 'frozen.weight' on RANKS differs from rank 0's",
}


# The others do not depend on the language; tests/verify covers them in C++.
@pytest.mark.parametrize(
    "num_processes, mistake",
    cases(
        [(n, mistake) for n in (2, 4) for mistake in MISTAKES],
        small=[(2, "raw_optimizer"), (2, "raw_loader"), (2, "rank_seed")],
    ),
)
def test_a_mistake_is_named(tmp_path, num_processes, mistake):
    result = verify(tmp_path, STEPS, mistake, num_processes=num_processes)
    assert result.returncode == 1, result.stdout + result.stderr
    others = "rank 1" if num_processes == 2 else "ranks 1, 2 and 3"
    assert MISTAKES[mistake].replace("RANKS", others) in result.stdout


REASONS = {
    "noise": "The training step draws random numbers, such as noise, from torch's generators",
    "numpy": "The training step draws random numbers from Python's or NumPy's generator",
    "augment": "The loaders return different values in the second run",
    "time": "The length of the loop depends on time",
    "batch_norm": "is a BatchNorm that normalises over the batch of one rank",
    "fails": "The program failed with exit code 1",
}


@pytest.mark.parametrize("cause", cases(list(REASONS), small=["numpy"]))
def test_a_program_that_cannot_be_compared_is_not_called_wrong(tmp_path, cause):
    result = verify(tmp_path, STEPS, cause)
    assert result.returncode == 2, result.stdout + result.stderr
    assert REASONS[cause] in result.stdout


def test_trainer_passes_and_keeps_its_checkpoints(tmp_path):
    old = tmp_path / "out/checkpoint-1/model.safetensors"
    old.parent.mkdir(parents=True)
    old.write_text("old")
    result = verify(tmp_path, "verify/trainer.py", steps=2)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "2 steps on 2 processes agree with one process" in result.stdout
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [old]
    assert old.read_text() == "old"


def test_one_process_is_refused(tmp_path):
    result = verify(tmp_path, STEPS, "right", num_processes=1)
    assert result.returncode == 2
    assert "pass --num_processes 2 or more" in result.stderr
