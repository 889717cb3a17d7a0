# SPDX-License-Identifier: Apache-2.0
"""Writes which indices each rank gets from Hugging Face Accelerate's samplers
and shards, for tests/data/shard_test.cpp to compare with.

    python tools/make_shard_reference.py > tests/reference/shards.txt

A table of all ranks is text: "0,1;4,5|2,3;6,0" are two ranks of two batches. A
line holds the tables of the sizes 0 to 50, each as the low half of its FNV-1a
hash; lines that begin with `table` hold one table in full.
"""
import itertools

import torch
from accelerate.data_loader import (
    BatchSamplerShard, IterableDatasetShard, SeedableRandomSampler)
from torch.utils.data import BatchSampler, IterableDataset, WeightedRandomSampler
from transformers.trainer_pt_utils import get_length_grouped_indices

SIZES = range(51)
FLAGS = (False, True)


def fnv1a(text):
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return f"{value % 2**32:08x}"


def indices_text(indices):
    return ",".join(str(i) for i in indices)


def table_text(ranks):
    return "|".join(";".join(map(indices_text, batches)) for batches in ranks)


def shards(make, num_ranks, split, even):
    ranks = []
    for rank in range(num_ranks):
        shard = BatchSamplerShard(make(), num_ranks, rank, split, even)
        batches = [list(batch) for batch in shard]
        # With split batches the length counts a batch of which nothing is
        # left for the later ranks.
        assert len(shard) == len(batches) or (split and not even)
        ranks.append(batches)
    return table_text(ranks)


def fixed(size, batch, num_ranks, drop_last, even, split):
    return shards(lambda: BatchSampler(range(size), batch, drop_last),
                  num_ranks, split, even)


class VaryingBatches:
    """Batch k has (7 k + 2) % 5 + 1 samples. No `batch_size`."""

    def __init__(self, num_batches, drop_last):
        self.drop_last = drop_last
        self.batches = []
        first = 0
        for k in range(num_batches):
            size = (7 * k + 2) % 5 + 1
            self.batches.append(list(range(first, first + size)))
            first += size

    def __iter__(self):
        return iter(self.batches)

    def __len__(self):
        return len(self.batches)


def varying(size, num_ranks, drop_last, even):
    return shards(lambda: VaryingBatches(size, drop_last), num_ranks, False, even)


class Numbers(IterableDataset):
    def __init__(self, size):
        self.size = size

    def __iter__(self):
        return iter(range(self.size))

    def __len__(self):
        return self.size


def stream(size, batch, num_ranks, drop_last, split):
    ranks = []
    for rank in range(num_ranks):
        shard = IterableDatasetShard(
            Numbers(size), batch, drop_last, num_ranks, rank, split)
        elements = list(shard)
        assert split or len(shard) == len(elements)
        per_rank = batch // num_ranks if split else batch
        ranks.append([elements[i:i + per_rank]
                      for i in range(0, len(elements), per_rank)])
    return table_text(ranks)


def grid():
    """(kind, settings, function of the size) of every line."""
    for batch, num_ranks in itertools.product(range(1, 8), range(1, 6)):
        splits = FLAGS if batch % num_ranks == 0 else FLAGS[:1]
        for drop_last, even, split in itertools.product(FLAGS, FLAGS, splits):
            yield "fixed", fixed, (batch, num_ranks, drop_last, even, split)
        for drop_last, split in itertools.product(FLAGS, splits):
            yield "stream", stream, (batch, num_ranks, drop_last, split)
    for num_ranks, drop_last, even in itertools.product(range(1, 6), FLAGS, FLAGS):
        yield "varying", varying, (num_ranks, drop_last, even)


def orders():
    """(kind, settings, order) of the samplers."""
    seeds = ((0, 0), (42, 0), (42, 3), (2**32 + 5, 1), (2**63, 2))
    for (seed, epoch), size in itertools.product(seeds, (1, 5, 1000, 40000)):
        sampler = SeedableRandomSampler(range(size), data_seed=seed)
        sampler.set_epoch(epoch)
        yield "random", (seed, epoch, size), list(sampler)
    for (seed, epoch), replacement in itertools.product(seeds, FLAGS):
        # Weight of sample i: i % 7, so that some are never drawn.
        sampler = WeightedRandomSampler(
            [i % 7 for i in range(100)], 60, replacement,
            torch.Generator().manual_seed(seed + epoch))
        yield "weighted", (seed, epoch, replacement), list(sampler)
    for (seed, epoch), size, batch in itertools.product(
            seeds, (1, 10, 500), (1, 4)):
        # Length of sample i: i * i % 31.
        yield "grouped", (seed, epoch, size, batch), get_length_grouped_indices(
            [i * i % 31 for i in range(size)], batch,
            generator=torch.Generator().manual_seed(seed + epoch))


def words(settings):
    return " ".join(str(int(setting)) for setting in settings)


def main():
    for size in (24, 21, 22, 20, 2):
        for even, split in itertools.product(FLAGS, FLAGS):
            settings = (4, 2, False, even, split)
            print("table", size, words(settings), fixed(size, *settings))
    for kind, function, settings in grid():
        print(kind, words(settings),
              *(fnv1a(function(size, *settings)) for size in SIZES))
    for kind, settings, order in orders():
        print(kind, words(settings), fnv1a(indices_text(order)))


if __name__ == "__main__":
    main()
