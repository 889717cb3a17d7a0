# SPDX-License-Identifier: Apache-2.0
import torch
from accelerate import Accelerator
from accelerate.data_loader import prepare_data_loader
from accelerate.utils import set_seed
from answers import answer
from torch.utils.data import DataLoader, IterableDataset, WeightedRandomSampler


class Count(IterableDataset):
    def __init__(self, size):
        self.size = size

    def __iter__(self):
        return iter(range(self.size))


class Words:
    """Dictionaries of tensors, as tokenizers make them."""

    def __len__(self):
        return 22

    def __getitem__(self, i):
        return {"ids": torch.arange(3) + i, "label": i}


def flat(batch):
    if isinstance(batch, dict):
        return {key: value.tolist() for key, value in batch.items()}
    return batch.tolist()


def epochs(dataset, batch_size=4, shuffle=None, drop_last=False, sampler=None, **options):
    set_seed(7)
    loader = prepare_data_loader(
        DataLoader(dataset, batch_size, shuffle, sampler, drop_last=drop_last, num_workers=workers),
        torch.device("cpu"),
        put_on_device=True,
        rng_types=["generator"],
        **options,
    )
    found = []
    for _ in range(2):
        found.append([flat(batch) for batch in loader])
        found.append(loader.end_of_dataloader)
    # What the loops have drawn from the global generator counts too.
    return [found, torch.rand(1).item()]


Accelerator(cpu=True)
numbers = torch.arange(23)


def reverse_slice(data, part, process_index, num_processes):
    return data[part].flip(0)


found = {}
for workers in (0, 2):
    weighted = WeightedRandomSampler(torch.arange(1.0, 24.0), 21)
    found[f"{workers} workers"] = {
        "in order": epochs(numbers),
        "shuffled": epochs(numbers, shuffle=True),
        "shuffled, end dropped": epochs(numbers, shuffle=True, drop_last=True),
        "shuffled, split": epochs(numbers, shuffle=True, split_batches=True),
        "shuffled, uneven": epochs(numbers, shuffle=True, even_batches=False),
        "seedable": epochs(numbers, shuffle=True, use_seedable_sampler=True, data_seed=3),
        "seedable, torch's seed": epochs(numbers, shuffle=True, use_seedable_sampler=True),
        "weighted": epochs(numbers, sampler=weighted),
        "dictionaries": epochs(Words(), shuffle=True),
        "stream": epochs(Count(22), dispatch_batches=False),
    }
workers = 0
found["dispatched"] = {
    "dictionaries": epochs(Words(), shuffle=True, dispatch_batches=True),
    "sliced by a function": epochs(Count(16), slice_fn_for_dispatch=reverse_slice),
    **{f"{size}": epochs(Count(size), 3) for size in range(1, 18)},
    **{f"{size}, end dropped": epochs(Count(size), 3, drop_last=True) for size in range(6, 18)},
    **{f"{size}, split": epochs(Count(size), split_batches=True) for size in range(1, 18)},
}
answer(found)
