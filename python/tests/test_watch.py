# SPDX-License-Identifier: Apache-2.0
"""`accelerate watch` on the folder of a real run of two processes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from ranks import LAUNCH, check, run

PROGRAM = "watch/sky.py"


@contextmanager
def watched(folder: Path) -> Iterator[str]:
    """The address that is printed, while it is served."""
    command = ["accelerate", "watch", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            found = re.search(r"http://\S+", server.stdout.readline())
            assert found
            yield found[0]
        finally:
            server.terminate()


def get(address: str, path: str, **arguments: int) -> str:
    token = urllib.parse.urlsplit(address).query
    query = urllib.parse.urlencode(arguments)
    with urllib.request.urlopen(f"{address.split('?')[0]}{path}?{token}&{query}") as answer:
        return answer.read().decode()


def test_the_page_gets_what_the_ranks_did(tmp_path: Path) -> None:
    check(run([*LAUNCH, "--log_dir", str(tmp_path / "runs/sky/logs")], tmp_path, PROGRAM))
    with watched(tmp_path / "runs") as address:
        assert json.loads(get(address, "runs"))["runs"][0]["name"] == "sky"
        shown: dict[str, Any] = json.loads(get(address, "run", run=0))
        (loss,) = shown["metrics"]
        assert loss["name"] == "loss" and loss["step"] == list(range(10))
        assert shown["state"] == "finished" and shown["num_processes"] == 2
        assert shown["configuration"] == [["lr", "0.5"]]
        origin = dict(shown["origin"])
        assert "python" in origin["command"] and origin["directory"] == str(tmp_path)
        assert origin["torch"].split(".")[0] == "2"
        assert "checkpoint" in [mark["event"] for mark in shown["marks"]]
        assert [row["rank"] for row in shown["table"]] == [0, 1]
        for row in shown["table"]:
            assert row["step"] == 10
            assert row["memory"] > 1e7 and row["step_time"] > 0.05
        assert shown["slow"]["rank"] == 1 and shown["slow"]["part"] == "other"
        logs = [(log["rank"], log["stream"]) for log in shown["logs"]]
        out = get(address, "log", run=0, log=logs.index((1, "stdout")))
        assert out == "done with 10 steps\n"
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(f"{address.split('?')[0]}run?run=0")


def test_a_failed_run_names_the_rank_and_the_exception(tmp_path: Path) -> None:
    launch = [*LAUNCH, "--log_dir", str(tmp_path / "runs/sky/logs")]
    result = run(launch, tmp_path, PROGRAM, "bad_batch")
    assert result.returncode == 1
    with watched(tmp_path / "runs") as address:
        assert json.loads(get(address, "runs"))["runs"][0]["summary"]["state"] == "failed"
        shown: dict[str, Any] = json.loads(get(address, "run", run=0))
        assert shown["state"] == "failed" and shown["exit"]["rank"] == 1
        assert shown["exit"]["error"] == "ValueError: bad batch"
        logs = [(log["rank"], log["stream"]) for log in shown["logs"]]
        assert "ValueError: bad batch" in get(address, "log", run=0, log=logs.index((1, "stderr")))


def checkpoints(folder: Path) -> list[str]:
    """Those that contain the parts of both ranks, oldest first. Rank 0 commits without waiting for
    rank 1."""
    found = [path.parent for path in folder.glob("runs/checkpoints/checkpoint_*/checkpoint.json")]
    names = [path.name for path in found if list(path.glob("rank_1-at-*.json"))]
    return sorted(names, key=lambda name: int(name.split("_")[1]))


def test_a_new_project_trains_is_killed_resumes_and_is_shown(tmp_path: Path) -> None:
    project = tmp_path / "demo"
    subprocess.run(
        ["accelerate", "new", "--language", "python", str(project)], check=True, timeout=60
    )
    command = [*LAUNCH, sys.executable, "train.py", "--epochs"]
    with subprocess.Popen([*command, "1000"], cwd=project, stdout=subprocess.DEVNULL) as first:
        try:
            deadline = time.monotonic() + 300
            while not checkpoints(project):
                assert first.poll() is None and time.monotonic() < deadline
                time.sleep(0.05)
        finally:
            first.kill()
    # Ranks that still die may save once more; five epochs are ahead of them.
    num_saved = int(checkpoints(project)[-1].split("_")[1]) + 1
    # On one process, which takes over the state of two.
    alone = [word if word != "2" else "1" for word in command]
    second = subprocess.run(
        [*alone, str(num_saved + 5)], cwd=project, capture_output=True, text=True, timeout=300
    )
    assert second.returncode == 0, second.stderr
    epochs = [int(epoch) for epoch in re.findall(r"^epoch (\d+): {", second.stdout, re.M)]
    assert epochs == list(range(epochs[0], num_saved + 5)) and epochs[0] >= num_saved
    with watched(project / "runs") as address:
        assert json.loads(get(address, "runs"))["runs"][0]["name"] == "circle"
        shown: dict[str, Any] = json.loads(get(address, "run", run=0))
        accuracy = {metric["name"]: metric for metric in shown["metrics"]}["accuracy"]
        assert accuracy["step"][0] == 0 and accuracy["step"][-1] == num_saved + 4
        assert shown["state"] == "finished"
