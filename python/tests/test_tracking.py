# SPDX-License-Identifier: Apache-2.0
"""Trackers and profiles: what TensorBoard, MLflow, W&B, DVCLive and Trackio read back is what they
read of the original's runs; services that need a network are called alike."""

from __future__ import annotations

import json
import math

import pytest
import tiers
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from both_packages import Runs, differences, python_with

# Services that take long to start are asked in a long run.
ALONE = tiers.cases(
    ["mlflow", "wandb", "dvclive", "trackio", "remembered", "rules"],
    small=["trackio", "remembered", "rules"],
)


@pytest.fixture(scope="module")
def alone(request, tmp_path_factory) -> Runs:
    return Runs("tracking.py", tmp_path_factory.mktemp("one"), python_with("trackers"), 1, ALONE)


def together(folder, name: str) -> Runs:
    """Started for one scenario alone: processes that leave their group and make another one by the
    same store may wait for each other for ever in the original."""
    return Runs("tracking.py", folder, python_with("trackers"), 2, [name])


@pytest.mark.parametrize("name", ALONE)
def test_nothing_differs_alone(alone, name):
    original, ours = alone.compared(name)
    assert differences(original, ours) == []


def test_a_loop_of_diffusers_kind_on_two_processes(tmp_path):
    original, ours = together(tmp_path, "tensorboard").compared("tensorboard")
    assert differences(original, ours) == []
    main, other = ours
    assert (main["is_blank"], other["is_blank"]) == (False, True)
    assert main["writer"] == "torch.utils.tensorboard.writer.SummaryWriter"
    assert [step for step, _ in main["loss"]] == [0, 1, 2]
    assert [step for step, *_ in main["validation"]] == [0, 1, 2]
    assert len(main["yaml"]) == 2


def test_each_process_leaves_a_trace(tmp_path):
    original, ours = together(tmp_path, "profiles").compared("profiles")
    assert differences(original, ours) == []
    folders = ("given", "scheduled")
    assert ours[0]["files"] == [f"{f}/profile_{rank}.json" for f in folders for rank in (0, 1)]
    assert ours[0]["products"] == [1, 1, 2, 2]


def test_json_lines_go_on_where_the_checkpoint_was(tmp_path):
    """By the rule of docs/guide_observe.md for those who read them."""

    def start() -> Accelerator:
        AcceleratorState._reset_state(True)
        GradientState._reset_state()
        accelerator = Accelerator(cpu=True, log_with="jsonl", project_dir=str(tmp_path))
        accelerator.init_trackers("sky", {"lr": 0.5})
        return accelerator

    accelerator = start()
    accelerator.log({"loss": 4.0})
    accelerator.log({"loss": math.inf, "two": {"a": 1}})
    accelerator.save_state(tmp_path / "saved")
    accelerator.log({"loss": 2.0})
    path = tmp_path / "sky" / "metrics.jsonl"
    with open(path, "a") as file:
        file.write('{"time": 1, "st')  # As a killed process leaves it.
    accelerator = start()
    accelerator.load_state(tmp_path / "saved")
    accelerator.log({"loss": 3.0})
    accelerator.log({"loss": 1.0}, step=7)
    accelerator.end_training()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line.get("event"), line.get("step")) for line in lines] == [
        ("start", None), ("configuration", None), (None, 0), (None, 1), ("checkpoint", 1),
        (None, 2), ("start", None), ("configuration", None), ("resume", 2), (None, 2), (None, 7),
        ("finish", None),
    ]
    assert lines[3]["values"] == {"loss": "Infinity", "two/a": 1}
    assert lines[1]["values"] == {"lr": 0.5} and lines[0]["schema"] == 1
    # A run that is not tracked loads it too.
    AcceleratorState._reset_state(True)
    Accelerator(cpu=True).load_state(tmp_path / "saved")
