# SPDX-License-Identifier: Apache-2.0
import json
import sys

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
from answers import answer
from recorded_warnings import said

# The configuration of the prepared loader; without it the loader is not prepared.
options = json.loads(sys.argv[1])
accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(**(options or {})))
data = torch.arange(16.0).view(8, 2)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(data), batch_size=2)
model = torch.nn.Linear(2, 1)
model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1e-3))
if options is not None:
    loader = accelerator.prepare(loader)
for (x,) in loader:
    accelerator.backward(model(x).sum())
    optimizer.step()
    optimizer.zero_grad()
answer([text for text in said if "[backward]" in text])
