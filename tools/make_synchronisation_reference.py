# SPDX-License-Identifier: Apache-2.0
"""What PyTorch computes where ranks do not simply average gradients: DDP with
compression hooks, Join with uneven inputs, averaged parameters. For
tests/parallel/ to compare with.

    python tools/make_synchronisation_reference.py > tests/reference/synchronisation.json
"""
import json
import os
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

BATCH, STEPS, MAX_RANKS = 4, 6, 4
COUNTS = {2: [[3, 5], [0, 2], [4, 1]], 3: [[2, 0, 3]], 4: [[1, 3, 0, 2], [2, 2, 2, 2]]}


def make_model():
    return torch.nn.Sequential(
        torch.nn.Linear(6, 12), torch.nn.BatchNorm1d(12), torch.nn.Tanh(),
        torch.nn.Linear(12, 4))


def values(tensors):
    # Nine digits say which float32 it is.
    return [float(f"{x:.9g}") for t in tensors
            for x in t.detach().double().flatten().tolist()]


def hook_of(name):
    if name == "fp16":
        return None, default_hooks.fp16_compress_hook
    if name == "bf16":
        return None, default_hooks.bf16_compress_hook
    if name == "none":
        return None
    rank, warm = {"power1": (1, True), "power2": (2, True),
                  "power3": (3, True), "power1_cold": (1, False)}[name]
    return power.PowerSGDState(
        None, matrix_approximation_rank=rank, start_powerSGD_iter=2,
        min_compression_rate=0.1, warm_start=warm), power.powerSGD_hook


def batch(data, step, rank):
    first = (step * MAX_RANKS + rank) * BATCH
    return data["inputs"][first:first + BATCH], data["targets"][first:first + BATCH]


def train_step(model, optimizer, data, step, rank):
    inputs, targets = batch(data, step, rank)
    torch.nn.functional.mse_loss(model(inputs), targets).backward()
    optimizer.step()
    optimizer.zero_grad()


def start(data, **options):
    model = make_model()
    model.load_state_dict(data["initial"])
    ddp = DistributedDataParallel(model, **options) if options is not None else model
    return model, ddp, torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.5)


def compressed(rank, data, name):
    model, ddp, optimizer = start(data)
    if hook := hook_of(name):
        ddp.register_comm_hook(*hook)
    for step in range(STEPS):
        train_step(ddp, optimizer, data, step, rank)
    return values(model.parameters())


def joined(rank, data, counts, static):
    model, ddp, optimizer = start(data)
    with Join([ddp], divide_by_initial_world_size=static):
        for step in range(counts[rank]):
            train_step(ddp, optimizer, data, step, rank)
    return values(list(model.parameters()) + list(model.buffers()))


def local_sgd(rank, data, steps):
    model = make_model()
    model.load_state_dict(data["initial"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.5)

    def average():
        for parameter in model.parameters():
            dist.all_reduce(parameter.data)
            parameter.data /= dist.get_world_size()

    for step in range(STEPS):
        train_step(model, optimizer, data, step, rank)
        if (step + 1) % steps == 0:
            average()
    average()
    return values(model.parameters())


def cases(world):
    if world == 2:
        for name in ("none", "fp16", "bf16", "power1", "power2", "power3", "power1_cold"):
            yield f"hook {name}", compressed, (name,)
        for steps in (1, 4):
            yield f"local_sgd {steps}", local_sgd, (steps,)
    for counts in COUNTS[world]:
        for static in (True, False):
            text = ",".join(map(str, counts))
            yield f"join {text} {'all' if static else 'active'}", joined, (counts, static)


def work(rank, world, port, data, queue):
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", rank=rank, world_size=world, init_method=f"tcp://127.0.0.1:{port}")
    for name, function, arguments in cases(world):
        result = function(rank, data, *arguments)
        dist.barrier()
        if rank == 0:
            queue.put((name, result))
    if rank == 0:
        queue.put(None)
    dist.destroy_process_group()


def main():
    torch.manual_seed(11)
    model = make_model()
    rows = STEPS * MAX_RANKS * BATCH
    data = {"initial": model.state_dict(),
            "inputs": torch.randn(rows, 6), "targets": torch.randn(rows, 4)}
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    results = {}
    for world in (2, 3, 4):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        context = mp.get_context("spawn")
        queue = context.Queue()
        ranks = mp.spawn(work, (world, port, data, queue), nprocs=world, join=False)
        while (answer := queue.get()) is not None:
            results[answer[0]] = answer[1]
        ranks.join()
    print(json.dumps({
        "batch": BATCH, "steps": STEPS, "max_ranks": MAX_RANKS,
        "initial": values(model.parameters()),
        "inputs": values([data["inputs"]]), "targets": values([data["targets"]]),
        "results": results}))


if __name__ == "__main__":
    main()
