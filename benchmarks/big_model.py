# SPDX-License-Identifier: Apache-2.0
"""Runs a Llama-shaped model whose weights are all on the disk, on the CPU, beside Hugging Face
Accelerate: the time to load it, the time per generated token and the peak memory. Both generate the
same tokens. `--python` has transformers and the original; `--package` is the folder of this package.
"""

import argparse
import json
import pathlib
import shutil
import statistics
import tempfile

import harness

PROGRAM = pathlib.Path(__file__).with_name("big_model_run.py")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", type=pathlib.Path, required=True)
    parser.add_argument("--package", type=pathlib.Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--tokens", type=int, default=8)
    parser.add_argument("--folder", type=pathlib.Path, help="on the disk to measure")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        folder = pathlib.Path(name)
        harness.run(given.python, PROGRAM, folder, given.layers, "write")
        size = (folder / "model.safetensors").stat().st_size / 2**30
        found = {"": [], str(given.package): []}
        for _ in range(given.rounds):
            for package, answers in found.items():
                offload = folder / "offload"
                output = harness.run(
                    given.python, PROGRAM, folder, given.layers, offload, given.tokens,
                    PYTHONPATH=package)
                answers.append(json.loads(output.splitlines()[-1]))
                shutil.rmtree(offload)
        theirs, ours = found.values()
        if any(answer["tokens"] != theirs[0]["tokens"] for answer in [*ours, *theirs]):
            raise SystemExit("the tokens differ")
        case = f"{size:.1f} GiB bf16 on the disk"
        for key, unit in (("load", "s"), ("seconds_per_token", "s"), ("peak_mb", "MB")):
            medians = (statistics.median(a[key] for a in side) for side in (ours, theirs))
            harness.report("big_model", f"{key}, {case}", *medians, unit)


if __name__ == "__main__":
    main()
