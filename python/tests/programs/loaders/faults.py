# SPDX-License-Identifier: Apache-2.0
import torch
from accelerate import Accelerator
from accelerate.state import GradientState
from answers import answer
from torch.utils.data import DataLoader, IterableDataset


class Broken(IterableDataset):
    def __iter__(self):
        yield from range(20)
        raise KeyError("no such sample")


class Ragged(IterableDataset):
    def __iter__(self):
        return iter([torch.zeros(2, 3), torch.zeros(2, 4)])


class Texts(IterableDataset):
    def __iter__(self):
        return iter(["a", "b", "c", "d"])


class Unopened(IterableDataset):
    def set_epoch(self, epoch):
        if accelerator.is_main_process:
            raise OSError("no such\nfile")

    def __iter__(self):
        return iter(range(4))


accelerator = Accelerator(cpu=True)
found = {}
for name, data, size in (
    ("broken", Broken(), 4),
    ("ragged", Ragged(), None),
    ("texts", Texts(), 2),
    ("unopened", Unopened(), 2),
):
    batches = []
    try:
        for batch in accelerator.prepare(DataLoader(data, size)):
            batches.append(batch.tolist())
    except Exception as error:
        found[name] = [batches, type(error).__name__, str(error), isinstance(error, RuntimeError)]
    assert GradientState().step_state.batch() is None
# A generator that one process cannot give.
for odd in (0, 1):
    loader = accelerator.prepare_data_loader(DataLoader(torch.arange(8), 2, shuffle=True))
    if accelerator.process_index == odd:
        loader.synchronized_generator = None
    try:
        next(iter(loader))
    except Exception as error:
        found[f"generator of {odd}"] = [type(error).__name__, str(error)]
# Everybody is still in step.
loader = accelerator.prepare(DataLoader(torch.arange(8), 2, shuffle=True))
found["after"] = [batch.tolist() for batch in loader]
answer(found)
