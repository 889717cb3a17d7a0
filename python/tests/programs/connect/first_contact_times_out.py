# SPDX-License-Identifier: Apache-2.0
from datetime import timedelta

from accelerate import Accelerator, InitProcessGroupKwargs
from accelerate.errors import CommTimeoutError

try:
    Accelerator(cpu=True, kwargs_handlers=[InitProcessGroupKwargs(timeout=timedelta(seconds=1))])
except CommTimeoutError as error:
    print(error)
