# SPDX-License-Identifier: Apache-2.0
import os
import sys

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.state import AcceleratorState

rank, size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
dist.init_process_group(
    sys.argv[1], init_method="file://" + os.path.abspath("meeting"), rank=rank, world_size=size
)
nccl = dist.group.WORLD._get_backend(torch.device("cuda"))


def train(captured, **options):
    AcceleratorState._reset_state()
    torch.manual_seed(3)
    accelerator = Accelerator(**options)
    # Buffers are shared inside of the step too.
    net = torch.nn.Sequential(
        torch.nn.Linear(16, 32),
        torch.nn.BatchNorm1d(32),
        torch.nn.Dropout(0.2),
        torch.nn.Linear(32, 1),
    )
    optimizer = torch.optim.AdamW(net.parameters(), lr=2.0**-6)
    net, optimizer = accelerator.prepare(net, optimizer)

    def function(x, y):
        loss = torch.nn.functional.mse_loss(net(x), y)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    step = accelerator.capture(function)
    losses = []
    begun = nccl._get_sequence_number_for_group()
    for i in range(40):
        generator = torch.Generator().manual_seed(i + 1000 * rank)
        x = torch.randn(5 if i % 7 == 0 else 8, 16, generator=generator).cuda()
        with accelerator.accumulate(net):
            losses.append((step if captured else function)(x, x.sum(1, keepdim=True)))
        if i == 20:
            with torch.no_grad():
                net.eval()
                net(x)
                net.train()
    begun = nccl._get_sequence_number_for_group() - begun
    return torch.stack(losses), net.state_dict(), step, begun


for options in ({}, {"gradient_accumulation_steps": 3}, {"mixed_precision": "bf16"}):
    expected, state, _, all_begun = train(False, **options)
    losses, same_state, step, begun = train(True, **options)
    assert step.refusal == "" and step.num_replays > 15, (options, step.refusal, step.num_replays)
    # NCCL is asked while a step is recorded; a replay asks it by itself.
    assert begun < all_begun, (options, begun, all_begun)
    bound = 5e-2 if "mixed_precision" in options else 1e-3
    torch.testing.assert_close(losses, expected, rtol=bound, atol=bound)
    for name, value in state.items():
        torch.testing.assert_close(same_state[name], value, rtol=bound, atol=bound, msg=name)
print("captured")
