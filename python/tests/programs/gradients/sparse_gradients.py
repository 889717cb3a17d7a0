# SPDX-License-Identifier: Apache-2.0
import copy

import torch
from accelerate import Accelerator
from answers import answer

accelerator = Accelerator()
torch.manual_seed(1)
net = torch.nn.Sequential(torch.nn.Embedding(9, 2, sparse=True), torch.nn.Linear(2, 1))
theirs = torch.nn.parallel.DistributedDataParallel(copy.deepcopy(net))
ours = accelerator.prepare(net)
tokens = torch.tensor([1, 2 + accelerator.process_index])
theirs(tokens).sum().backward()
accelerator.backward(ours(tokens).sum())
for a, b in zip(theirs.parameters(), ours.parameters()):
    assert a.grad.is_sparse == b.grad.is_sparse
    assert torch.equal(a.grad.to_dense(), b.grad.to_dense())
answer("equal")
