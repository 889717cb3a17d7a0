# SPDX-License-Identifier: Apache-2.0
"""transformers' Trainer on a small model."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class Sequences(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        tokens = torch.randint(0, 64, (12,), generator=generator)
        labels = tokens.clone()
        labels[: index % 7] = -100
        return {"input_ids": tokens, "labels": labels}


config = GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=2, n_head=2)
arguments = TrainingArguments(
    "out",
    per_device_train_batch_size=2,
    gradient_accumulation_steps=2,
    learning_rate=1e-3,
    max_steps=4,
    save_steps=1,
    save_total_limit=1,
    report_to=[],
    use_cpu=True,
)
Trainer(GPT2LMHeadModel(config), arguments, train_dataset=Sequences()).train()
