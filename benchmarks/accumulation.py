# SPDX-License-Identifier: Apache-2.0
"""A micro-batch of two processes that only accumulates gradients, beside the same
forward and backward without this library."""
import harness


def main():
    options = harness.arguments(__doc__)
    ours, raw = [], []
    for _ in range(options.rounds):
        answer = harness.run(options.bin / "accelerate", "launch", "--num_processes", 2,
                             options.bin / "accumulation").split()
        ours.append(float(answer[0]))
        raw.append(float(answer[1]))
    middle = options.rounds // 2
    harness.report("accumulation", "micro_step_2p", sorted(ours)[middle], sorted(raw)[middle],
                   "ms/micro-step")


main()
