# SPDX-License-Identifier: Apache-2.0
import torch
from accelerate import Accelerator
from answers import answer


class Half(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)

    def forward(self, x):
        return self.a(x)


accelerator = Accelerator()
model = accelerator.prepare(Half())
accelerator.backward(model(torch.ones(1, 1)).sum())
try:
    model(torch.ones(1, 1))
except ValueError as error:
    answer(str(error))
