# SPDX-License-Identifier: Apache-2.0
"""A sharded training step of 2 and 4 CPU processes, and of one on a GPU: each stage beside our DDP, stage 3 beside PyTorch's FSDP2."""
import pathlib
import statistics
import sys

import torch

import harness

PEER = pathlib.Path(__file__).with_name("sharding_peer.py")


def main():
    options = harness.arguments(__doc__)

    def ours(stage, processes, samples, device):
        return float(harness.run(
            options.bin / "accelerate", "launch", *([] if device else ["--cpu"]), "--num_processes", processes,
            options.bin / "sharding", stage, samples, *device))

    def fsdp2(processes, samples, device):
        return float(harness.run(
            sys.executable, "-m", "torch.distributed.run", "--standalone",
            "--nproc_per_node", processes, PEER, samples, *device, GLOO_SOCKET_IFNAME="lo"))

    # What a step sends does not grow with its samples, what hides it does.
    cases = [(2, 4, []), (2, 16, []), (4, 4, []), (4, 16, [])]
    if torch.cuda.is_available():
        cases.append((1, 4, ["gpu"]))
    for case in cases:
        # All in turn, so that noise hits them alike.
        rounds = [
            [ours(stage, *case) for stage in range(4)] + [fsdp2(*case)]
            for _ in range(options.rounds)
        ]
        ddp, *stages, peer = map(statistics.median, zip(*rounds))
        processes, samples, device = case
        name = " ".join([f"{processes} processes, {samples} samples", *device])
        for stage, time in enumerate(stages, start=1):
            harness.report("sharding", f"{name}, stage {stage}, DDP", time, ddp, "ms/step")
        harness.report("sharding", f"{name}, stage 3, FSDP2", stages[-1], peer, "ms/step")


main()
