# SPDX-License-Identifier: Apache-2.0
# A wait that ends shortly before it would be reported, and then one that does not.

import time

import torch
import torch.distributed as dist
from accelerate import Accelerator


def keep_the_interpreter(seconds):
    begin = time.monotonic()
    sum(range(10**7))
    sum(range(int(10**7 * seconds / (time.monotonic() - begin))))


accelerator = Accelerator(cpu=True)
x = torch.ones(3)
dist.all_reduce(x)
if accelerator.process_index == 0:
    time.sleep(1.7)
dist.all_reduce(x)
if accelerator.process_index == 1:
    keep_the_interpreter(9)
dist.all_reduce(x)
accelerator.end_training()
