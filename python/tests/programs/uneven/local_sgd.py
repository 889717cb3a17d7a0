# SPDX-License-Identifier: Apache-2.0
import torch
from accelerate import Accelerator
from accelerate.local_sgd import LocalSGD
from answers import answer

accelerator = Accelerator(cpu=True)
torch.manual_seed(0)
net = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
model, optimizer = accelerator.prepare(net, optimizer)
found = []
with LocalSGD(accelerator=accelerator, model=model, local_sgd_steps=3) as local_sgd:
    for step in range(5):
        torch.manual_seed(10 * step + accelerator.process_index)
        x = torch.rand(4, 3)
        accelerator.backward((model(x) - x.sum(1, keepdim=True)).square().mean())
        optimizer.step()
        optimizer.zero_grad()
        local_sgd.step()
        found.append([round(w, 5) for w in net.weight[0].tolist()])
found.append([round(w, 5) for w in net.weight[0].tolist()])
answer(found)
