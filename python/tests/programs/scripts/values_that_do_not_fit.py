# SPDX-License-Identifier: Apache-2.0
import torch
from accelerate import Accelerator
from accelerate.errors import MismatchError

accelerator = Accelerator()
rank = accelerator.process_index
for value in (torch.ones(2, 2 + rank), {"ab"[rank]: torch.ones(1)}):
    try:
        accelerator.gather(value)
    except MismatchError as error:
        assert "rank 1" in str(error), error
    else:
        raise SystemExit("no error")
ragged = accelerator.gather(torch.full((rank + 1,), rank))
assert ragged.tolist() == [0, 1, 1]
print(f"refused {rank} of {accelerator.num_processes}", flush=True)
