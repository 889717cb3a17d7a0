# SPDX-License-Identifier: Apache-2.0
# Torch's threads do not live through a fork, and next to an Accelerator the original refuses. The
# cells after it use these names too.
import os  # noqa: F401

import torch
from accelerate import Accelerator

torch.set_num_threads(2)
accelerator = Accelerator()
model = torch.nn.Linear(500, 500)
model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters()))
accelerator.backward(model(torch.randn(500, 500)).square().mean())
optimizer.step()
