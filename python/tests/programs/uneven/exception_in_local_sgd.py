# SPDX-License-Identifier: Apache-2.0
import torch
from accelerate import Accelerator
from accelerate.local_sgd import LocalSGD
from answers import answer

accelerator = Accelerator(cpu=True)
net = torch.nn.Linear(1, 1, bias=False)
net.weight.data.fill_(0)
model = accelerator.prepare(net)
try:
    with LocalSGD(accelerator, model, 4) as local_sgd:
        net.weight.data.fill_(accelerator.process_index)
        local_sgd.step()
        raise KeyError
except KeyError:
    pass
own = net.weight.item()
accelerator.backward(model(torch.full((1, 1), 1.0 + accelerator.process_index)).sum())
answer([own, net.weight.grad.item()])
