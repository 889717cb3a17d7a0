# SPDX-License-Identifier: Apache-2.0
"""Training steps in bf16 on a GPU: ours with master weights and captured beside transformers with Hugging
Face Accelerate, as written and with torch.compile."""
import pathlib
import sys

import torch

import harness

PEER = pathlib.Path(__file__).with_name("model_step_gpu_peer.py")
STEPS = 20
# Model, batch, tokens, dropout; with which mode of torch.compile beside "default".
CASES = [("bert", 32, 128, 0.1, "reduce-overhead"), ("gpt2", 16, 1024, 0.1, None),
         ("gpt2", 32, 1024, 0.1, None), ("gpt2", 64, 1024, 0.1, None),
         ("gpt2", 16, 1024, 0.0, None), ("llama", 8, 2048, 0.0, None)]


def main():
    options = harness.arguments(__doc__)
    if not torch.cuda.is_available():
        print("model_step_gpu left out: there is no GPU", file=sys.stderr)
        return
    for model, batch, tokens, dropout, mode in CASES:
        settings = (model, batch, tokens, dropout, STEPS)
        ours = options.bin / "model_step_gpu"
        for peer in ("eager", "default", *([mode] if mode else [])):
            harness.report("model_step_gpu", f"{model}_b{batch}_dropout{dropout}_beside_{peer}",
                           *harness.alternate(
                lambda: float(harness.run(ours, *settings, "master_weights", "capture")),
                lambda: float(harness.run(sys.executable, PEER, *settings, peer)),
                options.rounds), "ms/step")


main()
