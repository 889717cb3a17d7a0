# SPDX-License-Identifier: Apache-2.0
import torch
from ddp_and_ours import accelerator, loss_of, ours, rank, theirs

tokens = torch.arange(6) * (rank + 2) % 11
with theirs.no_sync():
    loss_of(theirs(tokens, scale=1.0), tokens).backward()
with accelerator.no_sync(ours):
    accelerator.backward(loss_of(ours(tokens, scale=1.0), tokens))
local = accelerator.gather(ours.embed.weight.grad.reshape(1, -1))
assert not torch.equal(local[0], local[1])
loss_of(theirs(tokens, scale=1.0), tokens).backward()
accelerator.backward(loss_of(ours(tokens, scale=1.0), tokens))
assert torch.equal(ours.embed.weight.grad, theirs.module.embed.weight.grad)
print("equal", rank)
