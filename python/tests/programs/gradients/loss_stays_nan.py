# SPDX-License-Identifier: Apache-2.0
import torch
from accelerate import Accelerator
from answers import answer
from recorded_warnings import said

accelerator = Accelerator(cpu=True)
model = accelerator.prepare(torch.nn.Linear(2, 1))
for step in range(45):
    accelerator.backward(model(torch.ones(1, 2) * (1 if step < 2 else float("nan"))).sum())
answer([text for text in said if "[backward]" in text])
