# SPDX-License-Identifier: Apache-2.0
"""The code of docs/tutorial.md runs as it stands, and trains as the original does."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

import nbformat
import pytest
import torch
from nbclient import NotebookClient
from tutorial import recorder

ROOT = Path(__file__).resolve().parents[2]
LIMIT_SECONDS = 300
NUM_EPOCHS = 3

FIRST_LINES = "import recorder\nrecorder.start()\n"
LAST_LINES = "recorder.finish(model)\n"


# --- the page ---------------------------------------------------------------------------------


def blocks(language: str) -> list[str]:
    page = (ROOT / "docs" / "tutorial.md").read_text()
    return re.findall(rf"^```{language}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


def side_of_diff(sign: str) -> str:
    """The text before (-) or after (+) the change."""
    [diff] = blocks("diff")
    lines = diff.splitlines()
    assert all(line[:2] in ("", "  ", "+ ", "- ") for line in lines)
    return "".join(line[2:] + "\n" for line in lines if line[:1] in ("", " ", sign))


DATA, ACCELERATOR, PREPARE, LOOP, NOTEBOOK = blocks("py")
TRAIN = DATA + side_of_diff("+")
PLAIN = DATA + side_of_diff("-")


# --- running it -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Record:
    """What one rank did."""

    losses: list[float]
    weights: str
    pid: int

    def loss_of_epochs(self) -> list[float]:
        length = len(self.losses) // NUM_EPOCHS
        return [mean(self.losses[e * length : (e + 1) * length]) for e in range(NUM_EPOCHS)]


class Desk:
    """A folder with the pretrained model that the tutorial reads, where its programs run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        save_tiny_bert(folder / "bert-base-uncased")
        (folder / "train.py").write_text(FIRST_LINES + TRAIN + LAST_LINES)
        (folder / "plain.py").write_text(FIRST_LINES + PLAIN + LAST_LINES)

    def records_folder(self, name: str) -> Path:
        folder = self.folder / "records" / name
        folder.mkdir(parents=True)
        return folder

    def environment(self, packages: str, **more: str) -> dict[str, str]:
        tests = str(Path(recorder.__file__).parent)
        return {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, (tests, packages))),
            "HF_HOME": str(self.folder / "home"),
            "HF_HUB_OFFLINE": "1",
            "CUDA_VISIBLE_DEVICES": "",
            **more,
        }

    def ours(self, **more: str) -> dict[str, str]:
        return self.environment(os.environ.get("PYTHONPATH", ""), **more)

    def run(self, command: list[str], environment: dict[str, str]) -> str:
        result = subprocess.run(
            command,
            cwd=self.folder,
            env=environment,
            text=True,
            capture_output=True,
            timeout=LIMIT_SECONDS,
        )
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout + result.stderr

    def record(self, command: list[str], environment: dict[str, str], name: str) -> list[Record]:
        """What each rank of a command did."""
        folder = self.records_folder(name)
        self.run(command, {**environment, recorder.FOLDER: str(folder)})
        return read_records(folder)


def read_records(folder: Path) -> list[Record]:
    names = sorted(path.name for path in folder.iterdir())
    assert names == [f"{rank}.json" for rank in range(len(names))]
    return [Record(**json.loads((folder / name).read_text())) for name in names]


def save_tiny_bert(folder: Path) -> None:
    """Without the head, which each process draws; with a little dropout, so that the random
    numbers of a step count too."""
    from transformers import BertConfig, BertModel, BertTokenizer

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words = sorted(set(re.findall(r"[a-z]+", DATA)))
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join(special + words) + "\n")
    BertTokenizer.from_pretrained(folder).save_pretrained(folder)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(special) + len(words),
        hidden_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=512,
        max_position_embeddings=32,
        # Wide weights: the tutorial's small rate changes the answers within its few steps.
        initializer_range=0.1,
        hidden_dropout_prob=0.02,
        attention_probs_dropout_prob=0.02,
    )
    BertModel(config).save_pretrained(folder)


@pytest.fixture(scope="module")
def desk(tmp_path_factory) -> Desk:
    return Desk(tmp_path_factory.mktemp("tutorial"))


@pytest.fixture(scope="module")
def alone(desk) -> Record:
    """The script as one process."""
    [record] = desk.record([sys.executable, "train.py"], desk.ours(), "alone")
    return record


@pytest.fixture(scope="module")
def original(desk) -> Callable[[int], list[Record]]:
    """The script with Hugging Face Accelerate, on one process or several."""
    python = os.environ.get("ACCELERATE_ORACLE_PYTHON")
    known: dict[int, list[Record]] = {}

    def run(num_processes: int) -> list[Record]:
        if python is None:
            pytest.skip("[original] ACCELERATE_ORACLE_PYTHON names no Python with the original")
        if num_processes not in known:
            torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node"]
            launcher = [*torchrun, str(num_processes)] if num_processes > 1 else []
            known[num_processes] = desk.record(
                [python, *launcher, "train.py"],
                desk.environment("", ACCELERATE_USE_CPU="true"),
                f"original-{num_processes}",
            )
        return known[num_processes]

    return run


# --- what must hold ---------------------------------------------------------------------------


def test_the_parts_that_the_page_explains_are_the_parts_of_its_whole():
    assert all(part in TRAIN for part in (*ACCELERATOR.split("\n\n"), PREPARE, LOOP))
    *parts, main = blocks("cpp")
    assert all(part in main for part in parts[1:])
    example = (ROOT / "examples" / "tutorial.cpp").read_text()
    assert example.endswith(parts[0] + "\n" + main)


def test_one_process_trains_as_the_plain_loop_and_the_original_do(desk, alone, original):
    first, _, last = alone.loss_of_epochs()
    assert last < first
    [plain] = desk.record([sys.executable, "plain.py"], desk.ours(), "plain")
    assert alone.weights == plain.weights
    assert [alone.losses, alone.weights] == [original(1)[0].losses, original(1)[0].weights]


def check_two_processes(records: list[Record], alone: Record) -> None:
    assert len(records) == 2
    assert records[0].weights == records[1].weights
    # Both ranks together see the data of one process in half of the steps.
    assert all(len(record.losses) * 2 == len(alone.losses) + 3 for record in records)
    epochs = zip(*(record.loss_of_epochs() for record in records))
    first, _, last = (mean(losses) for losses in epochs)
    assert last < first


def check_as_original(records: list[Record], originals: list[Record]) -> None:
    # Bit for bit: a sum of two numbers does not depend on their order, nor on the bucket they
    # travel in, and the half of it is exact.
    assert [record.losses for record in records] == [record.losses for record in originals]
    assert [record.weights for record in records] == [record.weights for record in originals]


def test_a_configured_launch_trains_on_two_processes_as_the_original_does(desk, alone, original):
    desk.run(["accelerate", "config", "default"], desk.ours())
    assert (desk.folder / "home" / "accelerate" / "default_config.yaml").is_file()
    launch = ["accelerate", "launch", "--cpu", "--num_processes", "2", "train.py"]
    records = desk.record(launch, desk.ours(), "launched")
    check_two_processes(records, alone)
    check_as_original(records, original(2))


BUSY_KERNEL = """
import os, torch
from accelerate import Accelerator
torch.set_num_threads(2)
accelerator = Accelerator()
model = torch.nn.Linear(500, 500)
model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters()))
accelerator.backward(model(torch.randn(500, 500)).square().mean())
optimizer.step()
"""


def test_a_busy_notebook_trains_in_place_and_on_two_processes(desk, alone, original):
    in_place = desk.records_folder("in-place")
    two = desk.records_folder("two")
    function = "def training_function():\n" + textwrap.indent(
        FIRST_LINES + TRAIN + LAST_LINES + "return os.getpid()\n", "    "
    )
    cells = [
        BUSY_KERNEL,
        function,
        f"os.environ['{recorder.FOLDER}'] = '{in_place}'",
        NOTEBOOK,
        f"os.environ['{recorder.FOLDER}'] = '{two}'",
        "rank_0 = notebook_launcher(training_function, num_processes=2)",
        "print(os.getpid(), rank_0)",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    paths = {"metadata": {"path": str(desk.folder)}}
    NotebookClient(notebook, timeout=LIMIT_SECONDS, resources=paths).execute(env=desk.ours())
    kernel, rank_0 = map(int, notebook.cells[-1].outputs[0].text.split())

    [record] = read_records(in_place)
    assert (record.losses, record.weights, record.pid) == (alone.losses, alone.weights, kernel)
    records = read_records(two)
    assert records[0].pid == rank_0 != kernel
    check_two_processes(records, alone)
    check_as_original(records, original(2))
