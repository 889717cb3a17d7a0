# SPDX-License-Identifier: Apache-2.0
"""A training step of a classifier on the CPU: ours beside transformers.

The whole step is compared; its parts (forward, backward, update with AdamW) say
where the time goes. Dropout is on, a quarter of the batch is padded.
"""
import os
import pathlib
import sys
import tempfile

import harness

PEER = pathlib.Path(__file__).with_name("model_step_peer.py")
BATCH, TOKENS, STEPS = 8, 128, 5
PARTS = ("", "_forward", "_backward", "_update")


def compare(case, folder, options):
    seen = {}

    def step(*program):
        threads = os.environ.get("OMP_NUM_THREADS", "1")
        out = harness.run(*program, folder, BATCH, TOKENS, STEPS,
                          OMP_NUM_THREADS=threads)
        return [float(number) for number in out.split()]

    def ours():
        seen.setdefault("ours", []).append(step(options.bin / "model_step"))
        return seen["ours"][-1][0]

    def peer():
        seen.setdefault("peer", []).append(step(sys.executable, PEER))
        return seen["peer"][-1][0]

    harness.alternate(ours, peer, options.rounds)
    for index, part in enumerate(PARTS):
        best = [min(row[index] for row in seen[side]) for side in ("ours", "peer")]
        harness.report("model_step", case + part, *best, "ms/step")


def main():
    options = harness.arguments(__doc__)
    with tempfile.TemporaryDirectory() as folder:
        harness.run(sys.executable, PEER, "--make", folder)
        compare("bert_mini", folder, options)
    real = os.environ.get("ACCELERATE_REAL_MODEL")
    if real:
        compare("minilm", real, options)
    else:
        print("minilm left out: ACCELERATE_REAL_MODEL names no folder", file=sys.stderr)


main()
