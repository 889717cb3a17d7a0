# SPDX-License-Identifier: Apache-2.0
import os
import signal

import torch
from accelerate import Accelerator

accelerator = Accelerator()
net = accelerator.prepare(torch.nn.Linear(2, 1))
for step in range(1000):
    if step == 3 and accelerator.process_index == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    accelerator.backward(net(torch.ones(1, 2, device=accelerator.device)).sum())
