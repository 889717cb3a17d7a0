# SPDX-License-Identifier: Apache-2.0
"""Batches of tokenised text: our loader beside Hugging Face's prepared one and PyTorch's."""
import json
import pathlib
import sys

import harness

PEER = pathlib.Path(__file__).with_name("data_loader_peer.py")


def main():
    options = harness.arguments(__doc__)
    program = options.bin / "data_loader"
    rounds = min(options.rounds, 3)

    for mode in ("workers_0", "workers_2"):
        def ours():
            return float(harness.run(program, mode).split()[0])

        for name, library in ((mode, "accelerate"), (f"torch_{mode}", "torch")):
            def peer():
                return float(harness.run(sys.executable, PEER, library, mode))

            harness.report("data_loader", name,
                           *harness.alternate(ours, peer, rounds), "us/sample")

    wire = []

    def dispatched():
        time, weight = harness.run(
            options.bin / "accelerate", "launch", "--num_processes", 2,
            program, "dispatch").split()
        wire.append(float(weight))
        return float(time)

    def dispatched_peer():
        return float(harness.run(
            sys.executable, "-m", "torch.distributed.run", "--standalone",
            "--nproc_per_node", 2, PEER, "accelerate", "dispatch",
            GLOO_SOCKET_IFNAME="lo", ACCELERATE_USE_CPU="true"))

    harness.report("data_loader", "dispatch_2p", *harness.alternate(
        dispatched, dispatched_peer, rounds), "us/sample")
    # The interface counts the bytes of all programs, so the minimum is closest to ours.
    print(json.dumps({
        "bench": "data_loader", "case": "dispatch_2p_bytes_per_byte_of_slices",
        "ours": round(min(wire), 4), "limit": 1.05, "unit": "ratio"}), flush=True)


main()
