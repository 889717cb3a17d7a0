# SPDX-License-Identifier: Apache-2.0
import torch
from accelerate import Accelerator
from accelerate.utils import FullyShardedDataParallelPlugin
from answers import answer

torch.set_default_dtype(torch.float64)
accelerator = Accelerator(fsdp_plugin=FullyShardedDataParallelPlugin(fsdp_version=2))
model = accelerator.prepare(torch.nn.Linear(3, 1))
loss = model(torch.ones(2, 3)).sum()
accelerator.backward(loss)
answer(str(loss.dtype))
