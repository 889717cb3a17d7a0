# SPDX-License-Identifier: Apache-2.0
import copy

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs
from torch.nn.parallel import DistributedDataParallel


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(11, 8)
        self.norm = torch.nn.BatchNorm1d(8)
        self.frozen = torch.nn.Linear(8, 8)
        self.frozen.requires_grad_(False)
        self.unused = torch.nn.Linear(3, 3)
        self.out = torch.nn.Linear(8, 11, bias=False)
        self.out.weight = self.embed.weight  # shared
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, tokens, *, scale):
        self.calls = self.calls + 1 + scale  # another tensor, not in place
        hidden = self.norm(self.frozen(self.embed(tokens)))
        return {"head": {"logits": self.out(hidden) * scale}, "hidden": (hidden, [hidden * 2])}


def loss_of(output, tokens):
    head = torch.nn.functional.cross_entropy(output["head"]["logits"], tokens)
    return head + output["hidden"][1][0].square().mean()


accelerator = Accelerator(
    kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=True)]
)
torch.manual_seed(7 + accelerator.process_index)  # rank 0's weights must win
net = Net()
theirs = DistributedDataParallel(copy.deepcopy(net), find_unused_parameters=True)
ours = accelerator.prepare(net)
rank = accelerator.process_index
