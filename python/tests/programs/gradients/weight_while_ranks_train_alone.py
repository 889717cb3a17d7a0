# SPDX-License-Identifier: Apache-2.0
import torch
from accelerate import Accelerator
from accelerate.local_sgd import LocalSGD
from answers import answer

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
net = torch.nn.Linear(1, 1, bias=False)
model = accelerator.prepare(net)
rank = accelerator.process_index
found = []
with LocalSGD(accelerator=accelerator, model=model, local_sgd_steps=2) as local_sgd:
    for x, weight in [(3.0, 1), (7.0, 3)]:
        with accelerator.accumulate(model):
            # One rank weighs, the other does not.
            options = {"weight": weight} if rank == 0 else {}
            accelerator.backward(model(torch.tensor([[x]])).sum(), **options)
    found.append(net.weight.grad.item())
model.zero_grad()
for _ in range(2):
    with accelerator.accumulate(model):
        accelerator.backward(model(torch.tensor([[1.0 + rank]])).sum(), weight=3 - rank)
found.append(net.weight.grad.item())
answer(found)
