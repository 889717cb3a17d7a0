# SPDX-License-Identifier: Apache-2.0
import json
import sys

import torch
from accelerate import Accelerator

import pretend

where, precision, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
accelerator = Accelerator(
    cpu=where == "cpu", mixed_precision=precision, gradient_accumulation_steps=steps
)
torch.manual_seed(11)
data = torch.utils.data.TensorDataset(torch.randn(48, 5), torch.randn(48, 3))
loader = torch.utils.data.DataLoader(data, batch_size=4, shuffle=True)
model = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
loader, model, optimizer = accelerator.prepare(loader, model, optimizer)
losses = []
for inputs, targets in loader:
    assert inputs.device == accelerator.device
    with accelerator.accumulate(model):
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    losses.append(accelerator.reduce(loss.detach(), "mean").item())
weights = [weight.tolist() for weight in model.parameters()]
with open(f"answer_{where}_{accelerator.process_index}", "w") as file:
    json.dump(
        {
            "numbers": [losses, weights],
            "device": str(accelerator.device),
            "type": accelerator.distributed_type.value,
            "kernels": pretend.devices.num_kernels(),
            "collectives": pretend.devices.num_collectives(),
        },
        file,
    )
accelerator.end_training()
