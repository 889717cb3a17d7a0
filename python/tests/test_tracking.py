# SPDX-License-Identifier: Apache-2.0
"""Trackers and profiles: what TensorBoard, MLflow, W&B, DVCLive and Trackio read back is what they
read of the original's runs; services that need a network are called alike."""

from __future__ import annotations

import pytest
from both_packages import Runs, differences, python_with

ALONE = ["mlflow", "wandb", "dvclive", "trackio", "remembered", "rules"]


@pytest.fixture(scope="module")
def alone(request, tmp_path_factory) -> Runs:
    return Runs("tracking.py", tmp_path_factory.mktemp("one"), python_with("trackers"), 1, ALONE)


@pytest.fixture(scope="module")
def together(request, tmp_path_factory) -> Runs:
    names = ["profiles", "tensorboard"]
    return Runs("tracking.py", tmp_path_factory.mktemp("two"), python_with("trackers"), 2, names)


@pytest.mark.parametrize("name", ALONE)
def test_nothing_differs_alone(alone, name):
    original, ours = alone.compared(name)
    assert differences(original, ours) == []


def test_a_loop_of_diffusers_kind_on_two_processes(together):
    original, ours = together.compared("tensorboard")
    assert differences(original, ours) == []
    main, other = ours
    assert (main["is_blank"], other["is_blank"]) == (False, True)
    assert main["writer"] == "torch.utils.tensorboard.writer.SummaryWriter"
    assert [step for step, _ in main["loss"]] == [0, 1, 2]
    assert [step for step, *_ in main["validation"]] == [0, 1, 2]
    assert len(main["yaml"]) == 2


def test_each_process_leaves_a_trace(together):
    original, ours = together.compared("profiles")
    assert differences(original, ours) == []
    folders = ("given", "scheduled")
    assert ours[0]["files"] == [f"{f}/profile_{rank}.json" for f in folders for rank in (0, 1)]
    assert ours[0]["products"] == [1, 1, 2, 2]
