# SPDX-License-Identifier: Apache-2.0
import os

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedDataParallelKwargs, FullyShardedDataParallelPlugin


def begin(steps=2, **fields):
    # The group stays; of the last run nothing does.
    AcceleratorState._reset_state()
    os.environ.pop("ACCELERATE_USE_FSDP", None)
    plugin = FullyShardedDataParallelPlugin(**fields) if fields else None
    unused = [DistributedDataParallelKwargs(find_unused_parameters=True)]
    return Accelerator(
        gradient_accumulation_steps=steps, fsdp_plugin=plugin, kwargs_handlers=unused
    )


def batches(accelerator, num=6):
    generator = torch.Generator().manual_seed(5 + accelerator.process_index)
    for _ in range(num):
        ids = torch.randint(3, 33, (4, 7), generator=generator)
        yield {"input_ids": ids, "labels": ids}


def loss_of(output):
    return output if isinstance(output, torch.Tensor) else output.loss


def train(accelerator, make, max_norm=1e3):
    torch.manual_seed(1)
    model = make()
    groups = [
        {"params": [p for p in model.parameters() if p.dim() > 1]},
        {"params": [p for p in model.parameters() if p.dim() <= 1], "weight_decay": 0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=0.01)
    model, optimizer = accelerator.prepare(model, optimizer)
    seen = []
    for batch in batches(accelerator):
        with accelerator.accumulate(model):
            loss = loss_of(model(**batch))
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                seen.append(accelerator.clip_grad_norm_(model.parameters(), max_norm))
            optimizer.step()
            optimizer.zero_grad()
        model.eval()
        with torch.no_grad():
            seen.append(loss_of(model(**batch)))
        model.train()
        seen.append(loss.detach())
    return model, optimizer, seen


def refused(function, word, kind=Exception):
    try:
        function()
    except kind as error:
        assert word in str(error) and "\n" not in str(error).strip(), error
    else:
        raise AssertionError(f"nothing was refused: {word}")
