# SPDX-License-Identifier: Apache-2.0
"""What benchmarks share: the command line, alternating runs, one JSON line per case."""
import argparse
import json
import os
import pathlib
import statistics
import subprocess


def arguments(description):
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--bin", type=pathlib.Path, required=True,
                        help="folder with our built programs")
    parser.add_argument("--rounds", type=int, default=5)
    return parser.parse_args()


def alternate(ours, peer, rounds):
    """Calls both in turn, so that noise hits them alike; the medians."""
    times = ([], [])
    for _ in range(rounds):
        times[0].append(ours())
        times[1].append(peer())
    return tuple(statistics.median(t) for t in times)


def report(bench, case, ours, peer, unit):
    """Lower is better; a ratio above 1 means that ours is better."""
    print(json.dumps({
        "bench": bench, "case": case, "ours": round(ours, 4),
        "peer": round(peer, 4), "unit": unit, "ratio": round(peer / ours, 3),
    }), flush=True)


def run(*command, **variables):
    """The standard output of a command that must succeed."""
    answer = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True,
        timeout=900, env={**os.environ, "OMP_NUM_THREADS": "1", **variables})
    if answer.returncode != 0:
        raise SystemExit(f"{command[0]} failed:\n{answer.stdout}{answer.stderr}")
    return answer.stdout
