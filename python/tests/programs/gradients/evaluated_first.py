# SPDX-License-Identifier: Apache-2.0
import torch
from accelerate import Accelerator
from answers import answer

accelerator = Accelerator()
torch.manual_seed(accelerator.process_index)
net = torch.nn.Linear(3, 1)
evaluated = accelerator.prepare_model(net, evaluation_mode=True)
evaluated(torch.ones(1, 3))
sgd = torch.optim.SGD(net.parameters(), lr=0.1)
model, optimizer = accelerator.prepare(net, sgd)
assert evaluated is net  # as in the original
x = torch.full((1, 3), accelerator.process_index + 1.0)
accelerator.backward(model(x).sum())
gradient = net.weight.grad.tolist()
optimizer.step()
assert accelerator.unwrap_model(accelerator.prepare_model(net, evaluation_mode=True)) is net
names = [name for name in accelerator._run.state.state_dict() if "weight" in name]
answer([gradient, net.weight.tolist(), [n for n in names if n.startswith("model")]])
