# SPDX-License-Identifier: Apache-2.0
"""Shards equal Hugging Face Accelerate's, index for index, over a grid of small cases. The
original says what is expected, in its own environment."""

from __future__ import annotations

import json
import runpy
from itertools import product

import pytest
from accelerate import data_loader
from original import PROGRAMS, originals_python, run_python
from torch.utils.data import BatchSampler


PROGRAM = PROGRAMS / "sharding_oracle/deal_out.py"


@pytest.fixture(scope="module")
def originals() -> dict:
    return json.loads(run_python(PROGRAM, python=originals_python()).splitlines()[-1])


@pytest.fixture(scope="module")
def ours() -> dict:
    return runpy.run_path(str(PROGRAM))["deal_out"](data_loader)


def test_every_rank_gets_the_samples_of_the_original(originals, ours):
    assert len(ours) > 5000
    assert ours.keys() == originals.keys()
    wrong = [key for key in ours if ours[key][0] != originals[key][0]]
    assert wrong == []


def test_the_length_is_the_number_of_returned_batches(ours):
    # A custom class only says how many batches it has, so it is unknown whether the last one has a
    # part for every rank.
    unknown = {
        str(("Own", *case, True, False))
        for case in product(range(26), (1, 2, 3, 4), (False, True), (1, 2, 3), (0, 1, 2))
    }
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
