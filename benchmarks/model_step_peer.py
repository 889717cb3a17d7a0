# SPDX-License-Identifier: Apache-2.0
"""The peer's side of model_step.py: the same step by transformers.

  model_step_peer.py FOLDER BATCH TOKENS STEPS
  model_step_peer.py --make FOLDER    writes the random BERT-mini
"""
import statistics
import sys
import time

sys.path.pop(0)  # This folder has a safetensors.py, which is not the package.
import torch
import transformers
from transformers import AutoModelForSequenceClassification, BertConfig

WARM_UP = 2

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()


def make(folder):
    torch.manual_seed(0)
    config = BertConfig(hidden_size=256, num_hidden_layers=4,
                        num_attention_heads=4, intermediate_size=1024)
    AutoModelForSequenceClassification.from_config(config).save_pretrained(folder)


def main():
    if sys.argv[1] == "--make":
        return make(sys.argv[2])
    batch, tokens, steps = map(int, sys.argv[2:])
    model = AutoModelForSequenceClassification.from_pretrained(
        sys.argv[1], num_labels=2)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-5)
    inputs = {"input_ids": torch.randint(1000, 30000, (batch, tokens)),
              "attention_mask": torch.ones(batch, tokens, dtype=torch.long),
              "labels": torch.randint(0, 2, (batch,))}
    inputs["attention_mask"][:batch // 4, tokens // 2:] = 0
    times = []
    for step in range(-WARM_UP, steps):
        marks = [time.perf_counter()]
        outputs = model(**inputs)
        marks.append(time.perf_counter())
        outputs.loss.backward()
        marks.append(time.perf_counter())
        optimizer.step()
        optimizer.zero_grad()
        marks.append(time.perf_counter())
        if step >= 0:
            times.append((marks[-1] - marks[0], *(
                after - before for before, after in zip(marks, marks[1:]))))
    print(*(1e3 * statistics.median(column) for column in zip(*times)))


main()
