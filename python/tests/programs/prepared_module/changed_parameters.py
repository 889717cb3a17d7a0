# SPDX-License-Identifier: Apache-2.0
import torch
from accelerate import Accelerator
from accelerate.errors import UsageError
from accelerate.utils import DistributedDataParallelKwargs
from answers import answer
from torch.nn.utils import parametrizations


def begin(**options):
    torch.manual_seed(0)
    accelerator = Accelerator(kwargs_handlers=[DistributedDataParallelKwargs(**options)])
    return accelerator, accelerator.prepare(Net())


class Net(torch.nn.Sequential):
    def __init__(self):
        super().__init__(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
        self.frozen = torch.nn.Parameter(torch.ones(1), requires_grad=False)

    def forward(self, x):
        for part in list(self)[:3]:
            x = part(x)
        return x


def set_weight(net):
    net[2].weight = torch.nn.Parameter(torch.ones(1, 4))


def exchange(net):
    net[2] = torch.nn.Linear(4, 1)


def remove(net):
    del net[2]


def put_frozen(net):
    net[2].bias = torch.nn.Parameter(torch.ones(1))
    net[2].bias.requires_grad_(False)


def set_frozen(net):
    net.frozen = torch.nn.Parameter(torch.zeros(1), requires_grad=False)


def rename(net):
    net.again = net[2]


def said(change, **options):
    accelerator, net = begin(**options)
    x = torch.full((1, 3), 1.0 + accelerator.process_index)
    accelerator.backward(net(x).sum())
    change(net)
    with torch.no_grad():
        net(x)
    try:
        accelerator.backward(net(x).sum())
    except UsageError as error:
        return str(error)
    gradients = torch.cat([p.grad.flatten() for p in net.parameters() if p.grad is not None])
    everybodys = accelerator.gather(gradients[None])
    assert torch.equal(everybodys[0], everybodys[1])
    return "trained"


weight_norm = lambda net: parametrizations.weight_norm(net[2])
old_weight_norm = lambda net: torch.nn.utils.weight_norm(net[2])
changes = [
    weight_norm,
    old_weight_norm,
    set_weight,
    exchange,
    remove,
    put_frozen,
    set_frozen,
    rename,
]
whole = [said(change) for change in changes]
answer([whole, [said(change, find_unused_parameters=True) for change in changes]])
