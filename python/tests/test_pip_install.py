# SPDX-License-Identifier: Apache-2.0
"""`pip install .` into an environment that has torch, and into one that has none."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import textwrap

import pytest
import torch

ROOT = pathlib.Path(__file__).parents[2]
BUILD_SECONDS = 1500
TRAIN = """
    import importlib.metadata
    import torch
    import accelerate
    from accelerate import Accelerator
    assert accelerate.__version__ == importlib.metadata.version("accelerate") == "1.15.0+cpp.0.1.0"
    # sentence-transformers asks for it before it takes the package for Accelerate.
    assert "huggingface" in importlib.metadata.metadata("accelerate")["Home-page"]
    accelerator = Accelerator()
    net = accelerator.prepare(torch.nn.Linear(2, 1))
    accelerator.backward(net(torch.ones(1, 2)).sum() * (1 + accelerator.process_index))
    assert net.weight.grad.tolist() == [[1.5, 1.5]]
    print("installed", accelerator.process_index, accelerate.__file__)
"""


def make_environment(folder: pathlib.Path, with_torch: bool) -> pathlib.Path:
    """A virtual environment; torch and what it needs are links to those of this one."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    site = next(folder.glob("lib/python*/site-packages"))
    source = pathlib.Path(torch.__file__).parents[1]
    for path in source.iterdir() if with_torch else ():
        if not (site / path.name).exists() and "accelerate" not in path.name:
            (site / path.name).symlink_to(path)
    return folder / "bin"


def clean_variables() -> dict[str, str]:
    hidden = ("PYTHONPATH", "ACCELERATE_PYTHON")
    kept = {name: value for name, value in os.environ.items() if name not in hidden}
    # The name by which CMake found the compiler before: ccache knows what it compiled then.
    return {"CXX": "/usr/bin/c++", **kept}


def pip_install(programs: pathlib.Path, *options: str) -> subprocess.CompletedProcess:
    command = [programs / "pip", "install", "--disable-pip-version-check", *options, str(ROOT)]
    variables = clean_variables()
    # Of the user: the registry that pip is set to, and what ccache has compiled.
    variables["HOME"] = os.environ.get("ACCELERATE_TEST_USERS_HOME") or variables["HOME"]
    return subprocess.run(
        command, env=variables, capture_output=True, text=True, timeout=BUILD_SECONDS
    )


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    if os.environ.get("ACCELERATE_DEPS"):
        pytest.skip("pip needs a registry here")
    programs = make_environment(tmp_path_factory.mktemp("pip") / "venv", with_torch=True)
    result = pip_install(programs)
    assert result.returncode == 0, result.stdout + result.stderr
    return programs


def run(programs: pathlib.Path, *command: str, **options) -> str:
    variables = clean_variables()
    variables["PATH"] = f"{programs}{os.pathsep}/usr/bin{os.pathsep}/bin"
    result = subprocess.run(
        command, env=variables, capture_output=True, text=True, timeout=300, **options
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_the_package_trains_with_the_program_that_came_with_it(programs, tmp_path):
    (tmp_path / "train.py").write_text(textwrap.dedent(TRAIN))
    out = run(
        programs, "accelerate", "launch", "--cpu", "--num_processes", "2", "train.py", cwd=tmp_path
    )
    assert f"installed 0 {programs.parent}" in out and "installed 1" in out


def test_the_programs_find_their_libraries(programs):
    assert "Usage: accelerate" in run(programs, "accelerate", "--help")
    assert "ok" in run(programs, "accelerate", "test").lower()


def test_the_other_programs_of_the_original_are_there(programs):
    for name in ("launch", "config", "estimate-memory", "merge-weights"):
        assert f"Usage: accelerate {name} " in run(programs, f"accelerate-{name}", "--help")


def test_types_are_marked_and_the_original_is_replaced(programs):
    site = next(programs.parent.glob("lib/python*/site-packages"))
    assert (site / "accelerate" / "py.typed").exists()
    listed = run(programs, str(programs / "pip"), "list", "--format=freeze")
    assert [line for line in listed.splitlines() if line.startswith("accelerate")] == [
        "accelerate==1.15.0+cpp.0.1.0"
    ]


def test_without_torch_one_sentence_says_so(tmp_path):
    if os.environ.get("ACCELERATE_DEPS"):
        pytest.skip("pip needs a registry here")
    programs = make_environment(tmp_path / "venv", with_torch=False)
    result = pip_install(
        programs, "--no-deps", f"--config-settings=build-dir={tmp_path / 'build'}"
    )
    assert result.returncode != 0
    assert "no torch found in" in result.stderr and "(pip install torch)" in result.stderr
