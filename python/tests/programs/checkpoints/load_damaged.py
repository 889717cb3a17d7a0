# SPDX-License-Identifier: Apache-2.0
import torch
from accelerate.errors import DataError
from small_run import accelerator, model

accelerator.save_state("state")
accelerator.wait_for_everyone()
from pathlib import Path

path = Path("state/rank_1-at-0.safetensors")
if accelerator.is_main_process:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
with torch.no_grad():
    model.weight.fill_(7)
accelerator.wait_for_everyone()
try:
    accelerator.load_state("state")
except DataError as error:
    print("refused", accelerator.process_index, error)
assert torch.equal(model.weight, torch.full((2, 3), 7.0))
accelerator.wait_for_everyone()
