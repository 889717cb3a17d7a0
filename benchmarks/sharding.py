# SPDX-License-Identifier: Apache-2.0
"""A sharded training step of 2 and 4 CPU processes: each stage beside our DDP, stage 3 beside PyTorch's FSDP2."""
import pathlib
import statistics
import sys

import harness

PEER = pathlib.Path(__file__).with_name("sharding_peer.py")


def main():
    options = harness.arguments(__doc__)

    def ours(stage, processes):
        return float(harness.run(
            options.bin / "accelerate", "launch", "--num_processes", processes,
            options.bin / "sharding", stage))

    def fsdp2(processes):
        return float(harness.run(
            sys.executable, "-m", "torch.distributed.run", "--standalone",
            "--nproc_per_node", processes, PEER, GLOO_SOCKET_IFNAME="lo"))

    for processes in (2, 4):
        # All in turn, so that noise hits them alike.
        rounds = [
            [ours(stage, processes) for stage in range(4)] + [fsdp2(processes)]
            for _ in range(options.rounds)
        ]
        ddp, *stages, peer = map(statistics.median, zip(*rounds))
        for stage, time in enumerate(stages, start=1):
            harness.report(
                "sharding", f"{processes} processes, stage {stage}, DDP", time,
                ddp, "ms/step")
        harness.report(
            "sharding", f"{processes} processes, stage 3, FSDP2", stages[-1],
            peer, "ms/step")


main()
