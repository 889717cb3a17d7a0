# SPDX-License-Identifier: Apache-2.0
"""Losses of a GPT-2 of 124 M parameters trained on the bytes of a text: ours (bf16 weights, fp32
master weights, captured) beside transformers in fp32, from the same weights with the same batches. The
noise is how far transformers is from itself with weights of another seed and the same batches.

The text is that of Debian's fortunes and fortunes-min. A line for each 50 steps has means of
losses; the last one has mean and largest difference of the means of 50 steps from transformers' of
the same weights. Needs transformers and a GPU, or `--cpu` with a few steps."""
import argparse
import json
import pathlib
import statistics
import sys
import tempfile

import torch

import harness

PEER = pathlib.Path(__file__).with_name("loss_curve_peer.py")
FORTUNES = pathlib.Path("/usr/share/games/fortunes")
WINDOW = 50


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", type=pathlib.Path, required=True,
                        help="folder with our built programs")
    parser.add_argument("--text", type=pathlib.Path, help="another text, of some megabytes")
    parser.add_argument("--cpu", action="store_true", help="run although there is no GPU")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--layers", type=int, default=12)
    return parser.parse_args()


def join_fortunes(path):
    files = sorted(file for file in FORTUNES.iterdir() if file.suffix == "" and file.is_file())
    path.write_bytes(b"".join(file.read_bytes() for file in files))
    return path


def main():
    options = arguments()
    if not torch.cuda.is_available() and not options.cpu:
        print("loss_curve left out: there is no GPU", file=sys.stderr)
        return
    size = (options.steps, options.batch, options.tokens)

    def losses(*command):
        lines = harness.run(*command, text, *size).split()
        values = [float(line) for line in lines]
        return [statistics.fmean(values[i:i + WINDOW])
                for i in range(0, options.steps, WINDOW)]

    with tempfile.TemporaryDirectory() as folder:
        text = options.text or join_fortunes(pathlib.Path(folder, "fortunes.txt"))
        folders = [pathlib.Path(folder, str(seed)) for seed in (0, 1)]
        for seed, path in enumerate(folders):
            harness.run(sys.executable, PEER, "make", path, seed, options.layers)
        curves = {
            "ours": losses(options.bin / "loss_curve", folders[0]),
            "peer": losses(sys.executable, PEER, "train", folders[0]),
            "peer_other_seed": losses(sys.executable, PEER, "train", folders[1])}
    for i, values in enumerate(zip(*curves.values())):
        print(json.dumps({"bench": "loss_curve", "steps": min((i + 1) * WINDOW, options.steps),
                          **{name: round(value, 4) for name, value in zip(curves, values)}}),
              flush=True)
    differences = {
        name: [abs(a - b) for a, b in zip(curves[name], curves["peer"])]
        for name in ("ours", "peer_other_seed")}
    mean = {name: statistics.fmean(values) for name, values in differences.items()}
    print(json.dumps({
        "bench": "loss_curve", "case": "difference_from_fp32",
        **{f"{name}_mean": round(value, 5) for name, value in mean.items()},
        **{f"{name}_most": round(max(values), 5) for name, values in differences.items()},
        "within_noise": mean["ours"] <= mean["peer_other_seed"]}), flush=True)


main()
