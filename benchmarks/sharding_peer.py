# SPDX-License-Identifier: Apache-2.0
"""The peer's side of sharding.py: PyTorch's FSDP2, which gathers parameters in each step."""
import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

WARM_UP, STEPS, WIDTH, LAYERS = 3, 10, 256, 4


def main():
    torch.set_num_threads(1)
    device = "cuda" if sys.argv[2:] == ["gpu"] else "cpu"
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    layer = nn.TransformerEncoderLayer(WIDTH, 8, 4 * WIDTH, dropout=0.0)
    model = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False).to(device)
    for block in model.layers:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    data = torch.randn(32, int(sys.argv[1]), WIDTH, device=device)
    times = []
    for step in range(-WARM_UP, STEPS):
        start = time.perf_counter()
        loss = model(data).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        loss.item()  # The device is through.
        if step >= 0:
            times.append((time.perf_counter() - start) * 1e3)
    if dist.get_rank() == 0:
        print(statistics.median(times))
    dist.destroy_process_group()


main()
