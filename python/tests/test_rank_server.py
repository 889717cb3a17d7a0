# SPDX-License-Identifier: Apache-2.0
"""The server that forks ranks for other tests, with threads of the modules that it imports."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from original import PROGRAMS
from ranks import SERVER, TIMEOUT_SECONDS


def serve(folder: Path, thread_name: str) -> subprocess.CompletedProcess[str]:
    """The outcome of a server that imports such a module and is asked for two ranks."""
    script = folder / "script.py"
    script.write_text("import os; print('rank', os.environ['RANK'])")
    order = {"script": str(script), "folder": str(folder), "arguments": [], "variables": {}}
    order |= {"num_ranks": 2, "seconds": TIMEOUT_SECONDS}
    return subprocess.run(
        [sys.executable, str(SERVER), "starts_thread"],
        input=json.dumps(order) + "\n",
        env={"PYTHONPATH": str(PROGRAMS / "rank_server"), "THREAD_NAME": thread_name},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
    )


def test_ranks_are_forked_while_a_thread_of_jemalloc_runs(tmp_path: Path) -> None:
    served = serve(tmp_path, "jemalloc_bg_thd")
    assert served.returncode == 0, served.stderr
    assert json.loads(served.stdout) == {"codes": [0, 0], "output": "rank 0\nrank 1\n"}


@pytest.mark.parametrize("name", ["python", "jemalloc"])
def test_any_other_thread_is_named_in_an_error(tmp_path: Path, name: str) -> None:
    served = serve(tmp_path, name)
    assert served.returncode == 1 and served.stdout == ""
    assert f"[rank_server] cannot fork beside the threads ['{name}']" in served.stderr
