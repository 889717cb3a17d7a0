# SPDX-License-Identifier: Apache-2.0
import os

import torch
from accelerate import Accelerator
from accelerate.errors import MismatchError
from accelerate.state import AcceleratorState
from accelerate.utils import DeepSpeedPlugin, FullyShardedDataParallelPlugin


def with_strategies(num_steps):
    stage = lambda number: dict(
        deepspeed_plugin=DeepSpeedPlugin(
            zero_stage=number, gradient_accumulation_steps=num_steps, gradient_clipping=1e9
        )
    )
    sharded = dict(fsdp_plugin=FullyShardedDataParallelPlugin(sharding_strategy="FULL_SHARD"))
    masters = dict(mixed_precision="bf16", master_weights=True)
    for kind in (lambda: {}, lambda: masters, lambda: stage(1), lambda: stage(2), lambda: sharded):
        AcceleratorState._reset_state()
        os.environ.update(ACCELERATE_USE_FSDP="false", ACCELERATE_USE_DEEPSPEED="false")
        accelerator = Accelerator(cpu=True, gradient_accumulation_steps=num_steps, **kind())
        net = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Linear(8, 1))
        yield accelerator, *accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1))


def message_of(work):
    try:
        work()
    except MismatchError as error:
        return str(error)
