# SPDX-License-Identifier: Apache-2.0
import torch
from accelerate import Accelerator
from answers import answer


class Caching(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 1)
        self.register_buffer("cache", None)

    def forward(self, x):
        if self.cache is None:
            self.cache = torch.full((len(x),), float(accelerator.process_index + 5))
        return self.layer(x)


accelerator = Accelerator()


def train(num_rows):
    net = Caching()
    model = accelerator.prepare(net)
    for _ in range(2):
        accelerator.backward(model(torch.ones(num_rows, 3)).sum())
        model = accelerator.prepare(net)
    return net.cache.tolist()


values = train(2)
try:
    train(2 + accelerator.process_index)
except Exception as error:
    answer([values, type(error).__name__, str(error)])
