# SPDX-License-Identifier: Apache-2.0
import torch
from accelerate import Accelerator
from accelerate.utils import DDPCommunicationHookType, DistributedDataParallelKwargs
from answers import answer

accelerator = Accelerator(
    kwargs_handlers=[DistributedDataParallelKwargs(comm_hook=DDPCommunicationHookType.BF16)]
)
net = torch.nn.Sequential(torch.nn.Embedding(4, 2, sparse=True), torch.nn.Linear(2, 1))
torch.nn.init.ones_(net[1].weight)
net = accelerator.prepare(net)
for _ in range(3):
    net.zero_grad()
    accelerator.backward(net(torch.tensor([accelerator.process_index])).sum())
    expected = torch.tensor([[0.5, 0.5], [0.5, 0.5], [0, 0], [0, 0]])
    assert torch.equal(net[0].weight.grad.to_dense(), expected)
answer("equal")
