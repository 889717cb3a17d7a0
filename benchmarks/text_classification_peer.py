# SPDX-License-Identifier: Apache-2.0
"""The peer of text_classification.py: transformers and Hugging Face Accelerate."""
import argparse
import pathlib
import sys

sys.path.pop(0)  # This folder has a safetensors.py, which is not the package.
import torch
from accelerate import Accelerator, DataLoaderConfiguration
from accelerate.utils import set_seed
from transformers import (
    AutoModelForSequenceClassification, AutoTokenizer, DataCollatorWithPadding, get_scheduler)

SEED, EPOCHS, RATE, LENGTH, EVALUATION = 42, 3, 1e-4, 64, 0.15


def read(folder, classes):
    texts, labels = [], []
    for number, name in enumerate(classes):
        content = (pathlib.Path(folder) / name).read_text(errors="replace")
        for entry in ("\n" + content).split("\n%\n"):
            entry = entry.strip("\n")
            if entry.strip():
                texts.append(entry)
                labels.append(number)
    return texts, labels


def main():
    parser = argparse.ArgumentParser()
    for name in ("--model", "--data", "--classes"):
        parser.add_argument(name)
    parser.add_argument("--batch_size", type=int)
    options = parser.parse_args()
    torch.set_num_threads(1)
    accelerator = Accelerator(cpu=True, step_scheduler_with_optimizer=False,
                              dataloader_config=DataLoaderConfiguration(
                                  use_seedable_sampler=True, data_seed=SEED))
    set_seed(SEED)
    classes = options.classes.split(",")
    texts, labels = read(options.data, classes)
    order = torch.randperm(
        len(texts), generator=torch.Generator().manual_seed(SEED)).tolist()
    split = int(len(texts) * (1 - EVALUATION))
    tokenizer = AutoTokenizer.from_pretrained(options.model)

    def samples(indices):
        return [{**tokenizer(texts[i], truncation=True, max_length=LENGTH), "labels": labels[i]}
                for i in indices]

    collate = DataCollatorWithPadding(tokenizer)
    train = torch.utils.data.DataLoader(
        samples(order[:split]), batch_size=options.batch_size, shuffle=True, collate_fn=collate)
    evaluation = torch.utils.data.DataLoader(
        samples(order[split:]), batch_size=32, collate_fn=collate)
    model = AutoModelForSequenceClassification.from_pretrained(
        options.model, num_labels=len(classes))
    decayed = [p for n, p in model.named_parameters() if p.dim() >= 2 and "LayerNorm" not in n]
    others = [p for n, p in model.named_parameters() if p.dim() < 2 or "LayerNorm" in n]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}],
        lr=RATE)
    model, optimizer, train, evaluation = accelerator.prepare(
        model, optimizer, train, evaluation)
    steps = EPOCHS * len(train)
    scheduler = get_scheduler("linear", optimizer, steps // 10, steps)
    best = 0.0
    for _ in range(EPOCHS):
        model.train()
        for batch in train:
            accelerator.backward(model(**batch).loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        model.eval()
        right = total = 0
        for batch in evaluation:
            with torch.no_grad():
                answer = model(**batch).logits.argmax(1)
            answer, truth = accelerator.gather_for_metrics((answer, batch["labels"]))
            right += int((answer == truth).sum())
            total += len(truth)
        best = max(best, right / total)
    accelerator.print(f"best: accuracy {best}")
    accelerator.end_training()


main()
