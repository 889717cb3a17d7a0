# SPDX-License-Identifier: Apache-2.0
# For a parameter without dimensions, state is a single number, whether it is sharded or counts
# steps.

import os

import torch
from elementwise_optimizers import kinds
from sharded_run import begin


class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.matrix = torch.nn.Parameter(torch.linspace(-1, 1, 64).reshape(8, 8))
        self.scale = torch.nn.Parameter(torch.tensor(1.5))

    def forward(self, x):
        return (x @ self.matrix * self.scale).square().mean()


def train(accelerator, model, optimizer):
    for seed in range(2):
        torch.manual_seed(seed)
        accelerator.backward(model(torch.randn(4, 8)))
        optimizer.step()
        optimizer.zero_grad()
    return {name: value.clone() for name, value in accelerator.get_state_dict(model).items()}


for kind in kinds:
    accelerator = begin(
        steps=1,
        sharding_strategy="FULL_SHARD",
        auto_wrap_policy="SIZE_BASED_WRAP",
        min_num_params=1,
    )
    model = Scaled()
    model, optimizer = accelerator.prepare(model, kind(model.parameters(), lr=0.01))
    train(accelerator, model, optimizer)
    accelerator.save_state(kind.__name__)
    expected = train(accelerator, model, optimizer)
    accelerator.load_state(kind.__name__)
    for name, value in train(accelerator, model, optimizer).items():
        assert torch.equal(value, expected[name]), (kind, name)
print("resumed", int(os.environ["RANK"]))
