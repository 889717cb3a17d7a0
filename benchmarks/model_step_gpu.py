# SPDX-License-Identifier: Apache-2.0
"""A training step of a BERT-base-sized classifier in bf16 on a GPU: ours beside
transformers with Hugging Face Accelerate, both as written, nothing compiled."""
import pathlib
import sys

import torch

import harness

PEER = pathlib.Path(__file__).with_name("model_step_gpu_peer.py")
BATCH, TOKENS, STEPS = 32, 128, 100


def main():
    options = harness.arguments(__doc__)
    if not torch.cuda.is_available():
        print("model_step_gpu left out: there is no GPU", file=sys.stderr)
        return
    settings = (BATCH, TOKENS, STEPS)
    harness.report("model_step_gpu", "bert_base_bf16", *harness.alternate(
        lambda: float(harness.run(options.bin / "model_step_gpu", *settings)),
        lambda: float(harness.run(sys.executable, PEER, *settings)),
        options.rounds), "ms/step")


main()
