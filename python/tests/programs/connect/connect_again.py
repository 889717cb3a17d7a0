# SPDX-License-Identifier: Apache-2.0
import torch
from accelerate import Accelerator
from answers import answer

sums = []
for i in range(4):
    for _ in range(2):  # the second shares what the first has connected
        accelerator = Accelerator(cpu=True)
        sums.append(accelerator.reduce(torch.tensor(accelerator.process_index + i)).item())
    if i % 2 == 1:
        accelerator.end_training()
        try:
            accelerator.reduce(torch.ones(1))
        except ValueError as error:
            assert "shut down" in str(error), error
        else:
            raise SystemExit("no error")
answer(sums)
