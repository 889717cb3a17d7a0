# SPDX-License-Identifier: Apache-2.0
import json
import sys

import torch
from accelerate import Accelerator
from accelerate.errors import MismatchError
from accelerate.utils import GradientAccumulationPlugin
from answers import answer

num_steps, weighing, sync_each_batch = map(json.loads, sys.argv[1:])
plugin = GradientAccumulationPlugin(num_steps=num_steps, sync_each_batch=sync_each_batch)
accelerator = Accelerator(cpu=True, gradient_accumulation_plugin=plugin)
net = torch.nn.Linear(1, 1, bias=False)
model = accelerator.prepare(net)
x = torch.full((1, 1), 1.0 + accelerator.process_index)


def window(**options):
    try:
        for num_done in range(num_steps):
            with accelerator.accumulate(model):
                accelerator.backward(model(x).sum(), **options)
    except MismatchError as error:
        return [num_done, str(error)]


weight = {"weight": 3} if accelerator.process_index == weighing else {}
said, found = [window(**weight)], None
if accelerator.sync_gradients:
    # The accumulation has ended, and training continues.
    model.zero_grad()
    window()
    found = net.weight.grad.item()
    model.zero_grad()
    said.append(window(**weight))
answer([said, found])
