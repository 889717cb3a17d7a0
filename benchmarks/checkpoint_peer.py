# SPDX-License-Identifier: Apache-2.0
"""The Python side of checkpoint.py: the same model and optimizer with Hugging Face Accelerate."""
import sys
import time

sys.path.append(sys.path.pop(0))  # A benchmark beside this one is called as a package it needs.

import torch
from accelerate import Accelerator
from shapes import bert_base_shapes

accelerator = Accelerator(cpu=not torch.cuda.is_available())
model = torch.nn.Module()
for i, shape in enumerate(bert_base_shapes()):
    model.register_parameter(f"p{i}", torch.nn.Parameter(torch.rand(shape)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model, optimizer = accelerator.prepare(model, optimizer)
for parameter in model.parameters():
    parameter.grad = torch.rand_like(parameter)
optimizer.step()
optimizer.zero_grad()
for line in sys.stdin:
    what, path = line.split()
    start = time.perf_counter()
    if what == "save":
        accelerator.save_state(path)
    else:
        accelerator.load_state(path)
    print(time.perf_counter() - start, flush=True)
