# SPDX-License-Identifier: Apache-2.0
import hashlib
import json
import random
import sys

import numpy
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, Dataset

told = json.loads(sys.argv[1])
begin = told.get("resume", 0)
set_seed(99 if begin else 7, device_specific=True)


class Data(Dataset):
    def __len__(self):
        return 30

    def __getitem__(self, index):
        x = torch.arange(4) * 0.1 + index * 0.05
        if told["workers"] == 0:  # workers have generators of their own
            x = x + 0.1 * torch.rand(4) + 0.1 * random.random() + 0.1 * float(numpy.random.rand())
        return x, x.sum()


accelerator = Accelerator(
    cpu=True, mixed_precision=told["precision"], gradient_accumulation_steps=2
)
model = torch.nn.Sequential(
    torch.nn.Linear(4, 16), torch.nn.BatchNorm1d(16), torch.nn.Dropout(0.3), torch.nn.Linear(16, 1)
)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=100)
loader = DataLoader(Data(), batch_size=3, shuffle=True, num_workers=told["workers"])
model, optimizer, scheduler, loader = accelerator.prepare(model, optimizer, scheduler, loader)
if begin:
    restores = None if told["skip"] else True
    accelerator.load_state(f"{told['folder']}/step_{begin}", restore_loaders=restores)
losses = []
num_steps = begin
for epoch in range(begin // len(loader), 3):
    batches = loader
    if told["skip"] and epoch == begin // len(loader):
        batches = accelerator.skip_first_batches(loader, begin % len(loader))
    for x, y in batches:
        with accelerator.accumulate(model):
            loss = (model(x).squeeze(1) - y).square().mean()
            accelerator.backward(loss)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        losses.append(loss.item().hex())
        num_steps += 1
        if num_steps in told.get("save", []):
            accelerator.save_state(
                f"{told['folder']}/step_{num_steps}", asynchronous=told["asynchronous"]
            )
# A forked rank ends without what a process does at its end.
accelerator.wait_for_save()


def digest(value):
    sum = hashlib.sha256()
    for tensor in value:
        sum.update(tensor.detach().double().numpy().tobytes())
    return sum.hexdigest()


state = optimizer.state_dict()["state"]
print(
    "\nANSWER",
    json.dumps(
        {
            "rank": accelerator.process_index,
            "losses": losses,
            "weights": digest(model.state_dict().values()),
            "optimizer": digest(state[i][key] for i in sorted(state) for key in sorted(state[i])),
            "lr": scheduler.get_last_lr(),
            "next": [torch.rand(1).item(), random.random(), float(numpy.random.rand())],
        }
    ),
)
