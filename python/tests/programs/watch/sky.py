# SPDX-License-Identifier: Apache-2.0
import sys
import time

import torch
from accelerate import Accelerator

accelerator = Accelerator(log_with="jsonl", project_dir="runs")
accelerator.init_trackers("sky", {"lr": 0.5})
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
data = torch.utils.data.TensorDataset(torch.rand(80, 4))
model, optimizer, loader = accelerator.prepare(
    model, optimizer, torch.utils.data.DataLoader(data, batch_size=4)
)
for step, (inputs,) in enumerate(loader):
    if accelerator.process_index == 1:
        time.sleep(0.05)  # Everybody waits for this one.
    loss = model(inputs).square().mean()
    if "bad_batch" in sys.argv and accelerator.process_index == 1 and step == 3:
        raise ValueError("bad batch")
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    accelerator.log({"loss": loss.item()}, step=step)
accelerator.save_state("runs/saved")
print("done with", step + 1, "steps")
accelerator.end_training()
