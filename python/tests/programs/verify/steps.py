# SPDX-License-Identifier: Apache-2.0
"""Trains a small model with the mistake that the first argument names, or correctly ("right"). The
other arguments are features that the program uses."""

import sys

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from accelerate import Accelerator
from accelerate.utils import (
    DeepSpeedPlugin,
    DistributedDataParallelKwargs,
    FullyShardedDataParallelPlugin,
)

mistake = sys.argv[1]
options = sys.argv[2:]


class Sequences(Dataset):
    """Token sequences; the later ones have more ignored labels."""

    def __len__(self):
        return 256

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        tokens = torch.randint(0, 50, (16,), generator=generator)
        labels = tokens.clone()
        labels[: index * 7 % 13] = -100
        if mistake == "augment":
            tokens = (tokens + torch.randint(0, 50, (16,))) % 50
        return tokens, labels


class Noise(nn.Module):
    """Adds noise that depends on the rank."""

    value = None

    def forward(self, hidden):
        return hidden if self.value is None else hidden + self.value


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 24)
        self.block = nn.TransformerEncoderLayer(24, 2, 48, dropout=0.1, batch_first=True)
        self.frozen = nn.Linear(24, 24).requires_grad_(False)
        self.head = nn.Linear(24, 50)
        self.register_buffer("mean", torch.zeros(24))
        self.noise = Noise()
        self.norm = nn.BatchNorm1d(24) if mistake == "batch_norm" else nn.Identity()

    def forward(self, tokens):
        hidden = self.frozen(self.block(self.embed(tokens)))
        if mistake == "buffer":
            with torch.no_grad():
                self.mean.mul_(0.9).add_(0.1 * hidden.mean((0, 1)))
            hidden = hidden - self.mean
        if mistake == "noise":
            hidden = hidden + 0.1 * torch.randn_like(hidden)
        if mistake == "numpy":
            hidden = hidden + torch.from_numpy(np.random.rand(*hidden.shape)).float()
        hidden = self.norm(hidden.transpose(1, 2)).transpose(1, 2)
        return self.head(self.noise(hidden))


kwargs = []
if mistake == "buffer":
    kwargs.append(DistributedDataParallelKwargs(broadcast_buffers=False))
steps = 4 if "accumulate" in options or mistake in ("raw_backward", "extra_backward") else 1
accelerator = Accelerator(
    gradient_accumulation_steps=steps,
    kwargs_handlers=kwargs,
    deepspeed_plugin=DeepSpeedPlugin(zero_stage=2) if "zero" in options else None,
    fsdp_plugin=FullyShardedDataParallelPlugin(fsdp_version=2) if "sharded" in options else None,
)
rank = accelerator.process_index
model = Model()
rate = 1e-3 * (accelerator.num_processes if "scaled_rate" in options else 1)
optimizer = torch.optim.AdamW(model.parameters(), rate)
schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, 20)
data = Sequences()
sampler = None
if mistake == "sampler":
    order = list(range(rank, len(data), accelerator.num_processes))
    loader = DataLoader(data, 4, sampler=order)
else:
    loader = DataLoader(data, 4, shuffle=True)

raw = model
if mistake == "raw_model":
    optimizer, loader, schedule = accelerator.prepare(optimizer, loader, schedule)
    raw.to(accelerator.device)
elif mistake == "raw_optimizer":
    model, loader = accelerator.prepare(model, loader)
elif mistake == "raw_loader":
    model, optimizer, schedule = accelerator.prepare(model, optimizer, schedule)
else:
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
if mistake == "rank_seed":
    raw.noise.value = torch.randn(24, generator=torch.Generator().manual_seed(rank))
if mistake == "frozen":
    with torch.no_grad():
        raw.frozen.weight.add_(0.1 * rank)
if mistake in ("adapter", "outside"):
    extra = nn.Linear(24, 24, bias=False)
    if mistake == "adapter":
        raw.frozen.adapter = extra
        raw.frozen.register_forward_hook(lambda module, _, out: out + module.adapter(out))
        other = torch.optim.SGD(extra.parameters(), 0.1)
    else:
        outside = nn.Parameter(torch.zeros(50))
        other = torch.optim.SGD([outside], 0.1)

if mistake == "fails" and rank == 1:
    raise SystemExit(1)
torch.save(torch.ones(2), "weights.pt")
accelerator.save_state("state")
accelerator.save_model(model, "model")
for _ in range(2):
    for number, (tokens, labels) in enumerate(loader):
        if mistake == "time" and number == accelerator.num_processes:
            sys.exit()
        with accelerator.accumulate(model):
            if "adversarial" in options:
                model(tokens).square().sum().backward()
                optimizer.zero_grad()
            out = model(tokens)
            if mistake == "outside":
                out = out + outside
            if mistake == "unequal":
                loss = nn.functional.cross_entropy(out.flatten(0, 1), labels.flatten())
            else:
                summed = nn.functional.cross_entropy(
                    out.flatten(0, 1), labels.flatten(), reduction="sum"
                )
                loss = summed / tokens.numel()
            count = (labels != -100).sum()
            if mistake == "extra_backward":
                out.square().mean().backward(retain_graph=True)
            if mistake == "raw_backward":
                loss.backward()
            elif "weighted" in options:
                accelerator.backward(summed / count, weight=count)
            elif "global_count" in options:
                total = accelerator.reduce(count)
                accelerator.backward(summed * accelerator.num_processes / total)
            else:
                accelerator.backward(loss)
            if accelerator.sync_gradients and mistake == "changed" and rank == 1:
                raw.head.weight.grad.mul_(1.5)
            if "clip" in options and accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            if mistake in ("adapter", "outside"):
                other.step()
                other.zero_grad()
            if mistake != "raw_optimizer":
                schedule.step()
            optimizer.zero_grad()
