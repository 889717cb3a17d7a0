# SPDX-License-Identifier: Apache-2.0
"""Precedence of code, variables and debug mode, compared with the original."""

from __future__ import annotations

import inspect
import json
import warnings

import pytest
import ranks
import torch  # noqa: F401, the compiled module needs its libraries

from accelerate import _C, Accelerator, PartialState
from accelerate._base import debug as _debug
from accelerate.errors import MismatchError, UsageError
from accelerate.launchers import notebook_launcher
from accelerate.state import AcceleratorState, GradientState
from accelerate.utils import GradientAccumulationPlugin, PrecisionType
from accelerate.utils.operations import DistributedOperationException

STEPS = {"ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "3"}
BF16 = {"ACCELERATE_MIXED_PRECISION": "bf16"}
# Variables and arguments.
CASES = [
    ({}, {}),
    (STEPS, {}),
    (STEPS, {"gradient_accumulation_steps": 2}),
    (STEPS, {"gradient_accumulation_plugin": {"num_steps": 5}}),
    (BF16, {}),
    (BF16, {"mixed_precision": "no"}),
    ({}, {"cpu": False}),
    ({"ACCELERATE_DEBUG_MODE": "1"}, {}),
]


@pytest.fixture(autouse=True)
def fresh_state():
    yield
    AcceleratorState._reset_state(True)
    GradientState._reset_state()


def test_code_and_variables_decide_as_in_the_original(tmp_path) -> None:
    words = ("settings/precedence.py", tmp_path, json.dumps(CASES))
    ours = ranks.fork_ours(*words, num_ranks=1).splitlines()
    theirs = ranks.fork_original(*words, num_ranks=1).splitlines()
    assert len(ours) == len(CASES)
    for case, our, their in zip(CASES, ours, theirs, strict=True):
        assert our == their, case


def test_the_variable_of_steps_wins_over_the_argument_alone(monkeypatch) -> None:
    monkeypatch.setenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "3")
    assert Accelerator(cpu=True, gradient_accumulation_steps=2).gradient_accumulation_steps == 3
    GradientState._reset_state()
    plugin = GradientAccumulationPlugin(num_steps=5)
    accelerator = Accelerator(cpu=True, gradient_accumulation_plugin=plugin)
    assert accelerator.gradient_accumulation_steps == 5


def test_a_malformed_number_of_steps_is_named(monkeypatch) -> None:
    monkeypatch.setenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "many")
    with pytest.raises(ValueError, match="ACCELERATE_GRADIENT_ACCUMULATION_STEPS must be"):
        Accelerator(cpu=True)


def test_precisions_are_the_engines() -> None:
    originals = {str(value) for value in PrecisionType.list()} - {"fp8"}
    assert originals == set(_C.precision_names())


def test_the_port_is_the_one_of_the_program() -> None:
    port = inspect.signature(notebook_launcher).parameters["use_port"].default
    assert port == str(_C.DEFAULT_MAIN_PROCESS_PORT)


def test_warnings_are_errors_in_debug_mode(monkeypatch) -> None:
    with pytest.warns(UserWarning, match="something odd"):
        _debug.warn("something odd")
    monkeypatch.setenv("ACCELERATE_DEBUG_MODE", "1")
    with warnings.catch_warnings(), pytest.raises(UsageError, match="something odd"):
        warnings.simplefilter("error")
        _debug.warn("something odd")


def test_the_state_tells_the_mode(monkeypatch) -> None:
    assert PartialState(cpu=True).debug is False
    PartialState._reset_state()
    monkeypatch.setenv("ACCELERATE_DEBUG_MODE", "true")
    assert PartialState(cpu=True).debug is True
    assert Accelerator(cpu=True)._run.debug is True


def test_the_originals_exception_is_ours() -> None:
    assert DistributedOperationException is MismatchError


def test_processes_in_debug_mode_name_a_mismatch_and_continue(tmp_path) -> None:
    starter = [*ranks.LAUNCH, "--debug"]
    output = ranks.check(ranks.run(starter, tmp_path, "settings/debug_mode.py"))
    assert "checked 0" in output and "checked 1" in output
