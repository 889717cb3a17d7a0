# SPDX-License-Identifier: Apache-2.0
import torch
from accelerate import Accelerator
from accelerate.utils import broadcast
from accelerate.utils.operations import DistributedOperationException

accelerator = Accelerator()
assert accelerator.state.debug
rank = accelerator.process_index
try:
    broadcast(torch.ones(2 + rank))
except DistributedOperationException as error:
    assert "rank 1" in str(error), error
else:
    raise SystemExit("no error")
model = torch.nn.Linear(2, 1)
model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.1))
accelerator.backward(model(torch.ones(1, 2)).sum())
optimizer.step()
accelerator.wait_for_everyone()
print("checked", rank, flush=True)
