# SPDX-License-Identifier: Apache-2.0
"""Every module and name of the original can be imported; unsupported ones raise when they are used,
not before. The original itself provides the list of names."""

from __future__ import annotations

import abc
import copy
import importlib
import importlib.util
import inspect
import json
import os
import pickle
import re
import subprocess
import sys
import typing
import warnings
from pathlib import Path

import accelerate
import pytest
from accelerate._placeholders import Placeholder, _table, names_of
from original import PROGRAMS, ROOT, originals_python, run_python

PACKAGE = Path(accelerate.__file__).parent
VERSION = accelerate.__version__
SENTENCE = rf"^accelerate[\w.]+ is not supported in accelerate {re.escape(VERSION)}\. [^\n]*$"

# Run by the original's Python: lists its public names as imported. Scripts are skipped, because
# importing them runs them.
LIST_ORIGINAL = "names/list_original.py"


@pytest.fixture
def hook() -> typing.Any:
    return Placeholder("accelerate.hooks", "AlignDevicesHook")


# --- which names ------------------------------------------------------------------------------


def test_every_name_that_an_import_of_the_original_gives_can_be_imported() -> None:
    originals = json.loads(run_python(PROGRAMS / LIST_ORIGINAL, python=originals_python()))
    assert len(originals) > 80 and len(originals["accelerate.utils"]) > 230
    missing = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        for module, names in originals.items():
            ours = importlib.import_module(module)
            missing += [f"{module}.{name}" for name in names if not hasattr(ours, name)]
    assert missing == []


def test_every_name_of_the_table_can_be_imported() -> None:
    missing = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        for module in _table():
            ours = importlib.import_module(module)
            missing += [f"{module}.{name}" for name in names_of(module) if not hasattr(ours, name)]
    assert missing == []


def test_the_table_is_what_the_tool_writes() -> None:
    tool = ROOT / "tools" / "list_original_names.py"
    code = f"import runpy; runpy.run_path({str(tool)!r}, run_name='__main__')"
    written = run_python("-c", code, python=originals_python())
    assert written == (PACKAGE / "_original_names.txt").read_text()


def test_a_name_behind_an_optional_package_can_be_imported() -> None:
    from accelerate.utils import DeepSpeedSchedulerWrapper, _filter_args, megatron_lm_initialize
    from accelerate.utils.deepspeed import HfDeepSpeedConfig

    assert megatron_lm_initialize.__module__ == "accelerate.utils.megatron_lm"
    assert megatron_lm_initialize.__name__ == "initialize"
    assert None not in (DeepSpeedSchedulerWrapper, _filter_args, HfDeepSpeedConfig)


@pytest.mark.parametrize("module", ["accelerate", "accelerate.utils", "accelerate.commands.menu"])
def test_a_name_that_the_original_does_not_have_is_an_ordinary_error(module: str) -> None:
    with pytest.raises(ImportError, match="cannot import name 'gather_all_the_things'"):
        exec(f"from {module} import gather_all_the_things")
    with pytest.raises(AttributeError, match=f"module '{module}' has no attribute 'nothing'"):
        _ = importlib.import_module(module).nothing
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(f"{module}.nothing")


def test_one_name_is_one_thing_wherever_it_is_imported_from() -> None:
    import accelerate.big_modeling
    import accelerate.hooks
    import accelerate.tracking
    import accelerate.utils.dataclasses

    assert accelerate.big_modeling.add_hook_to_module is accelerate.hooks.add_hook_to_module
    assert accelerate.tracking.LoggerType is accelerate.utils.dataclasses.LoggerType
    assert accelerate.DistributedType is accelerate.utils.DistributedType


def test_a_submodule_is_an_attribute_without_being_imported() -> None:
    code = "import accelerate; print(accelerate.commands.menu.input.register)"
    assert "accelerate.commands.menu.input.register" in run_python(
        "-c", code, path=str(PACKAGE.parent)
    )


@pytest.mark.parametrize("first", ["from accelerate.utils.tqdm import tqdm", "pass"])
def test_tqdm_is_the_function_although_a_module_has_its_name(first: str) -> None:
    code = f"{first}\nimport accelerate.utils.tqdm, accelerate.utils as u; print(type(u.tqdm))"
    assert run_python("-c", code, path=str(PACKAGE.parent)) == "<class 'function'>\n"


def test_a_star_import_brings_the_names_and_dir_lists_them() -> None:
    scope: dict[str, typing.Any] = {}
    exec("from accelerate import *", scope)
    assert {"Accelerator", "dispatch_model", "DistributedType"} <= scope.keys()
    assert {"Accelerator", "__version__"} <= set(dir(accelerate))
    assert "gather_object" in dir(accelerate.utils)
    assert "AlignDevicesHook" in dir(accelerate.hooks)


def test_a_real_module_has_placeholders_for_the_names_that_it_lacks() -> None:
    import accelerate.utils.environment as environment

    assert environment.str_to_bool("yes") == 1
    assert isinstance(environment.set_numa_affinity, Placeholder)


def test_import_needs_no_torch() -> None:
    code = "import sys, accelerate, accelerate.utils; print('torch' in sys.modules)"
    assert run_python("-c", code, path=str(PACKAGE.parent)) == "False\n"


def test_the_version_is_one_literal_that_the_build_can_read() -> None:
    text = (PACKAGE / "__init__.py").read_text()
    assert re.findall(r'(?m)^__version__ = "([^"]+)"$', text) == [VERSION]
    assert accelerate.__version__ == VERSION


def test_stubs_name_only_what_the_original_has() -> None:
    names = re.findall(r" as (\w+)", (PACKAGE / "__init__.pyi").read_text())
    assert len(names) > 10
    assert set(names) <= set(names_of("accelerate"))


# --- what a placeholder does ------------------------------------------------------------------


def test_a_call_raises_the_sentence(hook: typing.Any) -> None:
    with pytest.raises(NotImplementedError, match=SENTENCE) as error:
        hook(1, two=2)
    assert str(error.value).startswith("accelerate.hooks.AlignDevicesHook is not supported")


def test_a_subclass_raises_the_sentence_even_with_other_bases(hook: typing.Any) -> None:
    with pytest.raises(NotImplementedError, match="AlignDevicesHook is not supported"):

        class Mine(hook):
            pass

    with pytest.raises(NotImplementedError, match=SENTENCE):

        class Other(abc.ABC, hook):
            pass


def test_reading_or_changing_an_attribute_raises_the_sentence(hook: typing.Any) -> None:
    with pytest.raises(NotImplementedError, match=SENTENCE):
        _ = hook._shared_state
    with pytest.raises(NotImplementedError, match=SENTENCE):
        hook.name = 1


@pytest.mark.parametrize(
    "use",
    [
        lambda value: os.path.join("folder", value),
        lambda value: f"{value}.json",
        lambda value: "x" in value,
        lambda value: list(value),
        lambda value: bool(value),
        lambda value: value == "model.safetensors",
        lambda value: value + ".json",
        lambda value: "x" + value,
        lambda value: value[0],
        lambda value: value.upper(),
        lambda value: len(value),
    ],
)
def test_whatever_depends_on_a_missing_constant_raises_the_sentence(use: typing.Any) -> None:
    from accelerate.commands.menu.helpers import TERMINAL_WIDTH

    with pytest.raises(NotImplementedError, match=SENTENCE):
        use(TERMINAL_WIDTH)


def test_questions_of_libraries_are_answered(hook: typing.Any) -> None:
    assert not isinstance(1, hook)
    assert isinstance(1, (hook, int))
    assert not issubclass(int, hook)
    assert not hasattr(hook, "__wrapped__")
    assert not hasattr(hook, "__torch_function__")
    assert not hasattr(hook, "anything") and getattr(hook, "anything", 3) == 3
    assert callable(hook) and hook
    assert hook == hook and hook in {hook}
    assert inspect.unwrap(hook) is hook
    assert str(inspect.signature(hook)) == "(*args: 'Any', **kwargs: 'Any') -> 'NoReturn'"
    assert "AlignDevicesHook" in repr(hook) and "AlignDevicesHook" in f"{hook}"
    assert inspect.getmodule(hook).__name__ == "accelerate.hooks"


def test_annotations_may_name_a_placeholder(hook: typing.Any) -> None:
    from accelerate.utils.dataclasses import ProfilerActivity

    assert typing.Optional[hook] == typing.Union[hook, None] == (hook | None) == (None | hook)
    assert typing.Optional[ProfilerActivity] is not None
    assert list[hook].__args__ == (hook,)

    def function(argument: hook | None = None) -> dict[str, hook]: ...

    assert set(typing.get_type_hints(function, localns={"hook": hook})) == {"argument", "return"}


def test_an_exception_that_is_not_there_can_be_named_in_except_and_in_filters() -> None:
    from accelerate.test_utils.testing import SubprocessCallException

    with pytest.raises(KeyError):
        try:
            raise KeyError
        except SubprocessCallException:
            pytest.fail("nobody raises it")
    with pytest.raises(NotImplementedError, match=r"SubprocessCallException is not supported"):
        SubprocessCallException("text")
    with pytest.raises(NotImplementedError, match=r"SubprocessCallException is not supported"):
        type("Mine", (SubprocessCallException,), {})


def test_pickles_and_copies_are_the_name_itself() -> None:
    from accelerate.commands.menu.input import register

    cloudpickle = pytest.importorskip("cloudpickle")
    for pickled in (pickle.dumps(register), cloudpickle.dumps(register)):
        assert pickle.loads(pickled) is register
    assert copy.deepcopy(register) is register


def test_a_name_of_a_missing_module_can_be_replaced() -> None:
    import accelerate.big_modeling

    kept = accelerate.big_modeling.check_device_map
    try:
        accelerate.big_modeling.check_device_map = len
        assert accelerate.big_modeling.check_device_map is len
    finally:
        accelerate.big_modeling.check_device_map = kept


def test_python_dash_m_of_a_missing_module_prints_the_sentence() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "accelerate.commands.menu.input"],
        env={**os.environ, "PYTHONPATH": str(PACKAGE.parent)},
        text=True,
        capture_output=True,
        timeout=300,
    )
    assert result.returncode == 1
    assert "accelerate.commands.menu.input is not supported" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_file_replaces_the_placeholders_of_its_module() -> None:
    spec = importlib.util.find_spec("accelerate.utils.versions")
    assert spec is not None and spec.origin == str(PACKAGE / "utils" / "versions.py")
    assert not isinstance(accelerate.utils.compare_versions, Placeholder)


# --- transformers -----------------------------------------------------------------------------


def test_transformers_finds_the_package_and_a_model_goes_to_disk_and_back(tmp_path: Path) -> None:
    metadata = tmp_path / f"accelerate-{VERSION}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: accelerate\nVersion: {VERSION}\n"
    )
    path = os.pathsep.join([str(tmp_path), str(PACKAGE.parent)])
    result = run_python(PROGRAMS / "names/use_transformers.py", str(tmp_path / "model"), path=path)
    assert result.split() == [VERSION, str(PACKAGE / "__init__.py")]
