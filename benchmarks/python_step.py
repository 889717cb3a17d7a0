# SPDX-License-Identifier: Apache-2.0
"""What the Python package costs, beside Hugging Face Accelerate: microseconds
that a step takes longer than in a plain PyTorch loop, the time of `import`,
a step of two CPU processes, and a step of transformers' Trainer.

Ours runs with the Python of ACCELERATE_TEST_PYTHON, or this one; the original
with this one, which has it."""
import os
import pathlib
import sys

import harness

WORKER = pathlib.Path(__file__).with_name("python_step_peer.py")
IMPORTS = {
    "import": "import accelerate",
    "import_and_make": "from accelerate import Accelerator; Accelerator()",
}
TIMED = """import time, torch, torch.utils.data
start = time.perf_counter()
{}
print((time.perf_counter() - start) * 1e3)"""


class Side:
    """How one of the two packages is run."""

    def __init__(self, python, launcher, **variables):
        # Bytecode is written at the first import; that is not measured.
        self.variables = {"PYTHONDONTWRITEBYTECODE": "", **variables}
        self.python = python
        self.launcher = launcher

    def imported(self, statement):
        return float(harness.run(
            self.python, "-c", TIMED.format(statement), **self.variables))

    def added(self, case):
        answer = harness.run(
            self.python, WORKER, "added", case, **self.variables)
        return float(answer.split()[1])

    def shared(self, model):
        return float(harness.run(
            *self.launcher, WORKER, "shared", model, **self.variables))

    def trainer(self, num_processes):
        starter = [self.python] if num_processes == 1 else self.launcher
        # Trainer prints what it trained before.
        return float(harness.run(
            *starter, WORKER, "trainer", num_processes,
            **self.variables).split()[-1])


def sides(binaries):
    binaries = binaries.absolute()
    python = os.environ.get("ACCELERATE_TEST_PYTHON", sys.executable)
    ours = Side(
        python,
        [binaries / "accelerate", "launch", "--cpu", "--num_processes", 2,
         python],
        PYTHONPATH=str(binaries.parent / "python"))
    # Without the variable it trains two unconnected copies.
    peer = Side(
        sys.executable,
        [sys.executable, "-m", "torch.distributed.run", "--standalone",
         "--nproc_per_node", 2],
        PYTHONPATH="", ACCELERATE_USE_CPU="true", GLOO_SOCKET_IFNAME="lo")
    return ours, peer


def main():
    options = harness.arguments(__doc__)
    ours, peer = sides(options.bin)

    def compare(case, unit, measure, repeat=1):
        harness.report("python_step", case, *harness.alternate(
            lambda: min(measure(ours) for _ in range(repeat)),
            lambda: min(measure(peer) for _ in range(repeat)),
            options.rounds), unit)

    for case, statement in IMPORTS.items():
        ours.imported(statement), peer.imported(statement)
        compare(case, "ms over import torch",
                lambda side: side.imported(statement))
    for case in ("no_loader", "loader", "scheduler", "accumulate"):
        compare(f"added_{case}", "us/step over plain PyTorch",
                lambda side: side.added(case))
    for model in ("tiny", "mlp"):
        compare(f"two_processes_{model}", "ms/step",
                lambda side: side.shared(model))
    for num_processes in (1, 2):
        compare(f"trainer_{num_processes}", "us/step",
                lambda side: side.trainer(num_processes))


main()
