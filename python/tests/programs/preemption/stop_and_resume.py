# SPDX-License-Identifier: Apache-2.0
import os
import signal
import sys

import torch
from accelerate import Accelerator
from answers import answer

# The number of steps after which rank 1 is asked to stop; 0 for never.
asked_at = int(sys.argv[1])
accelerator = Accelerator(
    cpu=True,
    gradient_accumulation_steps=2,
    project_dir="run",
)
torch.manual_seed(3)
data = torch.utils.data.TensorDataset(torch.randn(48, 4), torch.randn(48, 1))
loader = torch.utils.data.DataLoader(data, batch_size=4, shuffle=True)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
loader, model, optimizer = accelerator.prepare(loader, model, optimizer)
torch.manual_seed(5 + accelerator.process_index)


class Steps:
    done = 0

    def state_dict(self):
        return {"done": self.done}

    def load_state_dict(self, state):
        self.done = state["done"]


steps = Steps()
accelerator.register_for_checkpointing(steps)
is_again = os.path.exists("run/checkpoints")
if is_again:
    accelerator.load_state("latest", restore_loaders=True)
else:
    accelerator.should_stop()
while steps.done < 12:
    for x, y in loader:
        with accelerator.accumulate(model):
            loss = (model(x) - y).square().mean()
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        steps.done += 1
        if not is_again and steps.done == asked_at and accelerator.process_index == 1:
            os.kill(os.getpid(), signal.SIGUSR1)
        if accelerator.should_stop():
            accelerator.save_and_leave()
        if steps.done == 12:
            break
answer([is_again, [p.tolist() for p in model.parameters()], loss.item()])
accelerator.end_training()
