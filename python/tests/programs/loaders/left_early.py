# SPDX-License-Identifier: Apache-2.0
import os
import time

from accelerate import Accelerator
from answers import answer
from torch.utils.data import DataLoader, IterableDataset


class Count(IterableDataset):
    def __iter__(self):
        return iter(range(26))


accelerator = Accelerator(cpu=True)
rank = accelerator.process_index


def prepared():
    return accelerator.prepare(DataLoader(Count(), 2))


outer, found = prepared(), []
for batch in outer:
    # A loop inside, and one that is left at its second batch.
    inner = [other.tolist() for other in prepared()]
    for number, other in enumerate(prepared()):
        if number == 1:
            break
    found.append([batch.tolist(), inner, other.tolist()])
    if len(found) == 3:
        break
position = outer._position()
rest = prepared()
rest._restore_position(position)
found = {"begun": found, "position": position, "rest": [batch.tolist() for batch in rest]}

# Process 0 runs ahead of one that has not begun yet.
loader = iter(prepared())
if rank == 0:
    found["ahead"] = [next(loader).tolist() for _ in range(2)]
    open("ahead", "w").close()
else:
    end = time.monotonic() + 60
    while not os.path.exists("ahead") and time.monotonic() < end:
        time.sleep(0.01)
    assert os.path.exists("ahead"), "process 0 waits for this one"
    found["ahead"] = [next(loader).tolist() for _ in range(2)]
loader.close()
accelerator.wait_for_everyone()
answer(found)
