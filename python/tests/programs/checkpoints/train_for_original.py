# SPDX-License-Identifier: Apache-2.0
# `told`: how many steps, where to save and how, what to load.

import json
import random
import sys

import numpy
import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed

told = json.loads(sys.argv[1])
begin = told["begin"]
set_seed(5)
accelerator = Accelerator(
    cpu=True,
    gradient_accumulation_steps=2,
    dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True, data_seed=3),
)


class Counter:
    seen = 0

    def state_dict(self):
        return {"seen": self.seen}

    def load_state_dict(self, state):
        self.seen = state["seen"]


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.one = torch.nn.Linear(4, 4)
        self.two = torch.nn.Linear(4, 4)
        self.two.weight = self.one.weight
        self.drop = torch.nn.Dropout(0.3)
        self.last = torch.nn.Linear(4, 1)

    def forward(self, x):
        return self.last(self.drop(torch.tanh(self.two(self.one(x)))))


model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.7)
x = torch.arange(160.0).reshape(40, 4) / 100
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, x.sum(1)), 2, shuffle=True)
model, optimizer, scheduler, loader = accelerator.prepare(model, optimizer, scheduler, loader)
counter = Counter()
accelerator.register_for_checkpointing(counter)
losses = []
if begin:
    accelerator.load_state(told["load"])
    assert counter.seen == begin
    loader = accelerator.skip_first_batches(loader, begin)
for number, (x, y) in enumerate(loader, start=begin + 1):
    with accelerator.accumulate(model):
        loss = (model(x).squeeze(1) - y).square().mean()
        accelerator.backward(loss)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    losses.append(loss.item().hex())
    counter.seen = number
    if number == told["at"]:
        accelerator.save_state(told["save"], **told["how"])
    if number == 9:
        break
with open(f"answer{accelerator.process_index}", "w") as file:
    json.dump([losses, random.random(), float(numpy.random.rand()), torch.rand(1).item()], file)
