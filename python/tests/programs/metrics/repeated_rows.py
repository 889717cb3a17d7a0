# SPDX-License-Identifier: Apache-2.0
import warnings

import torch
from accelerate import Accelerator
from answers import answer

accelerator = Accelerator(cpu=True)
loader = accelerator.prepare(torch.utils.data.DataLoader(torch.arange(6.0), batch_size=4))
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    for _ in range(2):
        for batch in loader:
            for num_rows in (2, 3):
                accelerator.gather_for_metrics(batch.repeat_interleave(num_rows))
answer([str(warning.message) for warning in said])
