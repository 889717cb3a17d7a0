# SPDX-License-Identifier: Apache-2.0
"""Shards equal Hugging Face Accelerate's, index for index, over a grid of small cases. The
original says what is expected, in its own environment."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
from itertools import product

import pytest
from accelerate import data_loader
from original import originals_python
from torch.utils.data import BatchSampler


def deal_out(data_loader):
    """Every case with the batches of each of its ranks: run with the original's module and with
    ours."""
    from itertools import product

    from torch.utils.data import BatchSampler, IterableDataset

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


@pytest.fixture(scope="module")
def originals(tmp_path_factory) -> dict:
    # A file in a separate folder: with -c, the package here could precede the original.
    script = tmp_path_factory.mktemp("original") / "script.py"
    script.write_text(
        f"{inspect.getsource(deal_out)}\nimport accelerate, json\n"
        "from accelerate import data_loader\n"
        "assert '+' not in accelerate.__version__, accelerate.__file__\n"
        "print(json.dumps(deal_out(data_loader)))"
    )
    result = subprocess.run(
        [originals_python(), str(script)],
        env={**os.environ, "PYTHONPATH": ""},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def ours() -> dict:
    return deal_out(data_loader)


def test_every_rank_gets_the_samples_of_the_original(originals, ours):
    assert len(ours) > 5000
    assert ours.keys() == originals.keys()
    wrong = [key for key in ours if ours[key][0] != originals[key][0]]
    assert wrong == []


def test_the_length_is_what_is_handed_out(ours):
    # A custom class only says how many batches it has, so it is unknown whether the last one has a
    # part for every rank.
    unknown = {str(("Own", *case, True, False)) for case in product(
        range(26), (1, 2, 3, 4), (False, True), (1, 2, 3), (0, 1, 2))}
    wrong = [key for key, (given, length) in ours.items() if len(given) != length]
    assert [key for key in wrong if key not in unknown] == []


def test_the_length_is_the_originals_wherever_that_is_true(originals, ours):
    true = [key for key, (given, length) in originals.items() if len(given) == length]
    assert len(true) > len(ours) * 3 // 4
    assert [key for key in true if ours[key][1] != originals[key][1]] == []


def test_the_same_sample_is_real_on_one_rank_only():
    for size, batch_size, world in product(range(1, 26), (1, 2, 3, 4), (2, 3)):
        real = []
        for rank in range(world):
            batches = BatchSampler(range(size), batch_size, False)
            for batch in data_loader.BatchSamplerShard(batches, world, rank):
                real += batch[: getattr(batch, "num_real", len(batch))]
        assert sorted(real) == list(range(size))
