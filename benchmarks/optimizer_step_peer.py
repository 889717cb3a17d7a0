# SPDX-License-Identifier: Apache-2.0
"""The Python side of optimizer_step.py: milliseconds per step of torch's fused AdamW."""
import sys
import time

import torch
from shapes import bert_base_shapes

WARM_UP, BLOCKS = 3, 12


def main():
    device = sys.argv[1]
    steps = 1 if device == "cpu" else 20
    parameters = [
        torch.rand(shape, device=device).requires_grad_() for shape in bert_base_shapes()]
    for parameter in parameters:
        parameter.grad = torch.rand_like(parameter)
    optimizer = torch.optim.AdamW(parameters, fused=True)
    times = []
    for _ in range(WARM_UP + BLOCKS):
        start = time.perf_counter()
        for _ in range(steps):
            optimizer.step()
        if device != "cpu":
            torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - start) / steps)
    print(min(times[WARM_UP:]))  # Other load only adds time.


main()
