# SPDX-License-Identifier: Apache-2.0
"""Trackers and profiles: TensorBoard, MLflow, W&B, DVCLive and Trackio read back the same as from
the original's runs; services that need a network receive the same calls."""

from __future__ import annotations

import json
import math
import resource
import warnings

import pytest
import tiers
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from accelerate.tracking import GeneralTracker
from both_packages import Runs, differences, python_with

# Services that take long to start are only tested in a long run.
ALONE = tiers.cases(
    ["mlflow", "wandb", "dvclive", "trackio", "remembered", "rules"],
    small=["trackio", "remembered", "rules"],
)


@pytest.fixture(scope="module")
def alone(request, tmp_path_factory) -> Runs:
    return Runs("tracking.py", tmp_path_factory.mktemp("one"), python_with("trackers"), 1, ALONE)


def together(folder, name: str) -> Runs:
    """Started for a single scenario: in the original, processes that leave their group and create
    another one with the same store may wait for each other forever."""
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


def test_json_lines_resume_at_the_step_of_the_checkpoint(tmp_path):
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
    earlier = accelerator
    accelerator = start()
    accelerator.load_state(tmp_path / "saved")
    accelerator.log({"loss": 3.0})
    accelerator.log({"loss": 1.0}, step=7)
    accelerator.end_training()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line.get("event"), line.get("step")) for line in lines] == [
        ("start", None),
        ("configuration", None),
        (None, 0),
        (None, 1),
        ("checkpoint", 1),
        (None, 2),
        ("start", None),
        ("configuration", None),
        ("resume", 2),
        (None, 2),
        (None, 7),
        ("finish", None),
    ]
    assert lines[3]["values"] == {"loss": "Infinity", "two/a": 1}
    assert lines[1]["values"] == {"lr": 0.5} and lines[0]["schema"] == 1
    # The file belongs to the later one; values for the earlier one are not mixed into it.
    with pytest.warns(UserWarning, match=r"\[log\] loss and all later values .* uses its file"):
        earlier.log({"loss": 0.0})
    assert len(path.read_text().splitlines()) == len(lines)
    # A run without trackers also loads it.
    AcceleratorState._reset_state(True)
    Accelerator(cpu=True).load_state(tmp_path / "saved")


def test_json_lines_have_the_bytes_of_cpp_runs(tmp_path):
    """JSON has no NaN and no infinity, and JSON files are UTF-8 (RFC 8259)."""
    accelerator = Accelerator(cpu=True, log_with="jsonl", project_dir=str(tmp_path))
    accelerator.init_trackers("sky", {"größe": "ä\ud800", "none": None, "lr": 1e22})
    values = {
        "nan": math.nan,
        "inf": -math.inf,
        "deep": {"er": {"one": 1}},
        "yes": True,
        "half": 0.5,
    }
    accelerator.log(values, step=3)
    accelerator.end_training()
    lines = (tmp_path / "sky" / "metrics.jsonl").read_text("utf-8").splitlines()
    # Without the time, which comes first.
    assert [line.partition(",")[2] for line in lines[1:]] == [
        '"event":"configuration","values":{"größe":"ä?","none":null,"lr":1e+22}}',
        '"step":3,"values":{"nan":"NaN","inf":"-Infinity","deep/er/one":1,"yes":true,"half":0.5}}',
        '"event":"finish"}',
    ]


def test_a_disk_that_is_full_for_a_while_costs_whole_lines(tmp_path):
    accelerator = Accelerator(cpu=True, log_with="jsonl", project_dir=str(tmp_path))
    accelerator.init_trackers("sky")
    path = tmp_path / "sky" / "metrics.jsonl"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    # In the middle of a line.
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 13, before[1]))
    try:
        with pytest.warns(UserWarning, match="Cannot write") as said:
            for _ in range(3):
                accelerator.log({"lost": 1})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert len(said) == 1
    accelerator.log({"kept": 1})
    accelerator.end_training()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line.get("event") or list(line["values"]) for line in lines] == [
        "start",
        ["kept"],
        "finish",
    ]


def test_trackers_of_a_second_call_come_after_those_of_the_first(tmp_path):
    class Own(GeneralTracker):
        name = "own"
        requires_logging_directory = False
        tracker = None

        def __init__(self) -> None:
            super().__init__()
            self.seen: list = []

        def log(self, values: dict, step: int | None = None) -> None:
            self.seen.append(values)

        def finish(self) -> None:
            self.seen.append("finish")

    own = Own()
    accelerator = Accelerator(cpu=True, log_with=["jsonl", own], project_dir=str(tmp_path))
    accelerator.init_trackers("sky")
    accelerator.log({"loss": 2.0})
    accelerator.init_trackers("sky")
    accelerator.log({"loss": 1.0})
    accelerator.end_training()
    path = tmp_path / "sky" / "metrics.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line.get("event", line.get("step")) for line in lines] == [
        "start",
        0,
        "finish",
        "start",
        0,
        "finish",
    ]
    # The user's object stays, and gets each value once.
    assert own.seen == [{"loss": 2.0}, {"loss": 1.0}, "finish"]
    with pytest.warns(
        UserWarning, match=r"\[log\] loss and all later values are not written, .* was finished"
    ):
        accelerator.log({"loss": 0.0})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        accelerator.log({"loss": 0.0})
        accelerator.save_state(tmp_path / "late")
    assert len(path.read_text().splitlines()) == len(lines)


def test_values_that_no_tracker_gets_warn_once(tmp_path):
    accelerator = Accelerator(cpu=True, log_with="jsonl", project_dir=str(tmp_path))
    with pytest.warns(
        UserWarning, match=r"No tracker was started, .* call init_trackers\(\)"
    ) as said:
        for _ in range(2):
            accelerator.log({"loss": 1.0})
    assert len(said) == 1
    # Scripts that turn tracking off still call both.
    AcceleratorState._reset_state(True)
    accelerator = Accelerator(cpu=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        accelerator.init_trackers("sky")
        accelerator.log({"loss": 1.0})


def test_a_mistyped_tracker_raises_with_all_names():
    with pytest.raises(ValueError, match=r"logging capability: jsnl\. Choose between") as told:
        Accelerator(cpu=True, log_with="jsnl", project_dir="runs")
    for name in ("'all'", "'tensorboard'", "'jsonl'"):
        assert name in str(told.value)
