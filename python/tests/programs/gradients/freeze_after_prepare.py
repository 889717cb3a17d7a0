# SPDX-License-Identifier: Apache-2.0
import os

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedDataParallelKwargs, FullyShardedDataParallelPlugin
from answers import answer

# What is trained in each two updates: the backbone, the head.
PHASES = [(False, True), (True, True), (True, False), (True, True)]


def make():
    torch.manual_seed(1)
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    # A gradient of zeros would let a frozen weight decay.
    return net, torch.optim.SGD(net.parameters(), lr=0.2, momentum=0.5, weight_decay=0.1)


def batch(step):
    return (torch.arange(12.0).view(4, 3) * 0.1 + 0.3 * step).sin()


def loss_of(net, x):
    return torch.nn.functional.mse_loss(net(x), x.sum(1, keepdim=True))


def freeze(net, phase):
    net[0].requires_grad_(phase[0])
    net[2].requires_grad_(phase[1])


def train(window, accelerator=None, is_frozen_before=False):
    net, sgd = make()
    if is_frozen_before:
        freeze(net, PHASES[0])
    if accelerator is not None:
        net, sgd = accelerator.prepare(net, sgd)
    outputs, step = [], 0
    for phase in PHASES:
        freeze(net, phase)
        for _ in range(2):
            for micro in range(window):
                x = batch(step)
                step += 1
                if accelerator is None:
                    (loss_of(net, x) / window).backward()
                    if micro < window - 1:
                        continue
                    sgd.step()
                    sgd.zero_grad()
                else:
                    x = x[2 * accelerator.process_index :][:2]
                    with accelerator.accumulate(net):
                        accelerator.backward(loss_of(net, x))
                        sgd.step()
                        sgd.zero_grad()
            with torch.no_grad():
                outputs.append(net(batch(0)))
    return torch.cat(outputs)


for window in (1, 2):
    expected = train(window)
    for kwargs in (
        {},
        {"kwargs_handlers": [DistributedDataParallelKwargs(find_unused_parameters=True)]},
        {"fsdp_plugin": {"sharding_strategy": "SHARD_GRAD_OP"}},
        {"fsdp_plugin": {"sharding_strategy": "FULL_SHARD", "use_orig_params": True}},
    ):
        for is_frozen_before in (False, True):
            AcceleratorState._reset_state()
            os.environ.pop("ACCELERATE_USE_FSDP", None)
            own = dict(kwargs)
            if "fsdp_plugin" in own:
                own["fsdp_plugin"] = FullyShardedDataParallelPlugin(**own["fsdp_plugin"])
            accelerator = Accelerator(gradient_accumulation_steps=window, **own)
            outputs = train(window, accelerator, is_frozen_before)
            torch.testing.assert_close(outputs, expected, rtol=1e-5, atol=1e-6)
answer("equal")
