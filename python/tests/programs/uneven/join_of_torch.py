# SPDX-License-Identifier: Apache-2.0
# The original joins on GPUs only; this is what it calls there.

import json
import sys

import torch
from answers import answer
from torch.distributed.algorithms.join import Join

torch.distributed.init_process_group("gloo")
torch.manual_seed(0)
net = torch.nn.Linear(1, 1)
model = torch.nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
mine = json.loads(sys.argv[1])[torch.distributed.get_rank()]
with Join([model]):
    for row in mine:
        model(torch.full((1, 1), float(row))).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
answer([len(mine), [round(p.item(), 5) for p in net.parameters()]])
