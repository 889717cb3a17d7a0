# SPDX-License-Identifier: Apache-2.0
import os
import sys

import torch
import torch.distributed as dist
from accelerate import Accelerator

meeting = "file://" + os.path.abspath("meeting")
dist.init_process_group(sys.argv[1], init_method=meeting, rank=0, world_size=1)
accelerator = Accelerator()
net = accelerator.prepare(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2)))
accelerator.backward(net(torch.randn(4, 2, device=accelerator.device)).sum())
assert accelerator.gather(torch.ones(2)).tolist() == [1, 1]
assert accelerator.gather(torch.ones(2, device="cuda")).is_cuda
assert accelerator.gather_for_metrics(["word"]) == ["word"]
accelerator.set_trigger()
assert accelerator.check_trigger()
accelerator.wait_for_everyone()
accelerator.end_training()
print("carried")
