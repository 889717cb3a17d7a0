# SPDX-License-Identifier: Apache-2.0
import torch
from accelerate import Accelerator
from answers import answer
from recorded_warnings import said

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
model = accelerator.prepare(model)
for _ in range(24):
    with accelerator.accumulate(model):
        accelerator.backward(model(torch.ones(1, 2)).sum())
        optimizer.step()
        optimizer.zero_grad()
answer([text for text in said if "[backward]" in text])
