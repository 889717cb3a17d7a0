# SPDX-License-Identifier: Apache-2.0
import json
import sys

import torch
from accelerate import Accelerator
from answers import answer

weighted, all_counts = map(json.loads, sys.argv[1:])
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
net = torch.nn.Linear(1, 1, bias=False)
net.weight.data.fill_(0)
model, optimizer = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=1.0))
said = []
for counts in all_counts:
    try:
        with accelerator.join_uneven_inputs([model]):
            for _ in range(counts[accelerator.process_index]):
                with accelerator.accumulate(model):
                    weight = {"weight": 1} if weighted else {}
                    accelerator.backward(model(torch.ones(1, 1)).sum(), **weight)
                    optimizer.step()
                    optimizer.zero_grad()
    except ValueError as error:
        said.append([type(error).__name__, str(error)])
answer([net.weight.item(), said])
