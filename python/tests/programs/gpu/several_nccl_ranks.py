# SPDX-License-Identifier: Apache-2.0
import os

import torch
from accelerate import Accelerator, InitProcessGroupKwargs
from accelerate.state import AcceleratorState
from accelerate.utils import DeepSpeedPlugin
from sharded_run import WIDTH, Net, fsdp, worst

STEPS, MICRO_BATCHES, MAX_NORM = 2, 8, 0.1


def make():
    torch.manual_seed(3)
    model = Net().double()
    return model, torch.optim.AdamW(model.parameters(), lr=0.01, eps=1e-3)


def batch(rank, i):
    generator = torch.Generator().manual_seed(1000 * rank + i)
    return torch.randn(4, WIDTH, generator=generator, dtype=torch.float64).cuda()


def train_plainly(size):
    model, optimizer = make()
    model.cuda()
    for i in range(MICRO_BATCHES):
        x = torch.cat([batch(rank, i) for rank in range(size)])
        (model(x).square().mean() / STEPS).backward()
        if (i + 1) % STEPS == 0:
            torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
            optimizer.step()
            optimizer.zero_grad()
    return {name: value.cpu() for name, value in model.state_dict().items()}


def train_by_nccl(**settings):
    AcceleratorState._reset_state()
    os.environ.update(ACCELERATE_USE_FSDP="false", ACCELERATE_USE_DEEPSPEED="false")
    # Given, although it equals the default: ranks that share a GPU would use Gloo otherwise.
    accelerator = Accelerator(
        gradient_accumulation_steps=STEPS,
        kwargs_handlers=[InitProcessGroupKwargs(backend="nccl")],
        **settings,
    )
    assert accelerator.state.backend == "nccl", accelerator.state.backend
    model, optimizer = accelerator.prepare(*make())
    for i in range(MICRO_BATCHES):
        with accelerator.accumulate(model):
            accelerator.backward(model(batch(accelerator.process_index, i)).square().mean())
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), MAX_NORM)
            optimizer.step()
            optimizer.zero_grad()
    return accelerator, {
        name: value.cpu() for name, value in accelerator.get_state_dict(model).items()
    }


def zero(stage):
    # DeepSpeed's configuration clips; `clip_grad_norm_` leaves it to that.
    return dict(
        deepspeed_plugin=DeepSpeedPlugin(
            zero_stage=stage, gradient_accumulation_steps=STEPS, gradient_clipping=MAX_NORM
        )
    )


accelerator, state = train_by_nccl()
size = accelerator.num_processes
expected = train_plainly(size)
every = [
    dict(),
    fsdp(fsdp_version=2),
    fsdp(sharding_strategy="SHARD_GRAD_OP"),
    zero(1),
    zero(2),
    zero(3),
]
for settings in every:
    accelerator, state = train_by_nccl(**settings)
    # Sums of fp64 are added in another order.
    assert worst(state, expected) < 1e-9, (settings, worst(state, expected))
print("equal", accelerator.process_index)
