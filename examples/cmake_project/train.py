# SPDX-License-Identifier: Apache-2.0
# Fits a line: the loop in 20 lines.
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

x = torch.linspace(-1, 1, 256).unsqueeze(1)
dataloader = DataLoader(TensorDataset(x, 3 * x + 1), batch_size=8, shuffle=True)
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

accelerator = Accelerator()
dataloader, model, optimizer = accelerator.prepare(dataloader, model, optimizer)
for epoch in range(8):
    for inputs, targets in dataloader:
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
accelerator.print(f"y = {model.weight.item():.2f} x + {model.bias.item():.2f}")
