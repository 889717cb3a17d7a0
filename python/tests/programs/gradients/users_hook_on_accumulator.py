# SPDX-License-Identifier: Apache-2.0
import torch
from accelerate import Accelerator
from answers import answer

accelerator = Accelerator()
net = torch.nn.Linear(3, 1)
accumulator = net.weight.expand_as(net.weight).grad_fn.next_functions[0][0]
calls = []
accumulator.register_hook(lambda *_: calls.append(1))
model = accelerator.prepare(net)
x = torch.full((1, 3), accelerator.process_index + 1.0)
accelerator.backward(model(x).sum())
answer([net.weight.grad.tolist(), len(calls)])
