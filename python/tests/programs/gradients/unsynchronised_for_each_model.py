# SPDX-License-Identifier: Apache-2.0
import warnings

import torch
from accelerate import Accelerator
from answers import answer


def said_by(loss):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        accelerator.backward(loss.sum())
    return [str(w.message).partition(":")[0] for w in said if "[backward]" in str(w.message)]


accelerator = Accelerator()
nets = [torch.nn.Linear(2, 1) for _ in range(4)]
*trained, beside = nets
accelerator.prepare(*trained)
x = torch.ones(1, 2)
losses = [beside(x), nets[1](x), nets[0](x), nets[0](x) + nets[1](x) + nets[2](x), beside(x)]
answer([said_by(loss) for loss in losses])
