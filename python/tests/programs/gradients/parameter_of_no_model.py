# SPDX-License-Identifier: Apache-2.0
import warnings

import torch
from accelerate import Accelerator
from answers import answer

accelerator = Accelerator()
net, later = torch.nn.Linear(2, 2), torch.nn.Linear(2, 1)
temperature = torch.nn.Parameter(torch.ones(()))
both = torch.optim.SGD([*net.parameters(), *later.parameters()], lr=0.1)
both, net = accelerator.prepare(both, net)
later = accelerator.prepare(later)


def said(scale):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        accelerator.backward((later(net(torch.ones(1, 2))) * scale).sum())
    return [str(w.message) for w in caught if "to a prepared model" in str(w.message)]


assert said(1) == []
own = accelerator.prepare(torch.optim.SGD([temperature], lr=0.1))
answer([*said(temperature), *said(temperature)])
