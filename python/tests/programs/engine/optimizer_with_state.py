# SPDX-License-Identifier: Apache-2.0
import own_engine
import torch
from accelerate import Accelerator
from accelerate.utils.dataclasses import EngineKwargs
from own_strategy import Net

accelerator = Accelerator(kwargs_handlers=[EngineKwargs(own_engine.optimizer_sharder())])
model = Net()
optimizer = torch.optim.AdamW(model.parameters())
model(torch.ones(4, 5)).sum().backward()
optimizer.step()
try:
    accelerator.prepare(model, optimizer)
except ValueError as error:
    print(error)
