# SPDX-License-Identifier: Apache-2.0
import torch

scale = 10


class Report:
    def __init__(self, total):
        self.total = total


def train(start):
    import torch.distributed as dist

    dist.init_process_group("gloo")
    total = torch.tensor(float(start + dist.get_rank()))
    dist.all_reduce(total)
    print(f"rank {dist.get_rank()} of {dist.get_world_size()}: {total.item()}")
    dist.destroy_process_group()
    return Report(total.item() * scale)
