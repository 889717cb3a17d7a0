# SPDX-License-Identifier: Apache-2.0
"""The spirals train alone and on two processes; all ranks end with the same bits."""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

bin_dir = pathlib.Path(sys.argv[1])


def losses(*command):
    answer = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True,
        timeout=300, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return [float(x) for x in re.findall(r"loss ([\d.]+)", answer.stdout)]


with tempfile.TemporaryDirectory() as folder:
    file = pathlib.Path(folder, "parameters")
    plain = losses(bin_dir / "plain_spirals")
    alone = losses(bin_dir / "accelerated_spirals")
    assert alone == plain, f"one process must train as the plain loop: {alone} {plain}"
    both = losses(bin_dir / "accelerate", "launch", "--num_processes", 2,
                  bin_dir / "accelerated_spirals", file)
    assert len(both) == len(plain), f"each epoch is reported once: {both}"
    for run in (plain, both):
        assert run[-1] < run[0] / 3, f"the loss does not fall: {run}"
    ranks = [pathlib.Path(f"{file}.{rank}").read_bytes() for rank in (0, 1)]
    assert ranks[0] == ranks[1] and len(ranks[0]) > 10000
print("losses on two processes:", both)

by_feature = losses(bin_dir / "example_optimizers")
assert by_feature[-1] < by_feature[0], f"the loss does not fall: {by_feature}"
losses(bin_dir / "example_schedules")


def last_line(*command):
    answer = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True,
        timeout=300, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return answer.stdout.splitlines()[-1]


# A run in three pieces ends with the bits of the run in one.
with tempfile.TemporaryDirectory() as folder:
    launch = (bin_dir / "accelerate", "launch", "--num_processes", 2, bin_dir / "example_checkpoint")
    whole = last_line(*launch, pathlib.Path(folder, "whole"))
    pieces = pathlib.Path(folder, "pieces")
    for num_steps in (13, 12):
        last_line(*launch, pieces, num_steps)
    assert last_line(*launch, pieces) == whole, whole
    left = sorted(path.name for path in (pieces / "checkpoints").iterdir())
    assert len(left) == 2 and all(name.startswith("checkpoint_") for name in left), left
print(whole)

# A tracked run in two pieces has every step once; each rank leaves a trace.
with tempfile.TemporaryDirectory() as folder:
    launch = (bin_dir / "accelerate", "launch", "--num_processes", 2)
    tracked = pathlib.Path(folder, "runs")
    for limit in ([9], []):
        losses(*launch, bin_dir / "example_tracking", tracked, *limit)
    lines = [json.loads(line) for line in
             (tracked / "parabola" / "metrics.jsonl").read_text().splitlines()]
    steps = [line["step"] for line in lines if "loss" in line.get("values", {})]
    assert steps == list(range(len(steps))) and len(steps) > 12, steps
    assert [line["step"] for line in lines if line.get("event") == "resume"] == [9]
    losses(*launch, bin_dir / "example_profile", folder)
    assert all(pathlib.Path(folder, f"profile_{rank}.json").stat().st_size for rank in (0, 1))
