# SPDX-License-Identifier: Apache-2.0
"""Runs the Python loop of the README unchanged."""

import pathlib
import re
import shutil
import subprocess
import sys

import pytest

README = pathlib.Path(__file__).resolve().parents[2] / "README.md"


@pytest.fixture
def script(tmp_path):
    (loop,) = re.findall(r"^```py\n(.*?)^```$", README.read_text(), re.MULTILINE | re.DOTALL)
    path = tmp_path / "train.py"
    path.write_text(loop)
    return path


@pytest.mark.parametrize("num_processes", [1, 2])
def test_the_loop_of_the_readme_finds_the_line(script, num_processes):
    program = shutil.which("accelerate")
    assert program is not None, "the program accelerate is not on the PATH"
    launch = [program, "launch", "--cpu", "--num_processes", str(num_processes)]
    answer = subprocess.run(
        [*launch, sys.executable, script], capture_output=True, text=True, timeout=180
    )
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout == "y = 3.00 x + 1.00\n"


def test_a_plain_python_runs_the_loop_too(script):
    answer = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=180)
    assert answer.stdout == "y = 3.00 x + 1.00\n", answer.stderr
