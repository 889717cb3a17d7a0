# SPDX-License-Identifier: Apache-2.0
"""Sizes, balanced memory and device maps equal Hugging Face Accelerate's on random models and on
transformers' models. The original says what is expected, in its own environment."""

from __future__ import annotations

import json
import os

import pytest
import torch
from accelerate import infer_auto_device_map
from accelerate.utils import modeling
from original import PROGRAMS, originals_python, run_python

PROGRAM = PROGRAMS / "big_models/device_maps.py"
CASES = 4000 if "ACCELERATE_TEST_LONG" in os.environ else 200


@pytest.fixture(scope="module")
def answers() -> tuple[dict, dict]:
    words = (PROGRAM, "0", str(CASES))
    original = run_python(*words, python=originals_python())
    ours = run_python(*words, path=os.environ.get("PYTHONPATH", ""))
    return tuple(json.loads(output.splitlines()[-1]) for output in (original, ours))


def is_error(answer) -> bool:
    return isinstance(answer, str) and answer.startswith("error: ")


def test_every_answer_is_the_originals(answers):
    original, ours = answers
    assert original.keys() == ours.keys() and len(ours) > CASES + 50
    wrong = [
        (case, what, expected[what], ours[case][what])
        for case, expected in original.items()
        for what in expected
        if not is_error(expected[what]) and expected[what] != ours[case][what]
    ]
    assert wrong == []


def test_ours_has_an_answer_where_the_original_fails(answers):
    """The original looks for tied parameters in modules only, and for devices in a row."""
    original, ours = answers
    everything = [answer for found in original.values() for answer in found.values()]
    assert 0 < len([a for a in everything if is_error(a)]) < len(everything) // 4
    assert [case for case, found in ours.items() if any(map(is_error, found.values()))] == []


def three_layers() -> torch.nn.Sequential:
    return torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(3)))


def test_verbose_prints_each_decision(capsys):
    # The CPU keeps 80 bytes free to load a layer.
    infer_auto_device_map(three_layers(), {"cpu": 200}, verbose=True)
    printed = capsys.readouterr().out
    assert "0: 80 bytes on cpu" in printed and "1: 80 bytes on disk" in printed


def test_a_name_in_one_string_is_one_class():
    model = torch.nn.Sequential(three_layers())
    found = infer_auto_device_map(model, {"cpu": 200}, no_split_module_classes="Sequential")
    assert found == {"0": "disk"}
    assert infer_auto_device_map(model, {"cpu": 200})["0.0"] == "cpu"


@pytest.mark.parametrize("memory", [{"gpu": 1}, {"cpu": "ten"}])
def test_unknown_devices_and_sizes_are_refused(memory):
    with pytest.raises(ValueError, match="gpu|ten"):
        infer_auto_device_map(torch.nn.Linear(1, 1), memory)


def test_a_shared_module_is_described_once():
    inner = torch.nn.Linear(8, 8)
    model = torch.nn.ModuleDict({"a": inner, "b": inner})
    assert modeling.compute_module_sizes(model)[""] == 288
    assert modeling.find_tied_parameters(model) == [
        ["a.weight", "b.weight"],
        ["a.bias", "b.bias"],
    ]
