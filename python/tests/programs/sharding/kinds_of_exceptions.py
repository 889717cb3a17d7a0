# SPDX-License-Identifier: Apache-2.0
import os

import torch
from accelerate import Accelerator
from accelerate.errors import CommError, MismatchError, UsageError
from accelerate.state import AcceleratorState
from accelerate.utils import FullyShardedDataParallelPlugin
from torch.utils.checkpoint import checkpoint

rank = int(os.environ["RANK"])


class Net(torch.nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(3))
        self.tail = torch.nn.Linear(4, width)
        self.order = [0, 1, 2]
        self.places = None

    def forward(self, x):
        if self.places is not None:
            return checkpoint(lambda y: self.layers[next(self.places)](y), x, use_reentrant=False)
        for place in self.order:
            x = self.layers[place](x)
        return self.tail(x)


def begin(reshard, width=4):
    AcceleratorState._reset_state()
    accelerator = Accelerator(
        fsdp_plugin=FullyShardedDataParallelPlugin(
            fsdp_version=2,
            reshard_after_forward=reshard,
            # Every block is a unit, however small.
            auto_wrap_policy="TRANSFORMER_BASED_WRAP",
            transformer_cls_names_to_wrap=["Linear"],
        )
    )
    model = Net(width)
    return accelerator, *accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.1))


def raised(kind, function, *words):
    try:
        function()
    except Exception as error:
        assert type(error) is kind, (type(error), error)
        text = str(error)
        assert all(word in text for word in words) and "\n" not in text, text
        return text
    raise AssertionError(f"nothing was raised: {words}")


x = torch.ones(2, 4)
for reshard in (True, False):
    accelerator, model, optimizer = begin(reshard)
    accelerator.backward(model(x).sum())
    optimizer.step()
    optimizer.zero_grad()
    # In a hook of autograd's.
    raised(UsageError, lambda: model(x).sum().backward(), "accelerator.backward")
    if reshard:
        # In operators, and in one that would write.
        raised(UsageError, lambda: model.layers[0].weight + 1, "unit 'layers.0'", "outside")
        with torch.no_grad():
            raised(UsageError, lambda: model.layers[0].weight.add_(1), "would write")
        # In an operator of forward, and in one of a block that is computed again in backward.
        model.order = [0, 1, 2] if rank == 0 else [1, 0, 2]
        raised(MismatchError, lambda: model(x), "unit 'layers.0'", "unit 'layers.1'")
        model.order = [0, 1, 2]
        model.places = iter([0, rank])
        output = model(x.clone().requires_grad_())
        raised(MismatchError, lambda: accelerator.backward(output.sum()), "unit 'layers.1'")
        model.places = None
    model.layers[1].scale = torch.nn.Parameter(torch.ones(1), requires_grad=False)
    model(x)
    model.added = torch.nn.Linear(4, 4)
    raised(UsageError, lambda: model(x), "'added.weight' was added after prepare")
    with torch.no_grad():
        model(x)
# Models that differ: what is first of it, and how much there is, not all names.
text = raised(
    MismatchError, lambda: begin(True, width=4 + rank), "tail.weight", "rank 1", "entry 8 of 10"
)
assert "layers" not in text.split("was called", 1)[1], text
# A rank that is gone, in an operator of forward.
accelerator, model, optimizer = begin(True)
model(x)
if rank == 1:
    os._exit(0)


def forever():
    while True:
        accelerator.backward(model(x).sum())


raised(CommError, forever)
print("kinds are kept")
