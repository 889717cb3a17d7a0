# SPDX-License-Identifier: Apache-2.0
"""The programs of the pages for newcomers run as they stand, and find the same line."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[2]
LIMIT_SECONDS = 240
LINE = "y = 3.00 x + 1.00\n"


def programs(page: str) -> list[str]:
    text = (ROOT / page).read_text()
    return re.findall(r"^```py\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


[README_LOOP] = programs("README.md")
SCRIPT, *CELLS = programs("docs/start.md")
WITH_DDP, AFTER_DDP = programs("docs/coming_from_ddp.md")
WITH_LIGHTNING, AFTER_LIGHTNING = programs("docs/coming_from_lightning.md")


def output_of(command: list[str], program: str, folder: Path) -> str:
    (folder / "train.py").write_text(program)
    answer = subprocess.run(
        [*command, "train.py"],
        cwd=folder,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return answer.stdout


def on_two_processes() -> list[str]:
    program = shutil.which("accelerate")
    assert program is not None, "the program accelerate is not on the PATH"
    return [program, "launch", "--cpu", "--num_processes", "2"]


def cpp_blocks(page: str) -> list[str]:
    return re.findall(r"^```cpp\n(.*?)^```$", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)


def test_the_start_page_shows_the_loops_of_the_readme():
    # Other tests run the one and compile the other.
    assert SCRIPT == README_LOOP
    assert cpp_blocks("docs/start.md") == cpp_blocks("README.md")


def test_the_cells_of_the_start_page_train_on_two_processes(tmp_path):
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    place = {"metadata": {"path": str(tmp_path)}}
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    NotebookClient(book, timeout=LIMIT_SECONDS, resources=place).execute(env=environment)
    printed = "".join(
        out.text for out in book.cells[-1].outputs if out.get("output_type") == "stream"
    )
    assert LINE in printed


def test_the_ddp_program_finds_the_line(tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    assert output_of([*command, "--nproc_per_node", "2"], WITH_DDP, tmp_path) == LINE


@pytest.mark.parametrize("program", [AFTER_DDP, AFTER_LIGHTNING], ids=["ddp", "lightning"])
def test_what_replaces_a_program_finds_the_line(program, tmp_path):
    assert output_of(on_two_processes(), program, tmp_path) == LINE


def test_the_lightning_program_finds_the_line(tmp_path):
    python = os.environ.get("ACCELERATE_LIBRARIES_PYTHON")
    if (
        not python
        or subprocess.run([python, "-c", "import lightning"], capture_output=True).returncode
    ):
        pytest.skip("[pages] no Python with lightning: `./dev test` installs one")
    # Lightning writes about itself before the line.
    assert output_of([python], WITH_LIGHTNING, tmp_path).endswith(LINE)
