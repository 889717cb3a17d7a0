# SPDX-License-Identifier: Apache-2.0
import sys
import warnings

import torch
from accelerate import Accelerator

layout = sys.argv[1] or None
warnings.simplefilter("ignore")
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
temperature = torch.nn.Parameter(torch.zeros(()))
model = torch.nn.Linear(1, 1, bias=False)
model, optimizer = accelerator.prepare(
    model, torch.optim.SGD([*model.parameters(), temperature], lr=1.0)
)


def micro_batch(x):
    with accelerator.accumulate(model):
        accelerator.backward((model(torch.full((1, 1), x)) + x * temperature).sum())
        return [p.grad.item() for p in (model.weight, temperature)]


# On the main process alone: another has no part of its own.
if accelerator.is_main_process:
    accelerator.save_state("state", layout=layout)
for num_done in (1, 2):
    for _ in range(num_done):
        micro_batch(1024.0)
    accelerator.load_state("state")
    assert model.weight.grad is None and temperature.grad is None
    micro_batch(1.0)
    assert micro_batch(1.0) == [1.0, 1.0]
    optimizer.step()
    optimizer.zero_grad()
print("equal", accelerator.process_index)
