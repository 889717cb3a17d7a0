# SPDX-License-Identifier: Apache-2.0
import os

import torch
from sharded_run import begin, refused, train
from small_net import Net


def compile_blocks(model):
    for block in model.blocks:
        block.compile(backend="eager")
    return model


def replace_blocks(model):
    for number, block in enumerate(model.blocks):
        model.blocks[number] = torch.compile(block, backend="eager")
    return model


def compile_all(model):
    return torch.compile(model, backend="eager")


def compile_in_place(model):
    model.compile(backend="eager")
    return model


# Before anything is cut, so that the model is as it was.
for way in (compile_blocks, replace_blocks, compile_all, compile_in_place):
    accelerator = begin(fsdp_version=2)
    model = way(Net())
    refused(lambda: accelerator.prepare(model), "torch.compile")
    assert all(p.sum().isfinite() for p in model.parameters())
model, _, _ = train(begin(fsdp_version=2), Net)
refused(lambda: compile_in_place(model), "torch.compile")
refused(lambda: compile_all(model)(torch.zeros(2, 3, dtype=torch.long)), "torch.compile")
print("compiled", os.environ["RANK"])
