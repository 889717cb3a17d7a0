# SPDX-License-Identifier: Apache-2.0
import json
import sys

import torch
from accelerate import Accelerator
from answers import answer

weighted, options = map(json.loads, sys.argv[1:])
accelerator = Accelerator(cpu=True)
rank = accelerator.process_index
torch.manual_seed(0)
net, twin = torch.nn.Linear(3, 1), torch.nn.Linear(3, 1)
twin.load_state_dict(net.state_dict())
batches = [[torch.randn(1 + (3 * r + i) % 5, 3) for i in range((2, 4)[r])] for r in range(2)]
model, optimizer = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1))
with accelerator.join_uneven_inputs([model], **options):
    for batch in batches[rank]:
        weight = {"weight": len(batch)} if weighted else {}
        accelerator.backward(model(batch).square().mean(), **weight)
        optimizer.step()
        optimizer.zero_grad()
plain = torch.optim.SGD(twin.parameters(), lr=0.1)
for i in range(4):
    here = [mine[i] for mine in batches if i < len(mine)]
    if weighted:
        loss = twin(torch.cat(here)).square().mean()
    else:
        loss = sum(twin(batch).square().mean() for batch in here) / 2
    plain.zero_grad()
    loss.backward()
    plain.step()
answer([net.weight.tolist(), (net.weight - twin.weight).abs().max().item()])
