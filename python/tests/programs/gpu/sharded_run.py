# SPDX-License-Identifier: Apache-2.0
import gc
import os

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import DeepSpeedPlugin, FullyShardedDataParallelPlugin

WIDTH = 256


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.inner = torch.nn.Linear(WIDTH, 2 * WIDTH)
        self.outer = torch.nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.outer(torch.nn.functional.gelu(self.inner(self.norm(x))))


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList(Block() for _ in range(6))
        self.blocks[2].inner.weight.requires_grad_(False)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def fsdp(**fields):
    return dict(
        fsdp_plugin=FullyShardedDataParallelPlugin(
            auto_wrap_policy="TRANSFORMER_BASED_WRAP",
            transformer_cls_names_to_wrap=["Block"],
            **fields,
        )
    )


def deepspeed(stage, **fields):
    return dict(deepspeed_plugin=DeepSpeedPlugin(zero_stage=stage, gradient_clipping=0.0, **fields))


def train(steps=1, max_norm=None, **settings):
    # The group stays; of the last run nothing does.
    AcceleratorState._reset_state()
    os.environ.update(ACCELERATE_USE_FSDP="false", ACCELERATE_USE_DEEPSPEED="false")
    accelerator = Accelerator(gradient_accumulation_steps=steps, **settings)
    assert accelerator.device.type == "cuda"
    torch.manual_seed(3)
    gc.collect()
    before = torch.cuda.memory_allocated()
    model = Net()
    # A gradient of nearly zero moves nothing.
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, eps=1e-3)
    model, optimizer = accelerator.prepare(model, optimizer)
    generator = torch.Generator().manual_seed(7 + accelerator.process_index)
    for _ in range(6):
        x = torch.randn(4, WIDTH, generator=generator).cuda()
        with accelerator.accumulate(model):
            accelerator.backward(model(x).square().mean())
            if max_norm and accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), max_norm)
            optimizer.step()
            optimizer.zero_grad()
    gc.collect()
    at_rest = torch.cuda.memory_allocated() - before
    state = {name: value.cpu() for name, value in accelerator.get_state_dict(model).items()}
    return state, at_rest, (accelerator, model, optimizer)


def is_cut(accelerator):
    "Whether parameters are, too."
    plugin = accelerator.deepspeed_plugin
    return accelerator.is_fsdp2 if plugin is None else plugin.zero_stage == 3


def worst(state, expected):
    return max(((state[name] - expected[name]).abs().max().item() for name in state), default=0.0)
