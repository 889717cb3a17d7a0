# SPDX-License-Identifier: Apache-2.0
import torch
from accelerate import Accelerator
from answers import answer

accelerator = Accelerator(cpu=True)
model = accelerator.prepare(torch.nn.Linear(1, 1))
weight = {} if accelerator.process_index == 0 else {"weight": 2}
try:
    with accelerator.join_uneven_inputs([model]):
        accelerator.backward(model(torch.ones(2, 1)).mean(), **weight)
except Exception as error:
    answer([type(error).__name__, str(error)])
