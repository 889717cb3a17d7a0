# SPDX-License-Identifier: Apache-2.0
# The user's own collectives show progress.

import time

import torch
import torch.distributed as dist
from accelerate import Accelerator

accelerator = Accelerator(cpu=True)
x = torch.ones(3)
for _ in range(25):
    dist.all_reduce(x)
    time.sleep(0.2)
if accelerator.process_index == 1:
    time.sleep(6)
dist.all_reduce(x)
accelerator.end_training()
