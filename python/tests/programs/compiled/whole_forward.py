# SPDX-License-Identifier: Apache-2.0
import torch
from accelerate import Accelerator
from answers import answer

accelerator = Accelerator(mixed_precision="bf16")


class Own(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(4, 4)

    def forward(self, x):
        return {"out": [self.inner(x)]}


def num_graphs(net, output_of):
    torch._dynamo.reset()
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    model = torch.compile(accelerator.prepare(net), backend=backend, fullgraph=True)
    for _ in range(2):
        output = output_of(model(torch.ones(2, 4)))
        assert output.dtype == torch.float32
        accelerator.backward(output.sum())
    return len(graphs)


torchs = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
answer([num_graphs(torchs, lambda x: x), num_graphs(Own(), lambda x: x["out"][0])])
