# SPDX-License-Identifier: Apache-2.0
# The cells after it use these names too.
import os  # noqa: F401
import threading
import time

import torch
from accelerate import notebook_launcher  # noqa: F401

threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
torch.set_num_threads(2)
_ = torch.randn(300, 300) @ torch.randn(300, 300)
if torch.cuda.is_available():
    _ = torch.ones(1, device="cuda")
