# SPDX-License-Identifier: Apache-2.0
"""The code of docs/tutorial.md runs as it stands, and trains as the original does."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

import nbformat
import pytest
import torch
from nbclient import NotebookClient
from original import PROGRAMS, originals_python
from ranks import RankServer
from tutorial import recorder

ROOT = Path(__file__).resolve().parents[2]
LIMIT_SECONDS = 300
NUM_EPOCHS = 3
# What takes long to import.
MODULES = ["accelerate", "transformers.models.bert.modeling_bert"]

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

    def ours(self) -> dict[str, str]:
        entries = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        # The programs run in another folder than the tests.
        return self.environment(os.pathsep.join(map(os.path.abspath, filter(None, entries))))

    def run(self, command: list[str], environment: dict[str, str]) -> None:
        result = subprocess.run(
            command,
            cwd=self.folder,
            env=environment,
            text=True,
            capture_output=True,
            timeout=LIMIT_SECONDS,
        )
        assert result.returncode == 0, result.stdout + result.stderr

    def record(self, command: list[str], environment: dict[str, str], name: str) -> list[Record]:
        """What each rank of a command did."""
        folder = self.records_folder(name)
        self.run(command, {**environment, recorder.FOLDER: str(folder)})
        return read_records(folder)

    @functools.cached_property
    def forks_ours(self) -> RankServer:
        """What starts the script where the start is not what is looked at."""
        return RankServer(sys.executable, MODULES, **self.ours())

    @functools.cached_property
    def forks_originals(self) -> RankServer:
        return RankServer(originals_python(), MODULES, **self.environment(""))

    def fork(
        self, server: RankServer, script: str, name: str, num_ranks: int = 1, **variables: str
    ) -> list[Record]:
        """What each rank of a script did."""
        folder = self.records_folder(name)
        codes, output = server.start(
            self.folder / script,
            self.folder,
            num_ranks=num_ranks,
            **{recorder.FOLDER: str(folder), **variables},
        )
        assert not any(codes), output
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
def alone(desk) -> list[Record]:
    """The script as one process."""
    return desk.fork(desk.forks_ours, "train.py", "alone")


@pytest.fixture(scope="module")
def launched(desk) -> list[Record]:
    """The script as the tutorial configures and launches it, on two processes."""
    desk.run(["accelerate", "config", "default"], desk.ours())
    assert (desk.folder / "home" / "accelerate" / "default_config.yaml").is_file()
    launch = ["accelerate", "launch", "--cpu", "--num_processes", "2", "train.py"]
    return desk.record(launch, desk.ours(), "launched")


@dataclass(frozen=True)
class NotebookRun:
    kernel_pid: int
    in_place: list[Record]
    on_two: list[Record]
    # What the launcher gave back: the function returns its process.
    returned_pids: list[int]


@pytest.fixture(scope="module")
def notebook(desk) -> NotebookRun:
    """The training as a function in a Jupyter kernel: as the tutorial calls it, then on two."""
    in_place = desk.records_folder("in-place")
    on_two = desk.records_folder("on-two")
    body = FIRST_LINES + TRAIN + LAST_LINES + "return os.getpid()\n"
    cells = [
        (PROGRAMS / "tutorial/busy.py").read_text(),
        "def training_function():\n" + textwrap.indent(body, "    "),
        f"os.environ['{recorder.FOLDER}'] = '{in_place}'",
        NOTEBOOK,
        f"os.environ['{recorder.FOLDER}'] = '{on_two}'",
        "pid = notebook_launcher(training_function, num_processes=2)",
        "print(os.getpid(), pid)",
    ]
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    place = {"metadata": {"path": str(desk.folder)}}
    NotebookClient(book, timeout=LIMIT_SECONDS, resources=place).execute(env=desk.ours())
    kernel_pid, pid_of_two = map(int, book.cells[-1].outputs[0].text.split())
    [answer] = [out for out in book.cells[3].outputs if out.output_type == "execute_result"]
    pid_in_place = int(answer.data["text/plain"])
    return NotebookRun(
        kernel_pid, read_records(in_place), read_records(on_two), [pid_in_place, pid_of_two]
    )


@pytest.fixture(scope="module")
def original_alone(desk) -> list[Record]:
    """The script with Hugging Face Accelerate, as one process."""
    return desk.fork(desk.forks_originals, "train.py", "original-alone")


@pytest.fixture(scope="module")
def original_on_two(desk) -> list[Record]:
    """The same on two; without the variable the original would not connect them."""
    return desk.fork(
        desk.forks_originals, "train.py", "original-on-two", 2, ACCELERATE_USE_CPU="true"
    )


# --- what must hold ---------------------------------------------------------------------------


def assert_loss_falls(records: list[Record]) -> None:
    epochs = zip(*(record.loss_of_epochs() for record in records))
    first, _, last = (mean(losses) for losses in epochs)
    assert last < 0.9 * first


def assert_trained_together(records: list[Record]) -> None:
    # 54 samples are 7 batches of at most 8: 4 for each of two processes, in each epoch.
    assert [len(record.losses) for record in records] == [12, 12]
    assert records[0].losses != records[1].losses
    assert records[0].weights == records[1].weights
    assert_loss_falls(records)


def assert_same_training(records: list[Record], expected: list[Record]) -> None:
    # Bit for bit, even on two processes: a sum of two numbers depends neither on their order nor
    # on the bucket they travel in, and half of it is exact.
    assert [record.losses for record in records] == [record.losses for record in expected]
    assert [record.weights for record in records] == [record.weights for record in expected]


def test_the_parts_that_the_page_explains_are_the_parts_of_its_whole():
    assert all(part in TRAIN for part in (*ACCELERATOR.split("\n\n"), PREPARE, LOOP))


def test_the_cpp_program_of_the_page_is_the_example_that_is_built():
    top, *parts, main = blocks("cpp")
    assert len(parts) == 3 and all(part in main for part in parts)
    assert (ROOT / "examples" / "tutorial.cpp").read_text().endswith(top + "\n" + main)


def test_one_process_learns_what_the_plain_loop_learns(desk, alone):
    [plain] = desk.fork(desk.forks_ours, "plain.py", "plain")
    assert [record.weights for record in alone] == [plain.weights]
    assert_loss_falls(alone)


def test_a_configured_launch_trains_on_two_processes(launched):
    assert_trained_together(launched)


def test_a_notebook_without_a_number_trains_in_the_kernel_itself(notebook, alone):
    assert [record.pid for record in notebook.in_place] == [notebook.kernel_pid]
    assert notebook.returned_pids[0] == notebook.kernel_pid
    assert_same_training(notebook.in_place, alone)


def test_a_busy_notebook_trains_on_two_fresh_processes(notebook):
    assert notebook.returned_pids[1] == notebook.on_two[0].pid
    assert notebook.kernel_pid not in [record.pid for record in notebook.on_two]
    assert_trained_together(notebook.on_two)


def test_one_process_trains_as_the_original_does(alone, original_alone):
    assert_same_training(alone, original_alone)


def test_launched_processes_train_as_the_original_does(launched, original_on_two):
    assert_same_training(launched, original_on_two)


def test_a_notebooks_processes_train_as_the_original_does(notebook, original_on_two):
    assert_same_training(notebook.on_two, original_on_two)
