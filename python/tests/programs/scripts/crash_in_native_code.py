# SPDX-License-Identifier: Apache-2.0
import ctypes

import torch
from accelerate import Accelerator

accelerator = Accelerator()
net = accelerator.prepare(torch.nn.Linear(2, 1))
for step in range(4):
    if step == 2 and accelerator.process_index == 1:
        ctypes.string_at(0)
    accelerator.backward(net(torch.ones(1, 2, device=accelerator.device)).sum())
