# SPDX-License-Identifier: Apache-2.0
import torch
from ddp_and_ours import accelerator, loss_of, net, ours, rank, theirs

for step in range(3):
    tokens = torch.arange(6) * (rank + 2 + step) % 11
    for model in (theirs, ours):
        model.zero_grad()
    loss_of(theirs(tokens, scale=0.5), tokens).backward()
    accelerator.backward(loss_of(ours(tokens, scale=0.5), tokens))
    for (name, a), (_, b) in zip(theirs.module.named_parameters(), ours.named_parameters()):
        assert (a.grad is None) == (b.grad is None), name
        if a.grad is not None:
            assert torch.equal(a.grad, b.grad), (step, name, a.grad - b.grad)
    assert net.frozen.weight.grad is None
    with torch.no_grad():
        for model in (theirs.module, ours):
            for p in model.parameters():
                if p.grad is not None:
                    p -= 0.1 * p.grad
for (name, a), (_, b) in zip(theirs.module.named_buffers(), ours.named_buffers()):
    assert torch.equal(a, b), name
for name, value in net.state_dict().items():
    both = accelerator.gather(value.float().reshape(1, -1))
    # Running statistics are each process's own until the next forward.
    assert "running" in name or torch.equal(both[0], both[1]), name
print("equal", rank)
