# SPDX-License-Identifier: Apache-2.0
"""text_classification learns two topics from few texts on two processes, saves the
best model, and classifies lines with it; mistakes are one line."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

bin_dir = pathlib.Path(sys.argv[1])
model = os.environ.get("ACCELERATE_REAL_MODEL")
if not model:
    print("skipped: ACCELERATE_REAL_MODEL is not set")
    sys.exit(77)

FOOD = ["the soup was cold", "bake the bread for an hour", "she ordered pasta with cheese",
        "a ripe tomato and some salt", "breakfast was eggs and toast", "the cook peeled potatoes",
        "chocolate cake for dessert", "add garlic to the sauce", "a spicy curry with rice",
        "fresh apples and pears", "grill the fish with lemon", "pour the milk into the bowl"]
LAW = ["the judge dismissed the case", "her lawyer filed an appeal", "the court found him guilty",
       "a witness took the oath", "the jury reached a verdict", "the contract was void",
       "he was sentenced to prison", "the attorney objected", "parliament passed the statute",
       "the plaintiff sued for damages", "evidence was presented in trial",
       "the defendant pleaded innocent"]


def run(*command, text=None):
    return subprocess.run([str(part) for part in command], capture_output=True, text=True,
                          input=text, timeout=300, env={**os.environ, "OMP_NUM_THREADS": "1"})


with tempfile.TemporaryDirectory() as folder:
    table = pathlib.Path(folder, "texts.jsonl")
    table.write_text("".join(
        json.dumps({"text": text, "label": label}) + "\n"
        for pair in zip(FOOD, LAW) for text, label in zip(pair, ("food", "law"))))
    output = pathlib.Path(folder, "classifier")
    train = run(bin_dir / "accelerate", "launch", "--cpu", "--num_processes", 2,
                bin_dir / "text_classification", "train", "--model", model, "--data", table,
                "--output", output, "--num_epochs", 4, "--batch_size", 4, "--learning_rate", 5e-4,
                "--max_seq_length", 16, "--eval_fraction", 0.25)
    assert train.returncode == 0, train.stdout + train.stderr
    print(train.stdout)
    assert "18 texts to train on, 6 to evaluate, 2 classes, 2 process(es)" in train.stdout
    accuracy = float(train.stdout.split("best: accuracy ")[1].split(",")[0])
    assert accuracy > 0.8, train.stdout

    lines = "the chef fried onions\nthe court ruled against the lawyer\n"
    answer = run(bin_dir / "text_classification", "predict", "--model", output, text=lines)
    assert answer.returncode == 0, answer.stderr
    assert [line.split("\t")[0] for line in answer.stdout.splitlines()] == ["food", "law"], answer

    for arguments, expected in [
            (["train", "--model", model, "--data", folder + "/none.csv"], "none.csv"),
            (["train", "--model", folder, "--data", table], "tokenizer.json"),
            (["predict", "--model", folder], "tokenizer.json")]:
        wrong = run(bin_dir / "text_classification", *arguments)
        assert wrong.returncode == 1 and expected in wrong.stderr, wrong
        assert wrong.stderr.count("\n") == 1, wrong.stderr
