# SPDX-License-Identifier: Apache-2.0
"""The peer's side of ddp_cpu.py: PyTorch's DistributedDataParallel."""
import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import gelu, scaled_dot_product_attention
from torch.nn.parallel import DistributedDataParallel

WARM_UP, STEPS, CHANNELS, HEADS = 5, 25, 192, 6


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1 = nn.LayerNorm(CHANNELS)
        self.qkv = nn.Linear(CHANNELS, 3 * CHANNELS)
        self.projection = nn.Linear(CHANNELS, CHANNELS)
        self.norm2 = nn.LayerNorm(CHANNELS)
        self.up = nn.Linear(CHANNELS, 4 * CHANNELS)
        self.down = nn.Linear(4 * CHANNELS, CHANNELS)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(
            b, t, 3, HEADS, c // HEADS).permute(2, 0, 3, 1, 4).unbind(0)
        y = scaled_dot_product_attention(q, k, v)
        x = x + self.projection(y.transpose(1, 2).reshape(b, t, c))
        return x + self.down(gelu(self.up(self.norm2(x))))


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    if sys.argv[1] == "mlp":
        model = nn.Sequential(
            nn.Linear(1024, 2048), nn.ReLU(), nn.Linear(2048, 1024))
        data = torch.randn(8, 1024)
    else:
        model = nn.Sequential(*(Block() for _ in range(4)))
        data = torch.randn(4, 64, CHANNELS)
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    times = []
    for step in range(-WARM_UP, STEPS):
        start = time.perf_counter()
        ddp(data).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step >= 0:
            times.append((time.perf_counter() - start) * 1e3)
    if dist.get_rank() == 0:
        print(statistics.median(times))
    dist.destroy_process_group()


main()
