# SPDX-License-Identifier: Apache-2.0
import torch
from accelerate import Accelerator
from answers import answer

accelerator = Accelerator(cpu=True)
raw = torch.nn.Sequential(torch.nn.Linear(1, 1))
model, optimizer = accelerator.prepare(raw, torch.optim.SGD(raw.parameters(), lr=0.1))
said = []
for given in (raw, model, None, [], [raw], [model, raw], [optimizer]):
    try:
        accelerator.join_uneven_inputs(given)
        said.append(None)
    except ValueError as error:
        said.append(str(error))
with accelerator.join_uneven_inputs((model,)):
    pass
answer(said)
