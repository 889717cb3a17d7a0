# SPDX-License-Identifier: Apache-2.0
"""The same unchanged training loop in bf16 on a GPU: ours with ACCELERATE_FAST=1 beside Hugging Face
Accelerate as written and with torch.compile. Ours runs with the package of the build folder."""
import os
import pathlib
import sys

import torch

import harness

PEER = pathlib.Path(__file__).with_name("model_step_gpu_peer.py")
STEPS = 20
# Model, batch, tokens, dropout, options; and the modes of the peer.
CASES = [("bert", 32, 128, 0.1, [], ["eager", "reduce-overhead"]),
         ("bert", 32, 128, 0.1, ["accumulate"], ["eager"]),
         ("gpt2", 16, 1024, 0.0, [], ["eager", "default"]),
         ("tiny", 32, 128, 0.1, [], ["eager"])]


def main():
    options = harness.arguments(__doc__)
    if not torch.cuda.is_available():
        print("fast_gpu left out: there is no GPU", file=sys.stderr)
        return
    folder = str(options.bin.absolute().parent / "python")
    ours = {"PYTHONPATH": os.pathsep.join([folder, os.environ.get("PYTHONPATH", "")]),
            "ACCELERATE_FAST": "1"}
    for model, batch, tokens, dropout, extra, modes in CASES:
        settings = (model, batch, tokens, dropout, STEPS)
        for mode in modes:
            case = "_".join([f"{model}_b{batch}_dropout{dropout}", *extra, "beside", mode])
            harness.report("fast_gpu", case, *harness.alternate(
                lambda: float(harness.run(sys.executable, PEER, *settings, "eager", *extra, **ours)),
                lambda: float(harness.run(sys.executable, PEER, *settings, mode, *extra)),
                options.rounds), "ms/step")


main()
