# SPDX-License-Identifier: Apache-2.0
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from answers import answer
from each_strategy import message_of


def new(first=True, **options):
    if first:
        AcceleratorState._reset_state()
    accelerator = Accelerator(cpu=True, **options)
    net = torch.nn.Linear(3, 1)
    return accelerator, *accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1))


def leaves_out_the_end_of_an_accumulation():
    accelerator, model, optimizer = new(gradient_accumulation_steps=2)
    for micro_batch in range(8):
        try:
            with accelerator.accumulate(model):
                loss = model(torch.ones(2, 3)).sum()
                if micro_batch == 3 and accelerator.process_index == 1:
                    raise KeyError("a bad sample")
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
        except KeyError:
            pass


def passes_its_own_metric():
    accelerator, model, optimizer = new()
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
    for epoch in range(4):
        accelerator.backward(model(torch.ones(2, 3)).sum())
        optimizer.step()
        optimizer.zero_grad()
        plateau.step(epoch if accelerator.process_index else -epoch)


def leaves_out_zero_grad():
    accelerator, model, optimizer = new()
    for batch in range(3):
        accelerator.backward(model(torch.ones(2, 3)).sum())
        optimizer.step()
        if batch == 0 or accelerator.process_index == 0:
            optimizer.zero_grad()


def clears_before_the_update():
    accelerator, model, optimizer = new()
    for batch in range(3):
        accelerator.backward(model(torch.ones(2, 3)).sum())
        if batch == 1 and accelerator.process_index == 1:
            optimizer.zero_grad()
        optimizer.step()
        optimizer.zero_grad()


def is_not_the_only_accelerator():
    new()
    accelerator, model, optimizer = new(first=False)
    for batch in range(2):
        accelerator.backward(model(torch.ones(2, 3)).sum())
        if accelerator.process_index == 0:
            optimizer.step()


answer(
    [
        message_of(work)
        for work in (
            leaves_out_the_end_of_an_accumulation,
            passes_its_own_metric,
            leaves_out_zero_grad,
            clears_before_the_update,
            is_not_the_only_accelerator,
        )
    ]
)
