#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/reference/text: small tokenizers trained on the fortunes and what the
Python package `tokenizers` answers with them, so that the tests hold without
the package.

    apt install fortunes fortunes-min && pip install tokenizers
    python3 tools/make_tokenizer_reference.py
"""
import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests/text"))
import oracle  # noqa: E402

KINDS = {"wordpiece": 700, "gpt2": 600, "roberta": 600, "llama3": 600}
JOBS = [
    {"truncation": None, "padding": None},
    {"add_special_tokens": False, "padding": None, "truncation": None},
    {"truncation": {"max_length": 17, "stride": 2}, "padding": {"pad_id": 1}},
    {"truncation": {"max_length": 17, "direction": "left"},
     "padding": {"length": 20, "direction": "left", "pad_type_id": 1}},
]
MAX_CHARS = 48


def answer(tokenizer, job):
    def values(encoding):
        names = ["ids", "type_ids", "attention_mask", "special_tokens_mask",
                 "word_ids", "offsets"]
        return dict(zip(names, oracle.arrays(encoding)),
                    overflowing=[dict(values(o), overflowing=[])
                                 for o in encoding.overflowing])

    oracle.configure(tokenizer, job)
    return [dict(values(e), decoded=tokenizer.decode(e.ids))
            for e in oracle.encode(tokenizer, job)]


def write_fuzz_seeds(folder, tokenizers, texts):
    """Tokenizers with the same settings and a handful of tokens, and texts."""
    for kind, text in tokenizers.items():
        tokenizer = json.loads(text)
        model = tokenizer["model"]
        letters = [t for t in model["vocab"] if len(t) == 1 and t < "\x7f"]
        named = [t for t in model["vocab"] if t[0] in "<[" and len(t) > 1]
        model["vocab"] = {t: model["vocab"][t] for t in letters + named + ["Ġ"]
                          if t in model["vocab"]}
        if "merges" in model:
            model["vocab"]["he"] = max(model["vocab"].values()) + 1
            model["merges"] = [["h", "e"]]
        write_json(folder / f"fuzz_json/{kind}.json", tokenizer)
    for number, text in enumerate(texts):
        path = folder / f"fuzz_text/{number}"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, newline="")


def write_json(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, separators=(",", ":")) + "\n")


def main():
    folder = ROOT / "tests/reference/text"
    texts = [t for t in oracle.hard_cases() if len(t) <= MAX_CHARS]
    pairs = [["don't stop", "it'ſ über 日本"], ["  two ", "Größe <mask>"],
             ["", "x"], ["one two three four", "1234567"]]
    trained = {}
    for kind, size in KINDS.items():
        tokenizer = oracle.train(kind, oracle.fortunes(), size)
        trained[kind] = tokenizer.to_str()
        write_json(folder / f"{kind}.json", json.loads(trained[kind]))
        jobs = [dict(JOBS[0], inputs=texts)]
        jobs += [dict(job, inputs=pairs) for job in JOBS]
        for job in jobs:
            job["answers"] = answer(tokenizer, job)
        write_json(folder / f"{kind}_reference.json", jobs)
    write_fuzz_seeds(folder, trained, texts)


if __name__ == "__main__":
    main()
