# SPDX-License-Identifier: Apache-2.0
import json
from itertools import product

import accelerate
from accelerate import data_loader
from torch.utils.data import BatchSampler, IterableDataset


def deal_out(data_loader):
    """Every case with the batches of each of its ranks: run with the original's module and with
    ours."""

    class Count(IterableDataset):
        def __init__(self, size):
            self.size = size

        def __iter__(self):
            return iter(range(self.size))

        def __len__(self):
            return self.size

    class Varying:
        """Batches of 1, 2, 3, 1, 2, 3, ... samples."""

        def __init__(self, num_batches):
            self.num_batches = num_batches

        def __iter__(self):
            first = 0
            for i in range(self.num_batches):
                yield list(range(first, first + 1 + i % 3))
                first += 1 + i % 3

        def __len__(self):
            return self.num_batches

    class Own(BatchSampler):
        """A custom class that groups samples itself."""

        def __iter__(self):
            for first in range(0, len(self.sampler), self.batch_size):
                batch = [i for i in self.sampler if first <= i < first + self.batch_size]
                if len(batch) == self.batch_size or not self.drop_last:
                    yield batch

    bools = (False, True)
    found = {}
    for world, split, even in product((1, 2, 3), bools, bools):
        for rank in range(world):
            shard = (world, rank, split, even)
            for size, batch_size, drop in product(range(26), (1, 2, 3, 4), bools):
                if not split or batch_size % world == 0:
                    for make in (BatchSampler, Own):
                        key = (make.__name__, size, batch_size, drop, *shard)
                        found[str(key)] = make(range(size), batch_size, drop), shard
            for num_batches in () if split else range(12):
                found[str(("Varying", num_batches, *shard))] = Varying(num_batches), shard
    for key, (batches, shard) in found.items():
        sampler = data_loader.BatchSamplerShard(batches, *shard)
        found[key] = [list(batch) for batch in sampler], len(sampler)
    sizes = product(range(26), (1, 2, 3, 4))
    for (size, batch_size), world, split, drop in product(sizes, (1, 2, 3), bools, bools):
        for rank in range(world):
            if not split or batch_size % world == 0:
                shard = data_loader.IterableDatasetShard(
                    Count(size), batch_size, drop, world, rank, split
                )
                key = ("Count", size, batch_size, drop, world, rank, split)
                found[str(key)] = list(shard), len(shard)
    return found


if __name__ == "__main__":
    assert "+" not in accelerate.__version__, accelerate.__file__
    print(json.dumps(deal_out(data_loader)))
