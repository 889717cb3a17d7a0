# SPDX-License-Identifier: Apache-2.0
"""Fine-tunes MiniLM on topics of fortunes: our program beside transformers with
Hugging Face Accelerate, the same data, seeds and settings, with one and with two
processes. Prints both accuracies (the ratio is ours to theirs) and times."""
import json
import os
import pathlib
import re
import sys
import time

import harness

PEER = pathlib.Path(__file__).with_name("text_classification_peer.py")
FORTUNES = "/usr/share/games/fortunes"
CLASSES = "food,law,medicine,science,sports"


def measured(*command, **variables):
    start = time.monotonic()
    text = harness.run(*command, **variables)
    accuracy = float(re.search(r"best: accuracy ([\d.]+)", text).group(1))
    return accuracy, time.monotonic() - start


def main():
    options = harness.arguments(__doc__)
    model = os.environ["ACCELERATE_REAL_MODEL"]
    for processes in (1, 2):
        settings = ["--model", model, "--data", FORTUNES, "--classes", CLASSES,
                    "--batch_size", 32 // processes]
        ours, our_time = measured(
            options.bin / "accelerate", "launch", "--cpu", "--num_processes", processes,
            options.bin / "text_classification", "train", *settings)
        peer, peer_time = measured(
            sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node",
            processes, PEER, *settings, GLOO_SOCKET_IFNAME="lo", ACCELERATE_USE_CPU="true")
        print(json.dumps({
            "bench": "text_classification", "case": f"accuracy_{processes}p", "ours": ours,
            "peer": peer, "unit": "accuracy", "ratio": round(ours / peer, 3)}), flush=True)
        harness.report("text_classification", f"seconds_{processes}p", our_time, peer_time, "s")


main()
