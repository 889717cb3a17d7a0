# SPDX-License-Identifier: Apache-2.0
"""A training step of two CPU processes: ours beside PyTorch's DDP."""
import pathlib
import sys

import harness

PEER = pathlib.Path(__file__).with_name("ddp_cpu_peer.py")


def main():
    options = harness.arguments(__doc__)
    for case in ("mlp", "transformer"):
        def ours():
            return float(harness.run(
                options.bin / "accelerate", "launch", "--num_processes", 2,
                options.bin / "ddp_cpu", case))

        def peer():
            return float(harness.run(
                sys.executable, "-m", "torch.distributed.run", "--standalone",
                "--nproc_per_node", 2, PEER, case, GLOO_SOCKET_IFNAME="lo"))

        harness.report("ddp_cpu", case, *harness.alternate(
            ours, peer, options.rounds), "ms/step")


main()
