# SPDX-License-Identifier: Apache-2.0
"""ruff finds no mistakes in Python sources, nor in the programs of the tests, and formats the sources
that ./dev format formats as they are.

The section [tool.ruff] of pyproject.toml lists the rules.
"""
import os
import pathlib
import subprocess
import sys

FOLDERS = ("benchmarks", "examples", "python", "tests", "tools")
FORMATTED = ("examples", "python")

# `./dev test` installs ruff into the environment of this Python, beside mypy.
python = os.environ.get("ACCELERATE_TEST_PYTHON")
if not python:
    print("skipped: ACCELERATE_TEST_PYTHON is not set; ./dev test sets it")
    sys.exit(77)
if subprocess.run([python, "-m", "ruff", "--version"], capture_output=True).returncode != 0:
    if os.environ.get("ACCELERATE_DEPS"):
        print(f"skipped: {python} has no ruff, which ./dev deps does not download")
        sys.exit(77)
    sys.exit(f"{python} has no ruff. ./dev test installs it")

files = sum(1 for folder in FOLDERS for _ in pathlib.Path(folder).rglob("*.py"))
assert files > 300, f"only {files} Python files"
for command, folders, remedy in (
        (("check",), FOLDERS, "correct these mistakes"),
        (("format", "--check"), FORMATTED, "run ./dev format")):
    # Without ignore files: a tree from an archive has no repository.
    answer = subprocess.run(
        [python, "-m", "ruff", *command, "--no-cache", "--no-respect-gitignore",
         "--output-format=concise", *folders],
        capture_output=True, text=True)
    if answer.returncode != 0:
        sys.exit(f"{answer.stdout}{answer.stderr}\n{remedy}")
print(f"{files} files have no mistakes that ruff finds")
