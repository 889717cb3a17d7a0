# SPDX-License-Identifier: Apache-2.0
import os

import torch
from accelerate import notebook_launcher

torch.ones(1, device="cuda")


def train():
    from accelerate import Accelerator

    accelerator = Accelerator()
    return accelerator.device.type, accelerator.gather(torch.ones(1, device="cuda")).sum().item()


print(notebook_launcher(train))
os.environ["ACCELERATE_USE_CPU"] = "1"


def count():
    from accelerate import Accelerator

    return Accelerator().num_processes


print("processes", notebook_launcher(count, num_processes=2))
