# SPDX-License-Identifier: Apache-2.0
"""Runs the schedules of transformers and PyTorch for 200 steps and writes the rates, for
tests/optim/schedulers_test.cpp to compare with.

    python tools/make_schedule_reference.py tests/reference/schedules.safetensors

One tensor per case: a row per step, from 0 on, a column per group of parameters. For
one_cycle* there is a second one with the momentum of the first group.
"""
import sys

import torch
from safetensors.torch import save_file
from torch.optim import lr_scheduler as torch_schedulers
from transformers import get_scheduler

STEPS = 200
COUNTS = {"num_warmup_steps": 20, "num_training_steps": 180}


def metric(step):
    """Falls in stairs, with a ripple; fractions that both sides compute alike."""
    return 1 / (1 + step // 25) + (step * 7 % 5) / 64


def make_optimizer(kind=torch.optim.SGD):
    weights = [torch.zeros(1, requires_grad=True) for _ in range(2)]
    options = {"momentum": 0.9} if kind is torch.optim.SGD else {}
    return kind(
        [{"params": weights[:1]}, {"params": weights[1:], "lr": 3e-3}], lr=1e-2, **options)


def rates(optimizer):
    return [group["lr"] for group in optimizer.param_groups]


def momentum(optimizer):
    group = optimizer.param_groups[0]
    return group["betas"][0] if "betas" in group else group["momentum"]


def run(make, with_metric=False, kind=torch.optim.SGD):
    optimizer = make_optimizer(kind)
    scheduler = make(optimizer)
    rows, momenta = [rates(optimizer)], [momentum(optimizer)]
    for step in range(1, STEPS + 1):
        optimizer.step()
        scheduler.step(*([metric(step)] if with_metric else []))
        rows.append(rates(optimizer))
        momenta.append(momentum(optimizer))
    return (torch.tensor(rows, dtype=torch.float64),
            torch.tensor(momenta, dtype=torch.float64))


def named(name, specific=None, counts=None):
    return lambda optimizer: get_scheduler(
        name, optimizer, scheduler_specific_kwargs=specific,
        **(COUNTS if counts is None else counts))


def warm_then_decay(optimizer):
    t = torch_schedulers
    return t.SequentialLR(optimizer, [
        t.LambdaLR(optimizer, lambda step: (step + 1) / 30),
        t.ExponentialLR(optimizer, 0.97),
        t.StepLR(optimizer, 7, 0.5)], milestones=[30, 120])


def chained(optimizer):
    t = torch_schedulers
    return t.ChainedScheduler([
        t.MultiStepLR(optimizer, [40, 90], 0.3),
        t.ExponentialLR(optimizer, 0.99)])


NO_WARMUP = {"num_warmup_steps": 0, "num_training_steps": 200}
CASES = {
    "linear": named("linear"),
    "linear_no_warmup": named("linear", counts=NO_WARMUP),
    "cosine": named("cosine"),
    "cosine_cycles": named("cosine", {"num_cycles": 1.75}),
    "cosine_with_restarts": named("cosine_with_restarts", {"num_cycles": 3}),
    "polynomial": named("polynomial"),
    "polynomial_power": named("polynomial", {"lr_end": 1e-4, "power": 2.5}),
    "constant": named("constant"),
    "constant_with_warmup": named("constant_with_warmup"),
    "inverse_sqrt": named("inverse_sqrt"),
    "inverse_sqrt_timescale": named("inverse_sqrt", {"timescale": 35}),
    "inverse_sqrt_no_warmup": named("inverse_sqrt", counts=NO_WARMUP),
    "cosine_with_min_lr": named("cosine_with_min_lr", {"min_lr": 1e-3}),
    "cosine_with_min_lr_rate": named("cosine_with_min_lr", {"min_lr_rate": 0.2}),
    "cosine_warmup_with_min_lr": named("cosine_warmup_with_min_lr", {"min_lr_rate": 0.2}),
    "cosine_warmup_with_min_lr_start": named(
        "cosine_warmup_with_min_lr", {"min_lr": 1e-3, "warmup_lr_rate": 0.05}),
    "wsd": named("warmup_stable_decay", {"num_decay_steps": 50}),
    "wsd_linear": named(
        "warmup_stable_decay", {
            "num_decay_steps": 50, "num_stable_steps": 60, "min_lr_ratio": 0.1,
            "warmup_type": "cosine", "decay_type": "linear"},
        {"num_warmup_steps": 20}),
    "wsd_sqrt": named(
        "warmup_stable_decay", {
            "num_decay_steps": 50, "warmup_type": "1-sqrt", "decay_type": "1-sqrt"}),
    "step": lambda o: torch_schedulers.StepLR(o, 30, 0.3),
    "multi_step": lambda o: torch_schedulers.MultiStepLR(o, [50, 120, 120, 150], 0.3),
    "exponential": lambda o: torch_schedulers.ExponentialLR(o, 0.97),
    "lambda": lambda o: torch_schedulers.LambdaLR(
        o, [lambda step: 1 / (1 + step), lambda step: 0.5 ** (step // 40)]),
    "sequential": warm_then_decay,
    "chained": chained,
}
METRIC_CASES = {
    "plateau": named("reduce_lr_on_plateau", {"patience": 4, "factor": 0.5}),
    "plateau_max": named("reduce_lr_on_plateau", {
        "mode": "max", "patience": 9, "factor": 0.7, "cooldown": 6, "min_lr": 1e-3,
        "threshold": 0.01, "threshold_mode": "abs"}),
    "greedy": named("greedy", {"patience": 2, "min_lr": 5e-3, "max_lr": 1.5e-2}),
    "greedy_smooth": named("greedy", {
        "patience": 1, "min_lr": 5e-3, "factor": 0.6, "smooth": True, "window_size": 7,
        "cooldown": 2, "warmup": 3, "reset_start": 2}),
}
ONE_CYCLE = {
    "one_cycle": (torch.optim.SGD, {"max_lr": [0.1, 0.03], "total_steps": 200}),
    "one_cycle_linear": (torch.optim.AdamW, {
        "max_lr": 0.1, "total_steps": 210, "pct_start": 0.25, "three_phase": True,
        "anneal_strategy": "linear", "div_factor": 10.0}),
}


def main():
    tensors = {name: run(make)[0] for name, make in CASES.items()}
    for name, make in METRIC_CASES.items():
        tensors[name] = run(make, with_metric=True)[0]
    for name, (kind, options) in ONE_CYCLE.items():
        tensors[name], tensors[name + ".momentum"] = run(
            lambda o: torch_schedulers.OneCycleLR(o, **options), kind=kind)
    save_file(tensors, sys.argv[1])


main()
