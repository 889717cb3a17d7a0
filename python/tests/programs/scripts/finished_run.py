# SPDX-License-Identifier: Apache-2.0
import sys

import torch
from accelerate import Accelerator

accelerator = Accelerator(log_with="jsonl", project_dir=sys.argv[1])
accelerator.init_trackers("mine")
net = torch.nn.Linear(2, 1)
net, optimizer = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1))
for step in range(3):
    accelerator.backward(net(torch.ones(1, 2, device=accelerator.device)).sum())
    optimizer.step()
    optimizer.zero_grad()
accelerator.save_state(sys.argv[1] + "/state")
accelerator.end_training()
