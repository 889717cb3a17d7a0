# SPDX-License-Identifier: Apache-2.0
"""Offloads a model to a disk that becomes full. Arguments: a folder, and the largest size of a file."""

from __future__ import annotations

import resource
import sys

import torch
from accelerate import disk_offload

resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), int(sys.argv[2])))
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(200, 200))
try:
    disk_offload(model, sys.argv[1])
except RuntimeError as error:
    print(type(error).__name__, error)
print(model[1].weight.device)
