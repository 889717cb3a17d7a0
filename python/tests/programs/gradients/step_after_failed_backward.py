# SPDX-License-Identifier: Apache-2.0
import json
import sys

import torch
from accelerate import Accelerator
from accelerate.errors import UsageError
from accelerate.utils import FullyShardedDataParallelPlugin
from answers import answer


class Failing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, fails):
        ctx.fails = fails
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        if ctx.fails:
            raise ValueError("a mistake of the user")
        return gradient, None


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(3, 3)
        self.second = torch.nn.Linear(3, 1)

    def forward(self, x, fails):
        return self.second(Failing.apply(self.first(x), fails))


strategy = json.loads(sys.argv[1])
plugin = None
if strategy != "DDP":
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2, reshard_after_forward=strategy == "stage 3"
    )
accelerator = Accelerator(cpu=True, fsdp_plugin=plugin)
torch.manual_seed(0)
net = Net()
net, optimizer = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1))
said = []
for fails in (False, True, False):
    x = torch.full((2, 3), 1.0 + accelerator.process_index)
    try:
        accelerator.backward(net(x, fails).square().mean())
    except ValueError as error:
        said.append(str(error))
    try:
        optimizer.step()
    except UsageError as error:
        said.append(str(error))
    optimizer.zero_grad()
weights = accelerator.get_state_dict(net) if plugin else net.state_dict()
answer((said, [value.tolist() for value in weights.values()]))
