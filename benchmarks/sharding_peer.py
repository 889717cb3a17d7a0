# SPDX-License-Identifier: Apache-2.0
"""The peer's side of sharding.py: PyTorch's FSDP2, which gathers parameters in each step."""
import statistics
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

WARM_UP, STEPS, WIDTH, LAYERS = 3, 10, 256, 4


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    layer = nn.TransformerEncoderLayer(WIDTH, 8, 4 * WIDTH, dropout=0.0)
    model = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
    for block in model.layers:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    data = torch.randn(32, 4, WIDTH)
    times = []
    for step in range(-WARM_UP, STEPS):
        start = time.perf_counter()
        model(data).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step >= 0:
            times.append((time.perf_counter() - start) * 1e3)
    if dist.get_rank() == 0:
        print(statistics.median(times))
    dist.destroy_process_group()


main()
