# SPDX-License-Identifier: Apache-2.0
import time

import torch
from accelerate import Accelerator


class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        time.sleep(0.05)
        return torch.ones(2)


accelerator = Accelerator(cpu=True)
model = torch.nn.Linear(2, 1)
model, optimizer, loader = accelerator.prepare(
    model, torch.optim.SGD(model.parameters(), 0.1), torch.utils.data.DataLoader(Slow())
)
for batch in loader:
    accelerator.backward(model(batch).sum())
    optimizer.step()
    optimizer.zero_grad()
times = accelerator.step_times()
assert times.num_steps == len(times.last) == 4, times.num_steps
assert times.sum.data >= 0.2
assert times.sum.backward > 0 and times.sum.optimizer > 0
assert abs(sum(step.total for step in times.last) - times.sum.total) < 1e-6
print(times.summary())
accelerator.end_training()
