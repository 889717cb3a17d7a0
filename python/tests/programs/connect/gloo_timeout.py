# SPDX-License-Identifier: Apache-2.0
import torch
import torch.distributed as dist
from accelerate import Accelerator, InitProcessGroupKwargs
from answers import answer

Accelerator(cpu=True, kwargs_handlers=[InitProcessGroupKwargs(backend="gloo")])
answer(dist.group.WORLD._get_backend(torch.device("cpu")).options._timeout.total_seconds())
