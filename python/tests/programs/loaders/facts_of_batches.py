# SPDX-License-Identifier: Apache-2.0
import torch
from accelerate import Accelerator
from accelerate.state import GradientState
from accelerate.utils import DataLoaderConfiguration
from answers import answer
from torch.utils.data import DataLoader, IterableDataset


class Count(IterableDataset):
    def __init__(self, size):
        self.size = size

    def __iter__(self):
        return iter(range(self.size))


accelerator = Accelerator(cpu=True)
state = GradientState().step_state
found = {}
for size in range(1, 18):
    loader = accelerator.prepare(DataLoader(Count(size), 3))
    real = []
    for batch in loader:
        facts = state.batch()
        assert facts.num_samples == len(batch)
        assert facts.is_last == loader.end_of_dataloader
        real += batch.tolist()[: facts.num_real]
    assert facts.is_last
    found[size] = real

# Each process has a seed of its own.
rank = accelerator.process_index
for name, options in (("torch's seed", {}), ("data_seed", {"data_seed": 7 - rank})):
    torch.manual_seed(100 + rank)
    config = DataLoaderConfiguration(use_seedable_sampler=True, **options)
    seeded = Accelerator(dataloader_config=config)
    loader = seeded.prepare(DataLoader(torch.arange(16), 4, shuffle=True))
    found[name] = [[batch.tolist() for batch in loader] for _ in range(2)]
answer(found)
