# SPDX-License-Identifier: Apache-2.0
import torch
from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs
from answers import answer

accelerator = Accelerator(
    cpu=True, kwargs_handlers=[DistributedDataParallelKwargs(static_graph=True)]
)
net = torch.nn.Linear(1, 1, bias=False)
model = accelerator.prepare(net)
still = accelerator.prepare_model(torch.nn.Linear(1, 1), evaluation_mode=True)
with accelerator.join_uneven_inputs([model, still]):
    accelerator.backward(model(torch.full((1, 1), 1.0 + accelerator.process_index)).sum())
try:
    with accelerator.join_uneven_inputs([model], even_batches=False):
        said = ""
except ValueError as error:
    said = str(error)
answer([net.weight.grad.item(), said])
