# SPDX-License-Identifier: Apache-2.0
"""One AdamW step over the weights of BERT-base: ours beside torch::optim::AdamW and beside
Python's fused AdamW, on the CPU and, where there is one, on a GPU."""
import json
import pathlib
import sys

import torch

import harness

PEER = pathlib.Path(__file__).with_name("optimizer_step_peer.py")
PARAMETERS = 109_482_240
# Four floats are read for every weight and three are written.
GIGABYTES = PARAMETERS * 7 * 4 / 1e9


def main():
    options = harness.arguments(__doc__)
    program = options.bin / "optimizer_step"

    def cpp(kind, device):
        return lambda: float(harness.run(program, kind, device))

    def python(device):
        return lambda: float(harness.run(sys.executable, PEER, device))

    devices = {"cpu": "cpu"}
    if torch.cuda.is_available():
        devices["gpu"] = "cuda"
    for name, device in devices.items():
        for case, peer in (("torch_optim", cpp("torch", device)),
                           ("python_fused", python(device))):
            ours, theirs = harness.alternate(cpp("ours", device), peer, options.rounds)
            harness.report("optimizer_step", f"{case}_{name}", ours, theirs, "ms/step")
        if name == "cpu":
            speed, copy = GIGABYTES / (ours / 1e3), cpp("memcpy", device)()
            print(json.dumps({
                "bench": "optimizer_step", "case": "memory_cpu", "ours": round(speed, 2),
                "memcpy": round(copy, 2), "unit": "GB/s",
                "ratio": round(speed / copy, 3)}), flush=True)


main()
