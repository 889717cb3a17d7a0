# SPDX-License-Identifier: Apache-2.0
import torch
from accelerate import Accelerator
from accelerate.utils.operations import DistributedOperationException
from answers import answer

accelerator = Accelerator(cpu=True)
try:
    accelerator.reduce(torch.ones(2 + accelerator.process_index))
except DistributedOperationException as error:
    answer(type(error).__name__)
