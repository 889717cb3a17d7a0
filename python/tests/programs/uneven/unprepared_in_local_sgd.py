# SPDX-License-Identifier: Apache-2.0
import torch
from accelerate import Accelerator
from accelerate.local_sgd import LocalSGD
from answers import answer

try:
    LocalSGD(Accelerator(cpu=True), torch.nn.Linear(1, 1), 2)
except ValueError as error:
    answer(str(error))
