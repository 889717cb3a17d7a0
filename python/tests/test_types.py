# SPDX-License-Identifier: Apache-2.0
"""What a type checker says of the stubs, of the commands and of a user's program."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import accelerate
import pytest
from original import PROGRAMS, ROOT

PACKAGE = Path(accelerate.__file__).parent

MISUSE = (PROGRAMS / "types/misuse.py").read_text()


@pytest.fixture(scope="module")
def complaints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[int, str]]:
    """What mypy says, by file and line: one run for all, as it reads the package each time."""
    if importlib.util.find_spec("mypy") is None:
        pytest.skip(f"[types] no mypy beside {sys.executable}: `./dev test` installs it")
    folder = tmp_path_factory.mktemp("types")
    readme = (ROOT / "README.md").read_text()
    (loop,) = re.findall(r"^```py\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL)
    (folder / "loop.py").write_text(loop)
    (folder / "misuse.py").write_text(MISUSE)
    files = [path.relative_to(PACKAGE.parent) for path in (PACKAGE / "commands").rglob("*.py")]
    checked = [
        "loop",
        "misuse",
        "accelerate",
        "accelerate._C",
        "accelerate.utils",
        *(".".join(path.with_suffix("").parts).removesuffix(".__init__") for path in files),
    ]
    result = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", ROOT / "pyproject.toml"]
        + ["--cache-dir", "cache", "--no-error-summary"]
        + [word for name in checked for word in ("-m", name)],
        cwd=folder,
        env={"MYPYPATH": f"{folder}:{PACKAGE.parent}", "PATH": "/usr/bin"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode in (0, 1), result.stderr
    found: dict[str, dict[int, str]] = {}
    for line in result.stdout.splitlines():
        if match := re.match(r"(.+?):(\d+): error: (.*)", line):
            found.setdefault(Path(match[1]).name, {})[int(match[2])] = match[3]
    return found


def test_the_stubs_and_the_commands_pass(complaints: dict[str, dict[int, str]]) -> None:
    others = {path: lines for path, lines in complaints.items() if path != "misuse.py"}
    others.pop("loop.py", None)
    assert others == {}


def test_the_loop_of_the_readme_passes(complaints: dict[str, dict[int, str]]) -> None:
    assert "loop.py" not in complaints, complaints["loop.py"]


def test_mistakes_of_a_program_are_found(complaints: dict[str, dict[int, str]]) -> None:
    expected = {
        number: line.split("  # ")[1]
        for number, line in enumerate(MISUSE.splitlines(), 1)
        if "  # " in line
    }
    told = complaints.get("misuse.py", {})
    assert told.keys() == expected.keys(), told
    for number, words in expected.items():
        assert words in told[number], told[number]
