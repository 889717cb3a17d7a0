# SPDX-License-Identifier: Apache-2.0
import sys

import torch
from accelerate import Accelerator
from answers import answer

accelerator = Accelerator(cpu=True, mixed_precision=sys.argv[1])
net = torch.nn.Linear(1, 1, bias=False)
evaluated = accelerator.prepare_model(net, evaluation_mode=True)
is_itself = evaluated is net
model = accelerator.prepare(net)
accelerator.backward(model(torch.full((1, 1), 1.0 + accelerator.process_index)).sum())
answer([is_itself, model is net, accelerator._models[0] is net, net.weight.grad.item()])
