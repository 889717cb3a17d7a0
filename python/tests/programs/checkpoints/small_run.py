# SPDX-License-Identifier: Apache-2.0
import torch
from accelerate import Accelerator

accelerator = Accelerator(cpu=True)
model = torch.nn.Linear(3, 2)
model, optimizer, loader = accelerator.prepare(
    model,
    torch.optim.AdamW(model.parameters()),
    torch.utils.data.DataLoader(torch.randn(24, 3), 2, shuffle=True),
)
