# SPDX-License-Identifier: Apache-2.0
import torch
from accelerate import Accelerator

accelerator = Accelerator(mixed_precision="bf16")
torch.manual_seed(accelerator.process_index)
net = torch.nn.Linear(8, 8)
optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
loader = torch.utils.data.DataLoader(torch.randn(32, 8), batch_size=4)
net, optimizer, loader = accelerator.prepare(net, optimizer, loader)
for batch in loader:
    assert batch.is_cuda
    accelerator.backward(net(batch).square().mean())
    optimizer.step()
    optimizer.zero_grad()
weights = accelerator.gather(net.weight.detach()[None])
assert weights.is_cuda and torch.equal(weights[0], weights[1])
assert accelerator.gather(torch.tensor([accelerator.process_index])).tolist() == [0, 1]
print("same", accelerator.process_index)
