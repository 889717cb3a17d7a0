# SPDX-License-Identifier: Apache-2.0
"""transformers' Trainer has the same results with this package as with the original: every loss,
norm, learning rate, metric and weight, bit for bit. Two processes add two gradients and halve the
sum, which is exact in any order.

If the original is wrong, the test says how and what is right."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from both_packages import PROGRAMS, Runs, chosen_scenarios, differences, python_with, variables_of
from ranks import LAUNCH, PLACE
from tiers import cases

SAME = cases(
    [
        "plain",
        "bf16",
        "bf16_full_evaluation",
        "resumed_bf16",
        "twice",
        "accumulation",
        "accumulated_tokens",
        "workers",
        "stream",
        "resumed_stream",
        "early_stopping",
        "auto_find_batch_size",
        "checkpointed_activations",
        "clipped_adafactor",
        "sequences",
        "device_maps",
    ],
    small=["plain", "device_maps"],
)
EARLY = cases(["evaluate_first", "evaluate_first_bf16"], small=["evaluate_first"])
STAGES = ["stage0", "stage1", "stage2", "stage3"]
# Each has its own start, in one process.
ALONE = cases(["beside_deepspeed", "compiled"], small=["beside_deepspeed"])
RELEASES = cases(["", "-transformers4"], small=[""])
# They resume from a checkpoint, which two processes of the original cannot with the older release.
RESUMED = ["plain", "resumed_bf16", "resumed_stream"]


@pytest.fixture(scope="module", params=RELEASES, ids=lambda release: release[1:] or "transformers5")
def release(request) -> str:
    return request.param


@pytest.fixture(scope="module", params=[1, 2], ids=["one", "two"])
def runs(request, release, tmp_path_factory) -> Runs:
    names = [name for name in chosen_scenarios(request) if name not in ALONE]
    # Last: rounding depends on what a process has computed before, and after a failure of the
    # original another process continues.
    names.sort(key=lambda name: bool(release) and name in RESUMED)
    folder = tmp_path_factory.mktemp("trainer")
    return Runs("trainer.py", folder, python_with("libraries", release), request.param, names)


@pytest.mark.parametrize("scenario", SAME)
def test_nothing_differs(runs, release, scenario):
    if release == "-transformers4" and runs.num_processes == 2 and scenario in RESUMED:
        # The original's processes are on "cpu:0" and "cpu:1", where this release cannot load.
        ours = runs.ours_alone(scenario, "don't know how to restore data location")
        # Trainer does not know the epochs of a stream, and skips into another one.
        for rank in ours if scenario != "resumed_stream" else ():
            whole, resumed = rank["whole"], rank["resumed"]
            assert whole["weights"] == resumed["weights"]
            # The last line has the mean of the losses since the start.
            assert differences(whole["history"][:-1], resumed["history"][:-1]) == []
    else:
        original, ours = runs.compared(scenario)
        assert differences(original, ours) == []
    weights = [rank.get("resumed", rank).get("weights") for rank in ours]
    assert all(other == weights[0] for other in weights)


@pytest.mark.parametrize("runs", [2], indirect=True, ids=["two"])
@pytest.mark.parametrize("scenario", ["plain"])
def test_processes_of_the_launcher_train_as_others(runs, release, scenario, tmp_path):
    # By its path, because the libraries' environment also has a program of this name.
    launch = [shutil.which(LAUNCH[0]), *LAUNCH[1:], runs.python, PROGRAMS / runs.program]
    variables = {name: value for name, value in os.environ.items() if name not in PLACE}
    variables |= variables_of(runs.python, is_ours=True)
    subprocess.run([*launch, tmp_path, scenario], env=variables, check=True, timeout=300)
    launched = [json.loads((tmp_path / f"{scenario}.{rank}").read_text()) for rank in range(2)]
    assert differences(runs.compared(scenario)[1], [answer["is"] for answer in launched]) == []


@pytest.mark.parametrize("scenario", ["group_by_length"])
def test_rows_grouped_by_length_are_each_seen_once(runs, scenario):
    """In the original, every process draws the order from its own generator; ours use a common one.
    In one process there is no difference."""
    original, ours = runs.compared(scenario)
    if runs.num_processes == 1:
        assert differences(original, ours) == []
        return
    assert ours[0]["weights"] == ours[1]["weights"]
    num_batches = len(ours[0]["seen"]) // 3
    for first in range(0, 3 * num_batches, num_batches):
        epoch = [rank["seen"][first : first + num_batches] for rank in ours]
        rows = [row for batches in epoch for batch in batches for row in batch]
        # Two of 22 rows pad the last batch.
        assert len(rows) == 24 and set(rows) == set(range(22))


@pytest.mark.parametrize("scenario", ["streamed_evaluation"])
def test_a_stream_is_evaluated_row_by_row(runs, scenario):
    """The loss of the last batch is also a mean over rows that pad it, which the packages
    distribute differently to two processes, so it is only close."""
    original, ours = runs.compared(scenario)
    near = 2e-4 if runs.num_processes == 2 else 0
    for theirs, mine in zip(original, ours):
        for inside, name in (("before", "eval_loss"), ("metrics", "test_loss")):
            losses = [answer[inside].pop(name) for answer in (theirs, mine)]
            assert losses[0] == pytest.approx(losses[1], rel=near, abs=0)
        assert differences(theirs, mine) == []


@pytest.mark.parametrize("scenario", EARLY)
def test_an_evaluation_before_training_changes_nothing(runs, scenario):
    """The original considers a model prepared for evaluation ready for training: gradients of
    several processes are not synchronised, and the ranks diverge. The expected result is training
    without that evaluation."""
    original, ours = runs.compared(scenario)
    if len(original) > 1:
        assert original[0]["trained"]["weights"] != original[1]["trained"]["weights"]
    for theirs, mine in zip(original, ours):
        assert differences(theirs["before"], mine["before"]) == []
        assert differences(theirs["without"], mine["without"]) == []
        assert differences(theirs["without"], mine["trained"]) == []


@pytest.mark.parametrize("scenario", ["sampled_evaluation"])
def test_metrics_have_every_row_that_was_drawn(runs, scenario):
    """The original takes the length of the dataset for the number of rows that its sampler draws:
    of eleven rows it returns nine in one process, and thirteen, including duplicates, in two."""
    original, ours = runs.compared(scenario)
    for theirs, mine in zip(original, ours):
        assert theirs["predicted"] == len(theirs["evaluated"]) == {1: 9, 2: 13}[runs.num_processes]
        assert mine["predicted"] == 11
        # Of each kind as many as the first eleven rows have.
        assert mine["evaluated"] == sorted("12202201111")


def deepspeed_stub(folder: Path) -> list[str]:
    """The part of DeepSpeed that makes transformers think it is installed."""
    stub = folder / "path"
    (stub / "deepspeed").mkdir(parents=True)
    (stub / "deepspeed/__init__.py").write_text(
        "__version__ = '0.18.0'\nclass DeepSpeedEngine: pass\n"
    )
    (stub / "deepspeed/utils.py").write_text(
        "import logging\nlogger = logging.getLogger('DeepSpeed')\n"
    )
    (stub / "deepspeed-0.18.0.dist-info").mkdir()
    (stub / "deepspeed-0.18.0.dist-info/METADATA").write_text(
        "Metadata-Version: 2.1\nName: deepspeed\nVersion: 0.18.0\n"
    )
    return [str(stub)]


@pytest.mark.parametrize("num_processes", cases([1, 2], small=[2]))
@pytest.mark.parametrize(
    "name", cases(["with_deepspeed", "with_deepspeed_stages"], small=["with_deepspeed"])
)
def test_a_deepspeed_configuration_trains_saves_and_resumes(tmp_path, name, num_processes):
    """The original needs DeepSpeed itself; our training is compared with the same Trainer without a
    configuration."""
    python = python_with("libraries")
    runs = Runs("trainer.py", tmp_path, python, num_processes, [name], deepspeed_stub(tmp_path))
    ranks = runs.ours(name)
    assert all(differences(ranks[0], rank) == [] for rank in ranks)
    found = ranks[0]
    plain = found["plain"]
    assert plain["steps"] == {1: 6, 2: 4}[num_processes]
    # Two processes average the gradients of each micro-batch, whereas Trainer alone averages their
    # sum: another order, and losses near 1. Values that are only rounding, such as the bias of
    # keys, whose gradient is zero, are not compared.
    near = 0 if num_processes == 1 else 2e-4
    for trained in (found[kind] for kind in found if kind.startswith("stage")):
        for name, weights in plain["weights"].items():
            if near == 0 or not name.endswith("key.bias"):
                assert trained["weights"][name] == pytest.approx(weights, rel=0, abs=near), name
    for trained in (found[kind] for kind in found if kind in STAGES):
        for line, expected in zip(trained["history"][:-1], plain["history"][:-1], strict=True):
            for key, value in expected.items():
                is_number = isinstance(value, float)
                # Norms of shards are summed in another order.
                assert line[key] == (pytest.approx(value, rel=1e-3) if is_number else value), key
    for kind in found.keys() & {*STAGES, "sections"}:
        whole, resumed = found[kind], found[f"{kind} resumed"]
        assert differences(whole["weights"], resumed["weights"]) == []
        assert resumed["steps"] == whole["steps"]


@pytest.mark.parametrize("scenario", ALONE)
def test_nothing_differs_in_a_process_of_its_own(tmp_path, release, scenario):
    path = deepspeed_stub(tmp_path) if scenario == "beside_deepspeed" else []
    alone = Runs("trainer.py", tmp_path, python_with("libraries", release), 1, [scenario], path)
    original, ours = alone.compared(scenario)
    assert differences(original, ours) == []
