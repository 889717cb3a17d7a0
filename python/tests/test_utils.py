# SPDX-License-Identifier: Apache-2.0
"""The helpers in `accelerate.utils` and `accelerate.logging` that are pure Python, compared with
the original if possible."""

from __future__ import annotations

import dataclasses
import enum
import gc
import importlib
import json
import logging
import os
import random
import sys
import weakref
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import accelerate
from accelerate import utils
from accelerate.errors import UsageError
from accelerate.logging import get_logger
from accelerate.utils import dataclasses as options
from accelerate.utils import memory
from original import PROGRAMS, originals_python, run_python

ENUMS = [
    "DistributedType",
    "SageMakerDistributedType",
    "FP8BackendType",
    "ComputeEnvironment",
    "DynamoBackend",
    "LoggerType",
    "PrecisionType",
    "RNGType",
    "CustomDtype",
    "DDPCommunicationHookType",
]
OPTIONS = [
    "AutocastKwargs",
    "DistributedDataParallelKwargs",
    "GradScalerKwargs",
    "InitProcessGroupKwargs",
    "ProfileKwargs",
    "DataLoaderConfiguration",
    "ProjectConfiguration",
    "GradientAccumulationPlugin",
]


@pytest.fixture(scope="module")
def described() -> tuple[dict[str, Any], dict[str, Any]]:
    """The original's description and ours."""
    words = (PROGRAMS / "utils/describe.py", json.dumps(ENUMS), json.dumps(OPTIONS))
    original, ours = (
        json.loads(run_python(*words, python=originals_python(), path=path))
        for path in ("", str(Path(accelerate.__file__).parents[1]))
    )
    assert original.pop("file") != ours.pop("file")
    return original, ours


# --- against the original ---------------------------------------------------------------------


@pytest.mark.parametrize("name", ENUMS)
def test_members_values_and_texts_of_an_enum_are_the_originals(described: Any, name: str) -> None:
    original, ours = described
    assert ours["enums"][name] == original["enums"][name]
    assert len(original["enums"][name]) >= 2


@pytest.mark.parametrize("name", OPTIONS)
def test_fields_and_defaults_are_the_originals(described: Any, name: str) -> None:
    original, ours = described
    assert ours["options"][name] == original["options"][name]
    assert ours["instances"][name] == original["instances"][name]
    assert len(original["options"][name]) >= 2


def test_the_description_of_a_tensor_is_the_originals(described: Any) -> None:
    original, ours = described
    assert ours["information"] == original["information"] == ["shape", "dtype"]


def test_probes_answer_as_the_originals_in_the_same_environment(described: Any) -> None:
    original, ours = described
    assert ours["probes"] == original["probes"]
    assert ours["probe_arguments"] == original["probe_arguments"]
    assert len(original["probes"]) > 55
    assert set(original["probes"].values()) == {True, False}


# --- options ----------------------------------------------------------------------------------


def test_to_kwargs_gives_what_differs_from_the_defaults() -> None:
    assert options.GradScalerKwargs().to_kwargs() == {}
    assert options.GradScalerKwargs(growth_interval=10).to_kwargs() == {"growth_interval": 10}
    assert options.InitProcessGroupKwargs(backend="nccl").to_kwargs() == {}
    assert options.DistributedDataParallelKwargs(
        static_graph=True, comm_hook=options.DDPCommunicationHookType.FP16
    ).to_kwargs() == {"static_graph": True}


def test_to_kwargs_leaves_the_environment_of_the_process_alone(monkeypatch: Any) -> None:
    # A thread in C that reads a variable meanwhile would end the process.
    def change(*arguments: Any) -> None:
        raise AssertionError(arguments)

    with monkeypatch.context() as patched:
        for name in ("putenv", "unsetenv"):
            patched.setattr(os, name, change)
        assert options.GradScalerKwargs(growth_interval=10).to_kwargs() == {"growth_interval": 10}


def test_to_kwargs_takes_defaults_without_the_environment(monkeypatch: Any) -> None:
    @dataclasses.dataclass
    class Plugin(options.KwargsHandler):
        mode: str = dataclasses.field(default_factory=lambda: os.environ.get("PLUGIN_MODE", "a"))

    monkeypatch.setenv("PLUGIN_MODE", "fast")
    assert Plugin().to_kwargs() == {"mode": "fast"}
    assert os.environ["PLUGIN_MODE"] == "fast"


def test_to_dict_is_a_copy() -> None:
    handler = options.ProfileKwargs(schedule_option={"wait": 1})
    handler.to_dict()["schedule_option"]["wait"] = 2
    assert handler.schedule_option == {"wait": 1}


def test_the_timeout_of_a_group_depends_on_its_backend() -> None:
    assert options.InitProcessGroupKwargs().timeout == timedelta(seconds=600)
    assert options.InitProcessGroupKwargs(backend="gloo").timeout == timedelta(seconds=1800)
    assert options.InitProcessGroupKwargs(timeout=timedelta(seconds=5)).timeout.seconds == 5


def test_logs_go_to_the_project_folder_by_default() -> None:
    assert options.ProjectConfiguration("a").logging_dir == "a"
    assert options.ProjectConfiguration("a", "b").logging_dir == "b"
    configuration = options.ProjectConfiguration()
    configuration.set_directories("c")
    assert (configuration.project_dir, configuration.logging_dir) == ("c", "c")


def test_a_profiler_is_built_from_its_fields() -> None:
    with options.ProfileKwargs(activities=["cpu"], record_shapes=True).build() as profile:
        torch.ones(2, 3).sum()
    (event,) = [e for e in profile.key_averages(group_by_input_shape=True) if e.key == "aten::sum"]
    assert event.input_shapes[0] == [2, 3]
    with pytest.raises(ValueError, match=r"\[ProfileKwargs\] activity is 'gpu', expected one of"):
        options.ProfileKwargs(activities=["gpu"]).build()


def test_an_enum_takes_values_and_refuses_others() -> None:
    assert options.PrecisionType("fp16") is options.PrecisionType.FP16
    assert "fp16" in options.PrecisionType and "fp17" not in options.PrecisionType
    assert options.LoggerType.list()[:2] == ["all", "aim"]
    assert json.dumps(options.DistributedType.MULTI_CPU) == '"MULTI_CPU"'
    assert issubclass(options.DistributedType, enum.Enum)


# --- environment and versions -----------------------------------------------------------------


def test_texts_for_yes_and_no() -> None:
    assert [utils.str_to_bool(t) for t in ("y", "YES", "t", "True", "on", "1")] == [1] * 6
    assert [utils.str_to_bool(t) for t in ("n", "no", "F", "false", "OFF", "0")] == [0] * 6
    assert utils.str_to_bool("on", to_bool=True) is True
    assert utils.str_to_bool("off", to_bool=True) is False
    with pytest.raises(
        ValueError, match=r"\[str_to_bool\] value is 'maybe', expected one of y, yes"
    ):
        utils.str_to_bool("maybe")


def test_variables_are_read_with_their_defaults(monkeypatch: Any) -> None:
    monkeypatch.setenv("FIRST", "-3")
    monkeypatch.setenv("SECOND", "0")
    monkeypatch.delenv("NONE_SUCH", raising=False)
    assert utils.get_int_from_env(["NONE_SUCH", "FIRST", "SECOND"], 7) == 0
    assert utils.get_int_from_env(["FIRST"], 7) == 7
    assert utils.parse_flag_from_env("SECOND", True) is False
    assert utils.parse_flag_from_env("NONE_SUCH", True) is True
    assert utils.parse_choice_from_env("FIRST") == "-3"
    assert utils.parse_choice_from_env("NONE_SUCH", None) == "None"
    monkeypatch.setenv("FIRST", "two")
    with pytest.raises(ValueError, match="FIRST is 'two', expected an integer"):
        utils.get_int_from_env(["FIRST"], 7)


def test_a_patched_environment_is_restored_after_an_error(monkeypatch: Any) -> None:
    monkeypatch.setenv("KEPT", "before")
    monkeypatch.delenv("ADDED", raising=False)
    with pytest.raises(KeyError), utils.patch_environment(kept=1, added=True):
        assert (os.environ["KEPT"], os.environ["ADDED"]) == ("1", "True")
        raise KeyError
    assert os.environ["KEPT"] == "before"
    assert "ADDED" not in os.environ


def test_a_cleared_environment_is_restored_after_an_error(monkeypatch: Any) -> None:
    monkeypatch.setenv("KEPT", "before")
    before = dict(os.environ)
    with pytest.raises(KeyError), utils.clear_environment():
        assert not os.environ
        os.environ["ADDED"] = "1"
        raise KeyError
    assert dict(os.environ) == before


def test_versions_are_compared_as_versions() -> None:
    assert utils.compare_versions("pytest", ">", "1.2")
    assert not utils.compare_versions("pytest", "<=", "1.2")
    from packaging.version import parse

    assert utils.compare_versions(parse("1.10"), ">", "1.9")
    assert utils.is_torch_version(">=", "2.11")
    assert not utils.is_torch_version("<", "2.9.1")
    with pytest.raises(ValueError, match=r"operation is '~', expected one of >, >=, =="):
        utils.is_torch_version("~", "2")


def test_a_folder_of_a_packages_name_is_not_the_package(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "wandb").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert importlib.util.find_spec("wandb") is not None
    assert not utils.is_wandb_available()


# --- a stand-in for the state of rank 1 of 2 -------------------------------------------------


class SecondOfTwo:
    """What `PartialState()` is in the second of two processes, noting when it waits."""

    _shared_state = {"made": True}
    process_index = local_process_index = 1
    num_processes = 2
    is_main_process = False
    waits: list[int] = []

    def wait_for_everyone(self) -> None:
        self.waits.append(len(RECORDS))


RECORDS: list[logging.LogRecord] = []


@pytest.fixture
def second_of_two(monkeypatch: Any) -> Iterator[type[SecondOfTwo]]:
    monkeypatch.setattr("accelerate.state.PartialState", SecondOfTwo)
    monkeypatch.setattr(SecondOfTwo, "waits", [])
    yield SecondOfTwo


class Recorder(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        RECORDS.append(record)


@pytest.fixture
def logger(second_of_two: Any) -> Iterator[Any]:
    adapter = get_logger("accelerate_test_logger")
    recorder = Recorder()
    adapter.logger.addHandler(recorder)
    RECORDS.clear()
    yield adapter
    adapter.logger.removeHandler(recorder)


# --- logging ----------------------------------------------------------------------------------


def test_only_the_main_process_logs_unless_all_shall(logger: Any) -> None:
    logger.warning("hidden")
    assert RECORDS == []
    logger.warning("seen %d", 3, main_process_only=False)
    assert RECORDS[0].getMessage() == "[RANK 1] seen 3"


def test_in_order_each_process_logs_in_its_turn(logger: Any, second_of_two: Any) -> None:
    logger.error("mine", in_order=True)
    assert [r.getMessage() for r in RECORDS] == ["[RANK 1] mine"]
    assert second_of_two.waits == [0, 1]  # once before it wrote, once after


def test_no_wait_happens_for_a_level_that_is_off(logger: Any, second_of_two: Any) -> None:
    logger.debug("nothing", in_order=True)
    assert (RECORDS, second_of_two.waits) == ([], [])


def test_a_warning_once_is_written_once_for_the_same_text(logger: Any) -> None:
    for text in ("a", "b", "a"):
        logger.warning_once(text, main_process_only=False)
    assert [r.getMessage() for r in RECORDS] == ["[RANK 1] a", "[RANK 1] b"]


def test_the_reported_line_is_the_callers(logger: Any) -> None:
    logger.warning("x", main_process_only=False)
    logger.warning_once("y", main_process_only=False)
    assert [r.funcName for r in RECORDS] == ["test_the_reported_line_is_the_callers"] * 2


def test_a_message_before_there_is_a_state_is_an_error(logger: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(SecondOfTwo, "_shared_state", {})
    with pytest.raises(RuntimeError, match=r"\[get_logger\].*Create `Accelerator\(\)`"):
        logger.warning("early")


def test_the_level_comes_from_the_argument_then_from_the_environment(monkeypatch: Any) -> None:
    root = logging.getLogger()
    monkeypatch.setattr(root, "level", root.level)
    monkeypatch.setenv("ACCELERATE_LOG_LEVEL", "error")
    assert get_logger("accelerate_level_1").logger.level == logging.ERROR
    assert get_logger("accelerate_level_2", log_level="debug").logger.level == logging.DEBUG
    assert root.level == logging.DEBUG


# --- progress bars ----------------------------------------------------------------------------


def test_a_progress_bar_is_silent_on_the_second_process(second_of_two: Any, capsys: Any) -> None:
    assert list(utils.tqdm(range(3))) == [0, 1, 2]
    assert capsys.readouterr().err == ""
    assert list(utils.tqdm(range(3), main_process_only=False)) == [0, 1, 2]
    assert "3/3" in capsys.readouterr().err
    assert utils.tqdm(range(3), main_process_only=False, disable=True).disable


def test_a_progress_bar_rejects_a_flag_instead_of_the_items() -> None:
    with pytest.raises(ValueError, match=r"\[tqdm\] The first argument is True"):
        utils.tqdm(True, range(3))


# --- seeds ------------------------------------------------------------------------------------


def draws() -> tuple[float, float, float]:
    import numpy

    return random.random(), float(numpy.random.rand()), float(torch.rand(()))


def test_a_seed_fixes_python_numpy_and_torch() -> None:
    import numpy

    utils.set_seed(42)
    seeded = draws()
    random.seed(42)
    numpy.random.seed(42)
    torch.manual_seed(42)
    assert seeded == draws()


@pytest.mark.parametrize(
    ("seed", "sentence"),
    [
        ("42", "seed is '42' (str). Pass an int"),
        (3.5, "seed is 3.5 (float). Pass an int"),
        (None, "seed is None (NoneType). Pass an int"),
        (-1, "seed is -1. Pass an int from 0 to 2**32 - 1"),
        (2**32, "seed is 4294967296. Pass an int from 0 to 2**32 - 1"),
    ],
)
def test_a_seed_that_is_no_whole_number_changes_no_generator(seed: Any, sentence: str) -> None:
    utils.set_seed(42)
    expected = draws()
    utils.set_seed(42)
    with pytest.raises(UsageError) as raised:
        utils.set_seed(seed)
    assert str(raised.value) == f"[set_seed] {sentence}"
    assert draws() == expected


def test_a_device_specific_seed_adds_the_process_index(second_of_two: Any) -> None:
    utils.set_seed(41, device_specific=True)
    second = draws()
    utils.set_seed(42)
    assert second == draws()


def test_deterministic_algorithms_are_asked_for_only_on_request() -> None:
    try:
        utils.set_seed(1)
        assert not torch.are_deterministic_algorithms_enabled()
        utils.set_seed(1, deterministic=True)
        assert torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(False)


# --- memory -----------------------------------------------------------------------------------


def out_of_memory() -> RuntimeError:
    return RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")


def test_the_batch_size_shrinks_by_a_tenth_until_it_fits_and_is_remembered() -> None:
    sizes = []

    @utils.find_executable_batch_size(starting_batch_size=10)
    def train(batch_size: int, limit: int, *, name: str) -> tuple[int, str]:
        sizes.append(batch_size)
        if batch_size > limit:
            raise out_of_memory()
        return batch_size, name

    assert train(7, name="a") == (7, "a")
    assert sizes == [10, 9, 8, 7]
    assert train(limit=7, name="b") == (7, "b")
    assert sizes == [10, 9, 8, 7, 7]


def test_a_rule_of_ones_own_gives_the_next_batch_size() -> None:
    steps = iter([4, 2])

    @utils.find_executable_batch_size(
        starting_batch_size=8, reduce_batch_size_fn=lambda: next(steps)
    )
    def train(batch_size: int) -> int:
        if batch_size > 2:
            raise out_of_memory()
        return batch_size

    assert train() == 2


def test_at_zero_there_is_no_batch_size() -> None:
    @utils.find_executable_batch_size(starting_batch_size=2)
    def train(batch_size: int) -> None:
        raise out_of_memory()

    with pytest.raises(RuntimeError, match="No executable batch size found, reached zero"):
        train()


def test_other_errors_pass_at_once() -> None:
    calls = []

    @utils.find_executable_batch_size
    def train(batch_size: int) -> None:
        calls.append(batch_size)
        raise RuntimeError("shapes differ")

    with pytest.raises(RuntimeError, match="shapes differ"):
        train()
    assert calls == [128]


def test_passing_the_batch_size_oneself_is_explained() -> None:
    @utils.find_executable_batch_size(starting_batch_size=16)
    def train(batch_size: int, model: str) -> None: ...

    with pytest.raises(TypeError, match=r"takes at most 1 arguments, .* Call train\(model\)"):
        train(128, "model")

    @utils.find_executable_batch_size(starting_batch_size=16)
    def flexible(batch_size: int, *models: str) -> tuple[str, ...]:
        return models

    assert flexible("a", "b", "c") == ("a", "b", "c")


def test_what_a_failed_attempt_held_is_gone_before_the_next() -> None:
    alive: list[Any] = []

    @utils.find_executable_batch_size(starting_batch_size=10)
    def train(batch_size: int) -> list[bool]:
        if batch_size == 10:
            held = torch.ones(3)
            alive.append(weakref.ref(held))
            raise out_of_memory()
        return [reference() is not None for reference in alive]

    assert train() == [False]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (RuntimeError("CUDA out of memory. Tried to allocate"), True),
        (torch.OutOfMemoryError("HIP out of memory. Tried to allocate"), True),
        (RuntimeError("MPS backend out of memory (MPS allocated"), True),
        (RuntimeError("cuDNN error: CUDNN_STATUS_NOT_SUPPORTED. This error"), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), True),
        (RuntimeError("size mismatch"), False),
        (ValueError("CUDA out of memory. Tried to allocate"), False),
        (RuntimeError("CUDA out of memory. Tried", 2), False),
    ],
)
def test_errors_that_mean_that_memory_was_too_small(error: Exception, expected: bool) -> None:
    assert memory.should_reduce_batch_size(error) is expected


def test_releasing_gives_as_many_nones_and_collects_garbage() -> None:
    class Cycle:
        def __init__(self) -> None:
            self.itself = self

    gc.disable()
    try:
        reference = weakref.ref(Cycle())
        assert reference() is not None
        a, b = utils.release_memory(torch.ones(1), torch.ones(2))
        assert (a, b, reference()) == (None, None, None)
    finally:
        gc.enable()


def test_the_old_memory_module_says_where_things_are() -> None:
    sys.modules.pop("accelerate.memory_utils", None)
    with pytest.warns(FutureWarning, match="from accelerate import find_executable_batch_size"):
        importlib.import_module("accelerate.memory_utils")


# --- unwrapping -------------------------------------------------------------------------------


def test_a_module_that_nothing_wraps_is_itself() -> None:
    model = torch.nn.Linear(2, 2)
    assert utils.extract_model_from_parallel(model) is model


def test_containers_come_off_in_any_nesting() -> None:
    model = torch.nn.Linear(2, 2)
    wrapped = torch.nn.DataParallel(torch.nn.DataParallel(model))
    assert utils.extract_model_from_parallel(wrapped) is model


def test_a_compiled_module_stays_compiled_unless_asked() -> None:
    model = torch.nn.Linear(2, 2)
    compiled = torch.compile(torch.nn.DataParallel(model))
    assert utils.extract_model_from_parallel(compiled, keep_torch_compile=False) is model
    assert utils.extract_model_from_parallel(compiled) is compiled
    assert compiled._orig_mod is model
    inside = torch.nn.DataParallel(compiled)
    assert utils.extract_model_from_parallel(inside) is compiled
    assert utils.extract_model_from_parallel(inside, keep_torch_compile=False) is model


def test_children_are_unwrapped_on_request() -> None:
    child = torch.nn.Linear(2, 2)
    model = torch.nn.Sequential(torch.nn.Sequential(torch.nn.DataParallel(child)))
    assert utils.extract_model_from_parallel(model)[0][0] is not child
    assert utils.extract_model_from_parallel(model, recursive=True)[0][0] is child
