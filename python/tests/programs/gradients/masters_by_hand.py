# SPDX-License-Identifier: Apache-2.0
import torch
from accelerate import Accelerator
from answers import answer

accelerator = Accelerator(mixed_precision="bf16", master_weights=True)
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
by_hand = [p.detach().clone().requires_grad_() for p in net.parameters()]
alone = torch.optim.AdamW(by_hand, lr=0.05)
optimizer = torch.optim.AdamW(net.parameters(), lr=0.05)
net, optimizer = accelerator.prepare(net, optimizer)
x, y = torch.randn(12, 4), torch.randn(12, 1)


def train(step):
    output = net(x + step)
    accelerator.backward(torch.nn.functional.mse_loss(output, y))
    optimizer.step()
    optimizer.zero_grad()
    return output


def the_same(step):
    weights = [p.detach().bfloat16().requires_grad_() for p in by_hand]
    hidden = torch.tanh(torch.nn.functional.linear((x + step).bfloat16(), *weights[:2]))
    output = torch.nn.functional.linear(hidden, *weights[2:]).float()
    torch.nn.functional.mse_loss(output, y).backward()
    for parameter, weight in zip(by_hand, weights):
        parameter.grad = weight.grad.float()
    alone.step()


for step in range(5):
    output = train(step)
    the_same(step)
masters = accelerator.get_state_dict(net)
folder = accelerator.save_state("masters")
train(5)
after = accelerator.get_state_dict(net)
accelerator.load_state(folder)
back = accelerator.get_state_dict(net)
train(5)
again = accelerator.get_state_dict(net)
try:
    net.load_state_dict(masters)
    refused = ""
except Exception as error:
    refused = str(error)
same = lambda a, b: all(torch.equal(a[k], b[k]) for k in a)
answer(
    [
        str(output.dtype),
        str(net[0].weight.dtype),
        str(masters["0.weight"].dtype),
        all(torch.equal(m, p.detach()) for m, p in zip(masters.values(), by_hand)),
        same(masters, back),
        same(after, again),
        same(masters, after),
        refused,
    ]
)
