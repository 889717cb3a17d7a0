# SPDX-License-Identifier: Apache-2.0
import torch
from accelerate import Accelerator
from answers import answer

accelerator = Accelerator(gradient_accumulation_steps=2)
torch.manual_seed(0)
net = torch.nn.Linear(3, 1)
data = torch.randn(12, 3)
twin = torch.nn.Linear(3, 1)
twin.load_state_dict(net.state_dict())
model = accelerator.prepare(net)
# 5 + 1 samples here, 2 + 4 there.
parts = torch.split(data, [5, 1, 2, 4])[2 * accelerator.process_index :][:2]
for part in parts:
    with accelerator.accumulate(model):
        weight = len(part) if len(part) % 2 else torch.tensor(len(part))
        accelerator.backward(model(part).square().mean(), weight=weight)
twin(data).square().mean().backward()
answer((net.weight.grad - twin.weight.grad).abs().max().item())
