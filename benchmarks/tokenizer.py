# SPDX-License-Identifier: Apache-2.0
"""Encodes all fortunes beside the Python package `tokenizers`.

Both sides take turns in the same run and
encode the same texts, offsets and masks included; the middle of the rounds
counts. Prints one JSON line per case and number of threads; a ratio above 1
means that ours is faster. `encode_batch` is compared with `encode_batch`, and
with `encode_batch_fast`, which leaves the offsets out.
Needs tokenizers, ACCELERATE_REAL_MODEL and Debian's fortunes and fortunes-min.
"""

import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "tests/text"))
import oracle  # noqa: E402

import harness

VOCABULARY = 16000


class Side:
    """A process that encodes everything once per line of input."""

    def __init__(self, command, environment=None):
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, **(environment or {})})

    def __call__(self):
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        seconds, total = self.process.stdout.readline().split()
        return float(seconds), int(total)

    def end(self):
        self.process.stdin.close()
        self.process.wait()


def run_peer(tokenizer_file, texts_file, method):
    """The other side: the package in a process of its own, because the number
    of its threads is fixed at its start."""
    tokenizer = oracle.Tokenizer.from_file(tokenizer_file)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    texts = pathlib.Path(texts_file).read_text().split("\0")[:-1]
    for _ in sys.stdin:
        start = time.perf_counter()
        encodings = getattr(tokenizer, method)(texts)
        seconds = time.perf_counter() - start
        print(seconds, sum(sum(e.ids) for e in encodings), flush=True)


def compare(case, threads, rounds, sides, num_bytes):
    times = {name: [] for name in sides}
    for i in range(rounds + 1):
        order = list(sides) if i % 2 else list(reversed(sides))
        answers = {name: sides[name]() for name in order}
        assert len({total for _, total in answers.values()}) == 1, "ids differ"
        if i > 0:  # The first round warms the caches.
            for name, (seconds, _) in answers.items():
                times[name].append(seconds)
    middle = {name: statistics.median(values) for name, values in times.items()}
    print(json.dumps({
        "bench": "tokenizer", "case": case, "threads": threads,
        "ours": middle["ours"], "peer": middle["encode_batch"], "unit": "s",
        "ratio": round(middle["encode_batch"] / middle["ours"], 3),
        "ratio_to_fast": round(middle["encode_batch_fast"] / middle["ours"], 3),
        "ours_mb_per_s": round(num_bytes / 1e6 / middle["ours"], 1)}), flush=True)


def minilm():
    return pathlib.Path(os.environ["ACCELERATE_REAL_MODEL"]) / "tokenizer.json"


def main():
    arguments = harness.arguments(__doc__)
    with tempfile.TemporaryDirectory() as folder:
        texts = pathlib.Path(folder) / "texts"
        fortunes = [t.replace("\0", "") for t in oracle.fortunes()]
        texts.write_text("".join(t + "\0" for t in fortunes))
        bpe = pathlib.Path(folder) / "bpe.json"
        oracle.train("gpt2", fortunes, VOCABULARY).save(str(bpe))
        for case, tokenizer in ("wordpiece", minilm()), ("byte_bpe", bpe):
            for threads in 1, 2:
                files = [str(tokenizer), str(texts)]
                sides = {"ours": Side([arguments.bin / "tokenizer", *files, str(threads)])}
                for method in "encode_batch", "encode_batch_fast":
                    sides[method] = Side(
                        [sys.executable, __file__, "--peer", *files, method],
                        {"RAYON_NUM_THREADS": str(threads),
                         "TOKENIZERS_PARALLELISM": "true" if threads > 1 else "false"})
                compare(case, threads, arguments.rounds, sides, texts.stat().st_size)
                for side in sides.values():
                    side.end()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--peer"]:
        run_peer(*sys.argv[2:])
    else:
        main()
