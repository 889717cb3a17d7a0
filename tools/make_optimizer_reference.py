# SPDX-License-Identifier: Apache-2.0
"""Trains a handful of tensors with PyTorch's optimizers (Lion: lion-pytorch's) and
writes where they end, for tests/optim/optimizers_test.cpp to compare with.

    python tools/make_optimizer_reference.py tests/reference/optimizers.safetensors

One tensor per case: a row after 1, 10 and 50 steps, the weights one after the other.
Weights and gradients are fractions that both sides compute exactly.
"""
import sys

import torch
from lion_pytorch import Lion
from safetensors.torch import save_file
from torch.optim import Adafactor, Adam, AdamW, Muon, SGD

SHAPES = [(6, 4), (6,), (4,), (2, 3, 4), (3, 8)]
ROWS = (1, 10, 50)
LATE = 2  # The parameter that gets no gradient at first in the case "late".


def fractions(shape, *numbers):
    """Parts of 128, all over [-1, 1]."""
    count = torch.arange(torch.Size(shape).numel())
    salt, factor = numbers
    return (((count * factor + salt) % 257 - 128) / 128).float().reshape(shape)


def initial(k):
    return fractions(SHAPES[k], 53 * k + 7, 29)


def gradient(k, step):
    return fractions(SHAPES[k], 101 * step + 13 * k, 37 + 7 * step)


def train(make, matrices_only=False, late=False):
    params = [initial(k).requires_grad_() for k in range(len(SHAPES))]
    chosen = [k for k in range(len(SHAPES)) if not matrices_only or len(SHAPES[k]) == 2]
    optimizer = make([params[k] for k in chosen])
    rows = []
    for step in range(1, ROWS[-1] + 1):
        for k in chosen:
            skip = late and k == LATE and step <= 5
            params[k].grad = None if skip else gradient(k, step)
        optimizer.step()
        if step in ROWS:
            rows.append(torch.cat([p.detach().flatten() for p in params]))
    return torch.stack(rows)


def groups(params):
    decayed = [p for p in params if p.dim() >= 2]
    others = [p for p in params if p.dim() < 2]
    return [{"params": decayed}, {"params": others, "lr": 1e-3, "weight_decay": 0.0}]


LR = {"lr": 1e-2}
FUSED = {"fused": True, **LR}
CASES = {
    "adamw": lambda p: AdamW(p, weight_decay=0.1, **FUSED),
    "adamw_plain": lambda p: AdamW(p, weight_decay=0, betas=(0.8, 0.95), **FUSED),
    "adamw_amsgrad": lambda p: AdamW(p, amsgrad=True, **FUSED),
    "adamw_maximize": lambda p: AdamW(p, maximize=True, eps=1e-3, **FUSED),
    "adamw_groups": lambda p: AdamW(groups(p), weight_decay=0.1, **FUSED),
    "adam": lambda p: Adam(p, **FUSED),
    "adam_decay": lambda p: Adam(p, weight_decay=0.1, **FUSED),
    "adam_amsgrad": lambda p: Adam(p, weight_decay=0.1, amsgrad=True, **FUSED),
    "sgd": lambda p: SGD(p, **FUSED),
    "sgd_decay": lambda p: SGD(p, weight_decay=0.1, **FUSED),
    "sgd_momentum": lambda p: SGD(p, momentum=0.9, dampening=0.5, **FUSED),
    "sgd_nesterov": lambda p: SGD(
        p, momentum=0.9, nesterov=True, weight_decay=0.1, **FUSED),
    "sgd_maximize": lambda p: SGD(p, momentum=0.9, maximize=True, **FUSED),
    "sgd_groups": lambda p: SGD(groups(p), momentum=0.9, weight_decay=0.1, **FUSED),
    "adafactor": lambda p: Adafactor(p, **LR),
    "adafactor_decay": lambda p: Adafactor(p, weight_decay=0.1, **LR),
    "adafactor_clipped": lambda p: Adafactor(
        p, lr=0.3, eps=(1e-2, 1e-2), d=1.25, beta2_decay=-0.5, maximize=True),
    "adafactor_groups": lambda p: Adafactor(groups(p), weight_decay=0.1, **LR),
    "lion": lambda p: Lion(p, **LR),
    "lion_decay": lambda p: Lion(p, weight_decay=0.1, **LR),
    "lion_decoupled": lambda p: Lion(
        p, weight_decay=1e-3, decoupled_weight_decay=True, betas=(0.95, 0.98), **LR),
    "lion_groups": lambda p: Lion(groups(p), weight_decay=0.1, **LR),
    "muon": lambda p: Muon(p, **LR),
    "muon_plain": lambda p: Muon(p, weight_decay=0, nesterov=False, **LR),
    "muon_match_rms": lambda p: Muon(p, adjust_lr_fn="match_rms_adamw", **LR),
}


def main():
    torch.set_num_threads(1)
    tensors = {
        name: train(make, matrices_only=name.startswith("muon"))
        for name, make in CASES.items()}
    tensors["adamw_late"] = train(lambda p: AdamW(p, **FUSED), late=True)
    save_file(tensors, sys.argv[1], metadata={
        "torch": torch.__version__.split("+")[0],
        "cpu_capability": torch.backends.cpu.get_cpu_capability()})


main()
