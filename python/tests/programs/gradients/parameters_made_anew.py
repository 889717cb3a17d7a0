# SPDX-License-Identifier: Apache-2.0
import torch
from accelerate import Accelerator
from answers import answer
from torch.nn.utils import parametrize


class Twice(torch.nn.Module):
    def forward(self, weight):
        return weight * 2


def message_of(work):
    try:
        work()
    except Exception as error:
        return f"{type(error).__name__} {error}"


accelerator = Accelerator()
x = torch.ones(1, 3)
model = accelerator.prepare(torch.nn.Linear(3, 2))
parametrize.register_parametrization(model, "weight", Twice())
said = [message_of(lambda: accelerator.backward(model(x).sum()))]
other = accelerator.prepare(torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1)))
other[1].weight = torch.nn.Parameter(torch.ones(1, 2))
said.append(message_of(lambda: other(x)))
answer(said)
