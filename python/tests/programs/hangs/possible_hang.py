# SPDX-License-Identifier: Apache-2.0
"""What rank 0 and rank 1 do; each call has a line of its own in this module."""

import argparse
import os
import signal
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from accelerate import Accelerator, InitProcessGroupKwargs

parser = argparse.ArgumentParser()
parser.add_argument("actions", nargs=2)
parser.add_argument("--timeout", type=float)
parser.add_argument("--wait_for_end", action="store_true")
args = parser.parse_args()

handlers = []
if args.timeout is not None:
    handlers = [InitProcessGroupKwargs(timeout=timedelta(seconds=args.timeout))]
accelerator = Accelerator(cpu=True, kwargs_handlers=handlers)


def spin_for_long():
    end = time.monotonic() + 300
    while time.monotonic() < end:
        pass


class Stuck(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        time.sleep(300)


def read(dataset):
    return next(iter(accelerator.prepare(torch.utils.data.DataLoader(dataset))))


def be_slow():
    while not Path("go").exists():
        read(list(range(4)))
    dist.all_reduce(torch.ones(4))


for _ in range(3):  # The third one is through shared memory.
    accelerator.wait_for_everyone()
action = args.actions[accelerator.process_index]
if action == "all_reduce":
    dist.all_reduce(torch.ones(4))
elif action == "async_all_reduce":
    work = dist.all_reduce(torch.ones(4), async_op=True); work.wait()  # fmt: skip
elif action == "barrier":
    dist.barrier()
elif action == "gather":
    accelerator.gather(torch.ones(4))
elif action == "gather_and_barrier":
    accelerator.gather(torch.ones(4)); dist.barrier()  # fmt: skip
elif action == "gather_4_columns":
    accelerator.gather(torch.ones(2, 4))
elif action == "gather_5_columns":
    accelerator.gather(torch.ones(2, 5))
elif action == "wait_for_everyone":
    accelerator.wait_for_everyone()
elif action == "spin":
    spin_for_long()
elif action == "be_slow":
    be_slow()
elif action == "stop":
    os.kill(os.getpid(), signal.SIGSTOP)
elif action == "stuck_loader":
    read(Stuck())
else:
    parser.error(f"unknown action '{action}'")
if args.wait_for_end:
    while not Path("end").exists():
        time.sleep(0.01)
