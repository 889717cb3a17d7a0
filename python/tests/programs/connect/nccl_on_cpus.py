# SPDX-License-Identifier: Apache-2.0
import warnings

from accelerate import Accelerator, InitProcessGroupKwargs
from answers import answer

with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    accelerator = Accelerator(cpu=True, kwargs_handlers=[InitProcessGroupKwargs(backend="nccl")])
said = [str(one.message) for one in caught if one.filename == __file__]
answer([accelerator.state.backend, said])
