# SPDX-License-Identifier: Apache-2.0
import os
import time

from accelerate import Accelerator

accelerator = Accelerator()
open(f"pid{accelerator.process_index}", "w").write(str(os.getpid()))
time.sleep(600)
