# SPDX-License-Identifier: Apache-2.0
# One epoch, saved by two processes after two rounds of six samples; or its rest.

import json
import sys

import torch
from accelerate import Accelerator, DataLoaderConfiguration
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset

told = json.loads(sys.argv[1])
set_seed(8 if told["resume"] else 5)
accelerator = Accelerator(
    cpu=True,
    dataloader_config=DataLoaderConfiguration(use_seedable_sampler=told["seedable"]),
)
loader = DataLoader(TensorDataset(torch.arange(30)), batch_size=3, shuffle=True)
loader = accelerator.prepare(loader)
if told["resume"]:
    accelerator.load_state("begun", restore_loaders=True)
seen = []
for number, (samples,) in enumerate(loader):
    if not told["resume"] and number == 2:
        accelerator.save_state("begun")  # Before the third batch is used.
        break
    seen += samples.tolist()
print("\nSEEN", json.dumps(seen))
