# SPDX-License-Identifier: Apache-2.0
import json
import sys
import time

import torch
from small_run import accelerator, model

# How it saves.
how = json.loads(sys.argv[1])


def be_late(models, weights, folder):
    if accelerator.is_main_process:
        time.sleep(0.3)


def fill(value):
    with torch.no_grad():
        model.weight.fill_(value)


fill(1)
accelerator.save_state("state", **how)
accelerator.wait_for_save()
accelerator.wait_for_everyone()
accelerator.register_save_state_pre_hook(be_late)
fill(2)
accelerator.save_state("state", **how)
fill(3)
accelerator.load_state("state")
assert torch.equal(model.weight, torch.full((2, 3), 2.0)), model.weight
print("equal", accelerator.process_index)
