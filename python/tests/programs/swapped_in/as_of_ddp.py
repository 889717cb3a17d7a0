# SPDX-License-Identifier: Apache-2.0
import torch
from accelerate import Accelerator
from answers import answer

accelerator = Accelerator(cpu=True)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1, bias=False)

    def forward(self, x):
        return self.layer(x)


class Named(Net):
    def __init__(self):
        super().__init__()
        self.module = torch.nn.Linear(1, 1)


net, named = Net(), Named()
model, other = accelerator.prepare(net, named)
found = [hasattr(model, "module"), model.module is net, other.module is named.module]
x = torch.full((1, 1), 1.0 + accelerator.process_index)
with model.no_sync():
    found.append(model.require_backward_grad_sync)
    accelerator.backward(model(x).sum())
found.append(model.require_backward_grad_sync)
found.append(net.layer.weight.grad.item())
accelerator.backward(model(x).sum())
found.append(net.layer.weight.grad.item())
net.layer.weight.grad = None
model.require_backward_grad_sync = False
accelerator.backward(model(x).sum())
model.require_backward_grad_sync = True
found.append(net.layer.weight.grad.item())
answer(found)
