# SPDX-License-Identifier: Apache-2.0
import torch
from accelerate import Accelerator

accelerator = Accelerator()
net = accelerator.prepare(torch.nn.Linear(2, 1))
for step in range(100):
    if step == 3 and accelerator.process_index == 1:
        raise ValueError("the third batch is bad")
    accelerator.backward(net(torch.ones(1, 2, device=accelerator.device)).sum())
