# SPDX-License-Identifier: Apache-2.0
import os

import torch
from accelerate import Accelerator

accelerator = Accelerator()
torch.manual_seed(accelerator.process_index)
net = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
net, optimizer = accelerator.prepare(net, optimizer)
for step in range(4):
    rows = torch.full((2, 3), float(accelerator.process_index + step), device=accelerator.device)
    loss = net(rows).square().mean()
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
weights = accelerator.gather(net.weight.detach().clone())
assert weights.shape == (2, 3) and torch.equal(weights[0], weights[1]), weights
# The same four steps by hand, on both processes' batches at once.
torch.manual_seed(0)
plain = torch.nn.Linear(3, 1)
for step in range(4):
    rows = torch.tensor([[float(step)] * 3] * 2 + [[float(step + 1)] * 3] * 2)
    plain.zero_grad()
    plain(rows).square().mean().backward()
    with torch.no_grad():
        for p in plain.parameters():
            p -= 0.1 * p.grad
# One sum of four rows against two sums of two: the last bits may differ.
torch.testing.assert_close(net.weight.cpu(), plain.weight, rtol=1e-5, atol=1e-6)
# In one write: lines of two processes may meet.
os.write(1, f"trained {accelerator.process_index} of {accelerator.num_processes}\n".encode())
