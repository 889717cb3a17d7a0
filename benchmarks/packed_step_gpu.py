# SPDX-License-Identifier: Apache-2.0
"""Samples per second of a BERT-base classifier with texts of real lengths, without padding beside
padded.

fortune_lengths.txt counts the lengths of the texts of Debian's packages fortunes and fortunes-min,
in tokens of BERT's uncased vocabulary, cut off at 128. `--count MODEL` writes it anew: MODEL is a
folder with such a tokenizer.
"""
import collections
import json
import pathlib
import sys

import torch

import harness

LENGTHS = pathlib.Path(__file__).with_name("fortune_lengths.txt")
FORTUNES = pathlib.Path("/usr/share/games/fortunes")
MAX_LENGTH = 128
# Tokens of a step: of 32 padded texts; of a row as long, and of one with about as many texts.
PADDED = 4096
PACKED = (4096, 1280)
DROPOUT = 0.1


def count_lengths(model):
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(pathlib.Path(model, "tokenizer.json")))
    tokenizer.no_padding()
    tokenizer.enable_truncation(MAX_LENGTH)
    counts = collections.Counter()
    for file in sorted(FORTUNES.iterdir()):
        if file.suffix == "" and file.is_file():
            texts = file.read_text(errors="replace").split("\n%\n")
            for encoding in tokenizer.encode_batch([t for t in texts if t.strip()]):
                counts[len(encoding.ids)] += 1
    LENGTHS.write_text("".join(f"{length} {counts[length]}\n" for length in sorted(counts)))


def main():
    if sys.argv[1:2] == ["--count"]:
        count_lengths(sys.argv[2])
        return
    options = harness.arguments(__doc__)
    program = options.bin / "packed_step_gpu"
    if not torch.cuda.is_available():
        print("packed_step_gpu left out: there is no GPU", file=sys.stderr)
        return

    def rate(kind, tokens):
        return float(harness.run(program, kind, LENGTHS, tokens, DROPOUT))

    for tokens in PACKED:
        for peer in ("padded", "grouped"):
            ours, theirs = harness.alternate(lambda: rate("packed", tokens),
                                             lambda: rate(peer, PADDED), options.rounds)
            print(json.dumps({
                "bench": "packed_step_gpu", "case": f"bert_{tokens}_tokens_beside_{peer}",
                "ours": round(ours), "peer": round(theirs), "unit": "samples/s",
                "ratio": round(ours / theirs, 3)}), flush=True)


main()
