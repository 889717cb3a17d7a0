# SPDX-License-Identifier: Apache-2.0
import os

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import (
    DeepSpeedPlugin,
    DistributedDataParallelKwargs,
    FullyShardedDataParallelPlugin,
)


class Fails(torch.autograd.Function):
    is_on = False

    @staticmethod
    def forward(context, x):
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        if Fails.is_on:
            raise KeyError("planned")
        return gradient


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(4))

    def forward(self, x):
        for index, layer in enumerate(self.layers):
            x = torch.tanh(layer(x))
            x = Fails.apply(x) if index == 1 else x
        return x.square().sum()


def batch(rank, step):
    return torch.randn(3, 8, generator=torch.Generator().manual_seed(7 * step + rank))


def train(net, optimizer, backward, failing):
    for step in range(6):
        Fails.is_on = step == failing
        try:
            backward(net, optimizer, step)
        except KeyError as error:
            assert "planned" in str(error)
            assert Fails.is_on


def plain(net, optimizer, step):
    net = net.double()
    for rank in range(2):
        try:
            (net(batch(rank, step).double()) / 6).backward()
        except KeyError:
            if rank == 1:
                raise
    if step % 3 == 2:
        optimizer.step()
        optimizer.zero_grad()


def stage(number):
    return dict(
        deepspeed_plugin=DeepSpeedPlugin(
            zero_stage=number, gradient_accumulation_steps=3, gradient_clipping=1e9
        )
    )


def strategy(name):
    return dict(fsdp_plugin=FullyShardedDataParallelPlugin(sharding_strategy=name))


views = DistributedDataParallelKwargs(gradient_as_bucket_view=True)
kinds = [
    lambda: {},
    lambda: dict(kwargs_handlers=[views]),
    lambda: stage(1),
    lambda: stage(2),
    lambda: strategy("SHARD_GRAD_OP"),
    lambda: strategy("FULL_SHARD"),
]
for failing in (0, 1, 2):
    whole = Net()
    train(whole, torch.optim.SGD(whole.parameters(), lr=0.1), plain, failing)
    for kind in kinds:
        AcceleratorState._reset_state()
        os.environ.update(ACCELERATE_USE_FSDP="false", ACCELERATE_USE_DEEPSPEED="false")
        accelerator = Accelerator(cpu=True, gradient_accumulation_steps=3, **kind())
        net = Net()
        net, sgd = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1))

        def ours(net, sgd, step):
            with accelerator.accumulate(net):
                accelerator.backward(net(batch(accelerator.process_index, step)))
                sgd.step()
                sgd.zero_grad()

        train(net, sgd, ours, failing)
        state = accelerator.get_state_dict(net)
        for name, value in whole.state_dict().items() if state else ():
            torch.testing.assert_close(state[name].double(), value, rtol=1e-5, atol=1e-6)
print("trained", accelerator.process_index)
