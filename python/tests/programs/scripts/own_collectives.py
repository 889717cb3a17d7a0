# SPDX-License-Identifier: Apache-2.0
import torch
import torch.distributed as dist
from accelerate import Accelerator

accelerator = Accelerator()
net = accelerator.prepare(torch.nn.Linear(2, 1))
mine = torch.tensor([accelerator.process_index + 1.0])
dist.all_reduce(mine)
accelerator.backward(net(torch.ones(1, 2, device=accelerator.device)).sum())
dist.all_reduce(mine)
assert mine.item() == 6, mine
assert accelerator.reduce(torch.ones(1)).item() == 2
pair = dist.new_group([0, 1])
dist.all_reduce(mine, group=pair)
assert mine.item() == 12
print(f"both {accelerator.process_index} of {dist.get_world_size()}", flush=True)
