# SPDX-License-Identifier: Apache-2.0
import os

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.state import AcceleratorState

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group(
    "cpu:gloo,cuda:nccl",
    init_method="file://" + os.path.abspath("meeting"),
    rank=rank,
    world_size=size,
)


def train(fast, **options):
    AcceleratorState._reset_state()
    torch.manual_seed(3)
    accelerator = Accelerator(fast=fast, **options)
    # A bias before the norm would have no gradient but rounding errors, which AdamW amplifies.
    net = torch.nn.Sequential(
        torch.nn.Linear(16, 32, bias=False),
        torch.nn.BatchNorm1d(32),
        torch.nn.Tanh(),
        torch.nn.Linear(32, 1),
    )
    optimizer = torch.optim.AdamW(net.parameters(), lr=2.0**-6)
    net, optimizer = accelerator.prepare(net, optimizer)
    losses = []
    for i in range(40):
        generator = torch.Generator().manual_seed(i + 1000 * rank)
        x = torch.randn(5 if i % 7 == 0 else 8, 16, generator=generator).cuda()
        with accelerator.accumulate(net):
            loss = torch.nn.functional.mse_loss(net(x), x.sum(1, keepdim=True))
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.detach())
    return torch.stack(losses), net.state_dict(), accelerator.fast_report()


for options in ({}, {"gradient_accumulation_steps": 3}, {"mixed_precision": "bf16"}):
    expected, state, _ = train(False, **options)
    losses, same_state, (report,) = train(True, **options)
    assert report["replayed"] >= 36 and report["graphs"] == 2, report
    bound = 5e-2 if "mixed_precision" in options else 1e-3
    torch.testing.assert_close(losses, expected, rtol=bound, atol=bound)
    for name, value in state.items():
        torch.testing.assert_close(same_state[name], value, rtol=bound, atol=bound, msg=name)
        everywhere = [torch.empty_like(value) for _ in range(size)]
        dist.all_gather(everywhere, same_state[name].contiguous())
        if "running" not in name:
            assert all(torch.equal(everywhere[0], other) for other in everywhere), name
print("fast")
