#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""From typing a command to the first instruction of each worker.

Runs the program `accelerate` of this build beside Hugging Face Accelerate and
torchrun, turn by turn, and prints one JSON line per case. The worker is
`sh -c 'date +%s%N'` on both sides, so its own start counts for both.

  launch_latency.py [--bin BUILD/bin] [--oracle PYTHON] [--rounds N]
                    [--peer_rounds N]

The oracle is a Python with accelerate and torch (ACCELERATE_ORACLE_PYTHON);
without one only our own times are printed.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

WORKER = ["sh", "-c", 'date +%s%N > "$0/${RANK:-0}"']


def clean_environment():
    """Without the variables of a launcher that may have started us."""
    own = ("ACCELERATE_", "MASTER_", "SLURM_", "OMPI_", "PMI")
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(own) and name not in names
    }


def time_to_last_worker(command, ranks):
    """Milliseconds until the last of `ranks` workers has begun."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.time_ns()
        subprocess.run(
            [*command, *WORKER, folder],
            env=clean_environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=True,
        )
        stamps = [int(path.read_text()) for path in pathlib.Path(folder).iterdir()]
    if len(stamps) != ranks:
        raise RuntimeError(f"{command}: {len(stamps)} workers ran, {ranks} expected")
    return (max(stamps) - start) / 1e6


def time_to_end(command):
    """Milliseconds of the whole command."""
    start = time.time_ns()
    subprocess.run(
        command, env=clean_environment(), stdout=subprocess.DEVNULL, check=True
    )
    return (time.time_ns() - start) / 1e6


def cases(program, oracle):
    """Name, our measurement, the peer's measurement."""
    ours = [str(program), "launch", "--cpu"]
    module = [oracle, "-m", "accelerate.commands.accelerate_cli"]
    torchrun = [oracle, "-m", "torch.distributed.run", "--no-python"]
    quiet = ["--mixed_precision", "no", "--num_machines", "1", "--no_python"]

    def launch(command, ranks):
        return lambda: time_to_last_worker(command, ranks)

    return {
        "help": (
            lambda: time_to_end([str(program), "--help"]),
            lambda: time_to_end([*module, "--help"]),
        ),
        "launch_1": (
            launch([*ours, "--num_processes", "1"], 1),
            launch([*module, "launch", "--cpu", "--num_processes", "1", *quiet], 1),
        ),
        # On a CPU the original starts one process whatever is asked for; its
        # way to start two is the one for GPUs, which needs none to start.
        "launch_2": (
            launch([*ours, "--num_processes", "2"], 2),
            launch(
                [*module, "launch", "--multi_gpu", "--num_processes", "2", *quiet], 2
            ),
        ),
        "torchrun_2": (
            launch([*ours, "--num_processes", "2"], 2),
            launch([*torchrun, "--nproc_per_node", "2"], 2),
        ),
        "torchrun_8": (
            launch([*ours, "--num_processes", "8"], 8),
            launch([*torchrun, "--nproc_per_node", "8"], 8),
        ),
    }


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", default=root / "build/release/bin")
    parser.add_argument("--oracle", default=os.environ.get("ACCELERATE_ORACLE_PYTHON"))
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--peer_rounds", type=int, default=3)
    options = parser.parse_args()
    program = pathlib.Path(options.bin) / "accelerate"
    if not program.exists():
        sys.exit(f"[launch_latency] no program at {program}; build it first")
    for name, (ours, peer) in cases(program, options.oracle).items():
        ours()  # Warm: the first start reads the disk.
        our_times, peer_times = [], []
        per_turn = max(1, options.rounds // options.peer_rounds)
        for _ in range(options.peer_rounds):
            our_times += [ours() for _ in range(per_turn)]
            if options.oracle:
                peer_times.append(peer())
        result = {
            "bench": "launch_latency",
            "case": name,
            "ours": round(statistics.median(our_times), 2),
            "peer": round(statistics.median(peer_times), 2) if peer_times else None,
            "unit": "ms",
        }
        result["ratio"] = (
            round(result["peer"] / result["ours"], 1) if peer_times else None
        )
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
