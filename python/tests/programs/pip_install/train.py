# SPDX-License-Identifier: Apache-2.0
import importlib.metadata

import accelerate
import torch
from accelerate import Accelerator

assert accelerate.__version__ == importlib.metadata.version("accelerate")
accelerator = Accelerator()
net = accelerator.prepare(torch.nn.Linear(2, 1))
accelerator.backward(net(torch.ones(1, 2)).sum() * (1 + accelerator.process_index))
assert net.weight.grad.tolist() == [[1.5, 1.5]]
print("installed", accelerator.process_index, accelerate.__file__)
