# SPDX-License-Identifier: Apache-2.0
"""`notebook_launcher` in a real Jupyter kernel, cell by cell."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from jupyter_client.manager import start_new_kernel
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from original import PROGRAMS
from processes import LIMIT_SECONDS, is_alive, wait_until

EXAMPLES = sorted((Path(__file__).parents[2] / "examples" / "notebooks").glob("*.ipynb"))


def cell_of(program: str) -> str:
    return (PROGRAMS / "notebooks" / program).read_text()


# What the original refuses to start from: running threads, CUDA and torch in use.
BUSY = cell_of("busy.py")


class Kernel:
    """Runs cells in one kernel, in order."""

    def __init__(self, client: NotebookClient) -> None:
        self.client = client
        self.loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self.loop)

    def run(self, source: str) -> str:
        """Returns the output of the cell; raises `CellExecutionError` if it raised."""
        return self.wait(self.execute(source))

    def wait(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(asyncio.wait_for(work, 2 * LIMIT_SECONDS))

    async def execute(self, source: str) -> str:
        cell = nbformat.v4.new_code_cell(source)
        self.client.nb.cells.append(cell)
        await self.client.async_execute_cell(cell, len(self.client.nb.cells) - 1)
        return "".join(output.get("text", "") for output in cell.outputs)


@pytest.fixture
def kernel(monkeypatch) -> Iterator[Kernel]:
    monkeypatch.setenv("ACCELERATE_USE_CPU", "1")
    client = NotebookClient(nbformat.v4.new_notebook(), timeout=LIMIT_SECONDS)
    kernel = Kernel(client)
    with client.setup_kernel():
        yield kernel
    kernel.loop.close()
    asyncio.set_event_loop(None)


def test_a_cells_function_trains_on_two_processes_of_a_busy_kernel(kernel):
    kernel.run(BUSY)
    kernel.run(cell_of("definitions.py"))
    text = kernel.run("report = notebook_launcher(train, (1,), num_processes=2)")
    assert "Launching training on 2 CPUs." in text
    assert "rank 0 of 2: 3.0" in text
    assert "[rank 1] rank 1 of 2: 3.0" in text
    assert kernel.run("print(isinstance(report, Report), report.total)") == "True 30.0\n"
    # A second run, another function, the same kernel.
    again = kernel.run("print(notebook_launcher(lambda: os.environ['RANK'], num_processes=2))")
    assert again.endswith("0\n")


def test_without_a_number_a_machine_without_gpu_trains_in_the_kernel_itself(kernel):
    kernel.run("import os\nfrom accelerate import notebook_launcher")
    text = kernel.run("print(notebook_launcher(os.getpid) == os.getpid())")
    assert text == "Launching training on CPU.\nTrue\n"


def test_a_workers_exception_is_raised_in_the_cell_with_rank_and_source(kernel):
    kernel.run(BUSY)
    kernel.run(cell_of("bad_batch.py"))
    with pytest.raises(CellExecutionError) as caught:
        kernel.run("notebook_launcher(train, num_processes=2)")
    assert caught.value.ename == "LaunchError"
    assert "[notebook_launcher] Rank 1 failed with exit code 1" in caught.value.evalue
    assert caught.value.evalue.endswith("ValueError: bad batch")
    assert 'raise ValueError("bad batch")  # in the cell' in caught.value.evalue
    assert kernel.run("print('the kernel goes on')") == "the kernel goes on\n"


def start_waiting(folder: Path) -> str:
    return f"os.environ['ACCELERATE_TEST_FOLDER'] = {str(folder)!r}\n{cell_of('wait.py')}"


def test_interrupting_the_cell_ends_all_workers(kernel, tmp_path):
    kernel.run(BUSY)

    async def run_and_interrupt() -> tuple[object, list[int]]:
        cell = asyncio.ensure_future(kernel.execute(start_waiting(tmp_path)))
        while len(os.listdir(tmp_path)) < 2:
            await asyncio.sleep(0.02)
        workers = [int(name) for name in os.listdir(tmp_path)]
        await kernel.client.km.interrupt_kernel()
        [end] = await asyncio.gather(cell, return_exceptions=True)
        return end, workers

    end, workers = kernel.wait(run_and_interrupt())
    assert isinstance(end, CellExecutionError) and end.ename == "KeyboardInterrupt"
    assert not any(map(is_alive, workers))
    assert kernel.run("print('the kernel goes on')") == "the kernel goes on\n"


def test_no_worker_outlives_a_kernel_that_is_killed(tmp_path):
    manager, client = start_new_kernel()
    client.execute(BUSY)
    client.execute(start_waiting(tmp_path))
    assert wait_until(lambda: len(os.listdir(tmp_path)) == 2)
    workers = [int(name) for name in os.listdir(tmp_path)]
    client.stop_channels()
    manager.shutdown_kernel(now=True)
    assert wait_until(lambda: not any(map(is_alive, workers)))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_from_its_first_cell_to_its_last(path):
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=2 * LIMIT_SECONDS).execute()
    assert all(cell.execution_count for cell in notebook.cells if cell.cell_type == "code")
