# SPDX-License-Identifier: Apache-2.0
"""Trains a small network with PyTorch's DistributedDataParallel and writes what
it computed, for tests/accelerator/equivalence_test.cpp to compare with.

    python tools/make_ddp_reference.py > tests/reference/ddp_reference.json
"""
import json
import os
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

RANKS, BATCH, STEPS, SAMPLES = 2, 4, 12, 96


def make_model():
    return torch.nn.Sequential(
        torch.nn.Linear(5, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))


def values(tensor):
    return tensor.detach().double().flatten().tolist()


def train(rank, port, initial, inputs, targets, queue):
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", rank=rank, world_size=RANKS,
        init_method=f"tcp://127.0.0.1:{port}")
    model = make_model()
    model.load_state_dict(initial)
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    first_gradients = None
    for step in range(STEPS):
        first = (step * RANKS + rank) * BATCH
        loss = torch.nn.functional.mse_loss(
            ddp(inputs[first:first + BATCH]), targets[first:first + BATCH])
        loss.backward()
        if step == 0:
            first_gradients = [values(p.grad) for p in model.parameters()]
        optimizer.step()
        optimizer.zero_grad()
    if rank == 0:
        queue.put((first_gradients, [values(p) for p in model.parameters()]))
    dist.destroy_process_group()


def main():
    torch.manual_seed(7)
    model = make_model()
    inputs, targets = torch.randn(SAMPLES, 5), torch.randn(SAMPLES, 3)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    context = mp.get_context("spawn")
    queue = context.SimpleQueue()
    mp.spawn(
        train, (port, model.state_dict(), inputs, targets, queue), nprocs=RANKS)
    gradients, trained = queue.get()
    print(json.dumps({
        "ranks": RANKS, "batch": BATCH, "steps": STEPS,
        "initial": [values(p) for p in model.parameters()],
        "inputs": values(inputs), "targets": values(targets),
        "first_gradients": gradients, "trained": trained,
    }))


if __name__ == "__main__":
    main()
