# SPDX-License-Identifier: Apache-2.0
import torch
from accelerate import Accelerator
from answers import answer

accelerator = Accelerator(cpu=True)
net = torch.nn.Linear(1, 1, bias=False)
model = accelerator.prepare(net)
try:
    with accelerator.join_uneven_inputs([model], even_batches=False):
        accelerator.backward(model(torch.ones(1, 1)).sum())
        raise KeyError
except KeyError:
    pass
net.weight.grad = None
accelerator.backward(model(torch.full((1, 1), 1.0 + accelerator.process_index)).sum())
answer(net.weight.grad.item())
