# SPDX-License-Identifier: Apache-2.0
import sys

import torch
from accelerate import Accelerator
from answers import answer

torch.manual_seed(0)
accelerator = Accelerator(gradient_accumulation_steps=int(sys.argv[1]))
net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
x = torch.randn(22, 4)
data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
loader = torch.utils.data.DataLoader(data, batch_size=3)
optimizer = torch.optim.AdamW(net.parameters(), lr=0.05)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: 0.97**n)
net, optimizer, loader, scheduler = accelerator.prepare(net, optimizer, loader, scheduler)
trace = []
for epoch in range(2):
    for a, b in loader:
        with accelerator.accumulate(net):
            loss = torch.nn.functional.mse_loss(net(a), b)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        trace.append([loss.item(), scheduler.get_last_lr()[0], accelerator.sync_gradients])
answer(trace)
