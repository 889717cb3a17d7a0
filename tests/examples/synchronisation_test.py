# SPDX-License-Identifier: Apache-2.0
"""The examples of docs/guide_synchronisation.md train alone and on two processes."""
import os
import pathlib
import re
import subprocess
import sys

bin_dir = pathlib.Path(sys.argv[1])


def output(*command):
    answer = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True,
        timeout=300, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return answer.stdout


# Largest loss at the end, or what must be said.
EXPECTED = {
    "gradient_compression": 0.25,
    "local_sgd": 0.05,
    "sharding": 0.2,
    "sync_batch_norm": 0.5,
    "uneven_inputs": 0.05,
    "memory": "trained with batches of 45",
}
for name, expected in EXPECTED.items():
    program = bin_dir / f"example_{name}"
    for command in ([program], [bin_dir / "accelerate", "launch", "--num_processes", 2, program]):
        text = output(*command)
        if isinstance(expected, str):
            assert text.count(expected) == 1, text
            continue
        losses = [float(x) for x in re.findall(r"loss ([\d.e-]+)", text)]
        print(name, len(command), losses)
        assert losses and max(losses) < expected, text
        assert "ranks agree: no" not in text, text
        if name == "uneven_inputs" and len(command) > 1:
            counts = sorted(re.findall(r"had (\d+) batches", text))
            assert counts == ["12", "13"], text
