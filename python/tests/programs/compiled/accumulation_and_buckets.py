# SPDX-License-Identifier: Apache-2.0
import copy

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs
from answers import answer

accelerator = Accelerator(
    gradient_accumulation_steps=2,
    kwargs_handlers=[DistributedDataParallelKwargs(bucket_cap_mb=1)],
)
rank = accelerator.process_index
graphs = []


def backend(graph, inputs):
    graphs.append(graph)
    return graph.forward


def local_gradient(net, x):
    net = copy.deepcopy(net)
    net(x).mean().backward()
    return torch.cat([p.grad.flatten() for p in net.parameters()])


def gradient(net):
    return torch.cat([p.grad.flatten() for p in net.parameters()])


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(*[torch.nn.Linear(300, 300) for _ in range(6)])

    def forward(self, x):
        return self.layers(x)


def check(order, is_torchs):
    torch.manual_seed(0)
    net = Net().layers if is_torchs else Net()
    torch._dynamo.reset()
    graphs.clear()
    model = net
    for step in order.split():
        compiles = step == "compile"
        model = torch.compile(model, backend=backend) if compiles else accelerator.prepare(model)
    torch.manual_seed(rank)
    x = torch.randn(4, 300)
    own = local_gradient(net, x)
    everybody = accelerator.gather(own[None]).mean(0)

    with accelerator.no_sync(model):
        accelerator.backward(2 * model(x).mean())
    assert torch.allclose(gradient(net), own, atol=1e-6), "no_sync held nothing back"
    net.zero_grad()
    for number in range(2):
        with accelerator.accumulate(model):
            accelerator.backward(model(x).mean())
            expected = own / 2 if number == 0 else everybody
            # Sums in another order.
            assert torch.allclose(gradient(net), expected, atol=1e-6), number
    net.zero_grad()
    accelerator.unwrap_model(model)
    with accelerator.no_sync(model):
        accelerator.backward(2 * model(x).mean())
    assert torch.allclose(gradient(net), own, atol=1e-6), "after unwrap_model"
    return len(graphs)


# 2 MiB of parameters in buckets of 1 MiB: a graph for each.
orders = ["compile prepare", "prepare compile"]
if not torch.__version__.startswith("2.14"):  # It refuses a second compile.
    orders += ["compile prepare compile", "prepare compile compile"]
    orders += ["compile prepare compile compile"]
answer(all(check(order, torchs) > 1 for order in orders for torchs in (True, False)))
