# SPDX-License-Identifier: Apache-2.0
"""Trains with Hugging Face Accelerate (accumulation, 1, 2 and 4 processes) and
with PyTorch's GradScaler under injected infinities, and writes what they
computed, for tests/accelerator/training_step_test.cpp to compare with.

    python tools/make_training_step_reference.py > tests/reference/training_step.json
"""
import json
import os
import socket
import sys

import torch
import torch.multiprocessing as mp

SAMPLES, BATCH, EPOCHS = 46, 3, 2


def grid(rows, columns, a, b):
    """Numbers that the C++ side makes too."""
    i = torch.arange(rows, dtype=torch.float64)[:, None]
    j = torch.arange(columns, dtype=torch.float64)[None, :]
    return torch.sin(a * i + b * j).float()


def make_model():
    model = torch.nn.Sequential(
        torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2))
    with torch.no_grad():
        for k, parameter in enumerate(model.parameters()):
            parameter.copy_(grid(1, parameter.numel(), 0, 0.37 + k).reshape(parameter.shape))
    return model


def values(model):
    return [v for p in model.parameters() for v in p.detach().double().flatten().tolist()]


def train(rank, ranks, port, steps, queue):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks),
                      MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), ACCELERATE_USE_CPU="true",
                      GLOO_SOCKET_IFNAME="lo")
    if ranks == 1:
        for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
            del os.environ[name]
    torch.set_num_threads(1)
    from accelerate import Accelerator
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=steps)
    assert accelerator.num_processes == ranks, accelerator.num_processes
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(grid(SAMPLES, 4, 0.7, 1.3), grid(SAMPLES, 2, 0.3, 0.9)),
        batch_size=BATCH)
    net, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    updates = 0
    for _ in range(EPOCHS):
        for x, y in loader:
            with accelerator.accumulate(net):
                accelerator.backward(torch.nn.functional.mse_loss(net(x), y))
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(net.parameters(), 0.5)
                    updates += 1
                optimizer.step()
                optimizer.zero_grad()
    if rank == 0:
        queue.put((updates, values(model)))
    accelerator.end_training()


def accumulation():
    context = mp.get_context("spawn")
    cases = []
    for ranks in (1, 2, 4):
        for steps in (1, 2, 3, 7):
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                port = probe.getsockname()[1]
            queue = context.SimpleQueue()
            workers = [context.Process(target=train, args=(r, ranks, port, steps, queue))
                       for r in range(ranks)]
            for worker in workers:
                worker.start()
            updates, weights = queue.get()
            for worker in workers:
                worker.join()
                assert worker.exitcode == 0
            cases.append({"ranks": ranks, "steps": steps, "updates": updates, "weights": weights})
            print(f"{ranks} ranks, {steps} steps: {updates} updates", file=sys.stderr)
    return cases


def scaler():
    infinite = (4, 5, 11, 20)
    parameter = torch.nn.Parameter(grid(1, 6, 0, 1.0))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
    scales, weights = [], []
    for step in range(30):
        loss = (parameter * grid(1, 6, 0.2 * step, 0.5)).sum()
        if step in infinite:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        scales.append(scaler.get_scale())
        weights.append(parameter.detach().double().flatten().tolist())
    return {"infinite": infinite, "scales": scales, "weights": weights,
            "growth_tracker": scaler.state_dict()["_growth_tracker"]}


if __name__ == "__main__":
    print(json.dumps({"accumulation": accumulation(), "scaler": scaler()}))
