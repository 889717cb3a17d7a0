# SPDX-License-Identifier: Apache-2.0
"""A kind of accelerator that the package does not know trains bit-identically to the CPU: its
kernels are the CPU's, with the same values in the same order."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from ranks import check, fork_ours, run
from tiers import cases

ALONE = [sys.executable]
LAUNCH = ["accelerate", "launch", "--num_processes", "2"]
TRAIN = "pretend_accelerator/train.py"
# Precision, and micro-batches per update.
SETTINGS = cases(
    [("no", "1"), ("bf16", "1"), ("no", "3"), ("bf16", "3")], small=[("no", "1"), ("bf16", "3")]
)


def answers(folder: Path, where: str) -> list[dict]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob(f"answer_{where}_*"))]


def trained(starter: list[str], folder: Path, *settings: str) -> list[dict]:
    variables = {"PYTHONPATH": ":".join([*sys.path, str(Path(__file__).parent)])}
    check(run(starter, folder, TRAIN, "pretend", *settings, **variables))
    return answers(folder, "pretend")


def trained_on_cpu(num_processes: int, folder: Path, *settings: str) -> list[dict]:
    fork_ours(TRAIN, folder, "cpu", *settings, num_ranks=num_processes)
    return answers(folder, "cpu")


@pytest.mark.parametrize("settings", SETTINGS)
def test_one_process_trains_as_on_the_cpu(settings: tuple[str, str], tmp_path: Path) -> None:
    [expected] = trained_on_cpu(1, tmp_path, *settings)
    [found] = trained(ALONE, tmp_path, *settings)
    assert found["numbers"] == expected["numbers"]
    assert (expected["device"], expected["type"], expected["kernels"]) == ("cpu", "NO", 0)
    assert (found["device"], found["type"]) == ("pretend:0", "NO")
    assert found["kernels"] > 0


@pytest.mark.parametrize("settings", SETTINGS)
def test_two_processes_train_as_on_the_cpu(settings: tuple[str, str], tmp_path: Path) -> None:
    expected = trained_on_cpu(2, tmp_path, *settings)
    found = trained(LAUNCH, tmp_path, *settings)
    assert [rank["numbers"] for rank in found] == [rank["numbers"] for rank in expected]
    assert [rank["device"] for rank in found] == ["pretend:0", "pretend:1"]
    assert {rank["type"] for rank in expected} == {"MULTI_CPU"}
    # The name that the row of the devices gives.
    assert {rank["type"] for rank in found} == {"MULTI_NPU"}
    assert all(rank["collectives"] > 0 for rank in found)
    assert all(rank["collectives"] == 0 for rank in expected)


SHARDED = "pretend_accelerator/train_sharded.py"


def test_a_model_that_is_cut_comes_to_its_device_in_parts(tmp_path: Path) -> None:
    fork_ours(SHARDED, tmp_path, "cpu", num_ranks=2)
    variables = {"PYTHONPATH": ":".join([*sys.path, str(Path(__file__).parent)])}
    check(run(LAUNCH, tmp_path, SHARDED, "pretend", **variables))
    expected, found = answers(tmp_path, "cpu"), answers(tmp_path, "pretend")
    assert len(found) == 2
    assert [rank["numbers"] for rank in found] == [rank["numbers"] for rank in expected]
    # Half of it, one of 16 units, and buffers.
    assert all(0.5 < rank["peak"] < 0.7 for rank in found), found
