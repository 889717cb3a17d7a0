# SPDX-License-Identifier: Apache-2.0
"""One row of tools/sharding_simulator.py, worked by hand, and its table in the guide."""
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import sharding_simulator as simulator  # noqa: E402


def near(found, expected):
    assert abs(found - expected) < 1e-3 * expected, (found, expected)


# 7e9 parameters in 32 blocks of 218.75e6 on 8 GPUs, 4,096 tokens of 4,096 channels.
small = simulator.MODELS[0]
# A block: 2 x 218.75e6 x 4096 operations at 494.5e12 a second are 3.624 ms, thrice that backward.
compute = 32 * (3.62386 + 10.87158)
# Of its 437.5 MB in bf16 seven eighths arrive at 360 GB/s, after 0.04 ms; fp32 is twice as much.
gather, reduce = 1.06337 + 0.04, 2.12674 + 0.04
# An eighth of the model, 30 bytes for each parameter at 2.68 TB/s.
adamw = 9.79478
# Only the first gather and the last reduction are seen in stage 3.
near(simulator.step(small, 3, 8).seconds * 1e3, compute + gather + reduce + adamw)
# In stages 1 and 2 all gathers come after the step.
near(simulator.step(small, 2, 8).seconds * 1e3, compute + reduce + adamw + 32 * gather)
# A single GPU does not communicate.
near(simulator.step(small, 3, 1).seconds * 1e3, compute + 8 * adamw)
# Master weights and AdamW 10.5 GB, gradients 3.5 + 2.625, two bf16 units 0.875; activations: the inputs
# of 32 blocks 1.074, and one block's 0.570.
near(simulator.memory_bytes(small, 3, 8) / 1e9, 10.5 + 3.5 + 2.625 + 0.875 + 1.0737 + 0.5704)
# Between two machines half of 437.5 MB travels by eight cards of 42.5 GB/s, while NVLink is slower.
near(simulator.collective_s(437.5e6, 16) * 1e3, 0.04 + 0.005 + 1.06337)

table = subprocess.run(
    [sys.executable, ROOT / "tools/sharding_simulator.py"],
    capture_output=True, text=True, check=True).stdout
assert table in (ROOT / "docs/guide_sharding.md").read_text(), (
    "docs/guide_sharding.md has another table; paste what tools/sharding_simulator.py prints")
print("the row worked by hand and the guide's table are the simulator's")
