# SPDX-License-Identifier: Apache-2.0
"""Step time and memory of sharded training on H100s, on paper: the table of
docs/guide_sharding.md.

    python3 tools/sharding_simulator.py

A model is a row of equal blocks, each a unit. One stream computes, one moves
bytes, in the order of its requests; a gather begins with the block that
is `PREFETCH` before its own, a reduction when its block's backward is done. Weights and gathers are bf16,
master weights, gradients in communication and AdamW fp32 (`master_weights`); blocks are
computed again in backward, one sequence on each GPU.
"""
from __future__ import annotations

from dataclasses import dataclass

# One H100 SXM: dense bf16, and the part of it that large products reach.
PEAK_FLOPS = 989e12
FLOPS_EFFICIENCY = 0.5
HBM_BYTES = 80e9
HBM_BYTES_PER_S = 3.35e12 * 0.8
# Each way for each GPU, and the part that collectives reach.
NVLINK_BYTES_PER_S = 450e9 * 0.8
NETWORK_BYTES_PER_S = 50e9 * 0.85  # 400 Gb/s
GPUS_PER_MACHINE = 8
# Starting a collective, and one message between machines.
LAUNCH_S = 20e-6
HOP_S = 5e-6
# What the engine adds on the host for each gather or reduction of a unit.
HOST_S = 20e-6
PREFETCH = 1
TOKENS = 4096
# Bytes of activations of a block for each token and channel (flash attention).
ACTIVATION_BYTES = 34
# AdamW reads master weights, moments and gradients, and writes all but the last and
# the bf16 weights.
ADAMW_BYTES = 4 * 4 + 3 * 4 + 2


@dataclass(frozen=True)
class Model:
    name: str
    parameters: float
    blocks: int
    width: int

    @property
    def unit(self) -> float:
        return self.parameters / self.blocks


MODELS = (Model("7 B", 7e9, 32, 4096), Model("70 B", 70e9, 80, 8192))
GPUS = (8, 64, 256, 1024)
STAGES = ("DDP", 1, 2, 3)


def collective_s(num_bytes: float, gpus: int) -> float:
    """A gather or a reduction of this size, in which each GPU sends its shard
    to all: machines over the network, each GPU by its own card, and
    NVLink inside move at the same time."""
    if gpus == 1:
        return 0.0
    machines = max(1, gpus // GPUS_PER_MACHINE)
    local = min(gpus, GPUS_PER_MACHINE)
    inside = num_bytes * (local - 1) / local / NVLINK_BYTES_PER_S
    between = num_bytes * (machines - 1) / machines
    between /= GPUS_PER_MACHINE * NETWORK_BYTES_PER_S
    return LAUNCH_S + HOST_S + HOP_S * (machines - 1) + max(inside, between)


def memory_bytes(model: Model, stage, gpus: int) -> float:
    """Of one GPU, as in the table of the guide for `master_weights`."""
    p, n, u = model.parameters, gpus, model.unit
    kept = TOKENS * model.width * 2 * model.blocks
    activations = kept + ACTIVATION_BYTES * TOKENS * model.width
    if stage == "DDP":
        return 2 * p + 4 * p + 4 * p + 8 * p + activations
    parts = 4 * p / n + 8 * p / n  # master weights, AdamW
    if stage == 1:
        return 2 * p + 4 * p + 4 * p / n + parts + activations
    gradients = 4 * p / n + 12 * u
    weights = 2 * p if stage == 2 else 2 * (1 + PREFETCH) * u
    return weights + gradients + parts + activations


@dataclass
class Step:
    seconds: float
    compute: float

    @property
    def utilisation(self) -> float:
        """Part of the peak; computing again does not count."""
        return self.compute * 3 / 4 * FLOPS_EFFICIENCY / self.seconds


def step(model: Model, stage, gpus: int) -> Step:
    forward = 2 * model.unit * TOKENS / (PEAK_FLOPS * FLOPS_EFFICIENCY)
    backward = 3 * forward  # Forward again, and twice as much.
    gather = collective_s(2 * model.unit, gpus)
    reduce = collective_s(4 * model.unit, gpus) * (2 if stage == "DDP" else 1)
    gathers = stage == 3 and gpus > 1
    computing = moving = 0.0
    ready: list[float] = []  # When the unit of each pass over a block is there.
    for i in range(2 * model.blocks):
        while gathers and len(ready) < min(i + 1 + PREFETCH, 2 * model.blocks):
            # The last block of forward is the first of backward, and stays.
            if len(ready) != model.blocks:
                moving = max(moving, computing) + gather
            ready.append(moving)
        computing = max(computing, ready[i]) if gathers else computing
        computing += backward if i >= model.blocks else forward
        if i >= model.blocks and gpus > 1:
            moving = max(moving, computing) + reduce
    end = max(computing, moving)
    parts = 1 if stage == "DDP" else gpus
    end += model.parameters / parts * ADAMW_BYTES / HBM_BYTES_PER_S
    if stage in (1, 2):
        end += model.blocks * gather
    return Step(end, model.blocks * (forward + backward))


def cell(model: Model, stage, gpus: int) -> str:
    size = memory_bytes(model, stage, gpus)
    text = f"{size / 1e9:,.0f} GB"
    if size > HBM_BYTES:
        return text
    found = step(model, stage, gpus)
    ms, part = found.seconds * 1e3, found.utilisation * 100
    return f"{text}: {ms:,.0f} ms, {part:.0f} %"


def main() -> None:
    names = ["DDP", "stage 1", "stage 2", "stage 3"]
    print(f"| parameters | GPUs | {' | '.join(names)} |")
    print("|" + "---|" * (2 + len(names)))
    for model in MODELS:
        for gpus in GPUS:
            cells = [cell(model, stage, gpus) for stage in STAGES]
            print(f"| {model.name} | {gpus:,} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
