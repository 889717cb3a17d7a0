# SPDX-License-Identifier: Apache-2.0
"""`gather_for_metrics` returns each sample of an epoch once, however batches were drawn and padded;
expected values are counted by hand."""

from __future__ import annotations

import pytest
import torch
from ranks import run_ours
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from accelerate import Accelerator

NUMBERS = torch.arange(98)


class Remembered:
    """A sampler that remembers its last order."""

    def __init__(self, sampler):
        self.sampler = sampler

    def __len__(self):
        return len(self.sampler)

    def __iter__(self):
        self.drawn = list(self.sampler)
        return iter(self.drawn)


class Count(IterableDataset):
    def __init__(self, size):
        self.size = size

    def __iter__(self):
        return iter(range(self.size))


@pytest.fixture
def accelerator():
    return Accelerator(cpu=True)


@pytest.mark.parametrize(
    "sampler",
    [
        SubsetRandomSampler(range(5, 25)),
        WeightedRandomSampler(torch.arange(98.0), 20),
        RandomSampler(NUMBERS, num_samples=20),
        RandomSampler(NUMBERS, replacement=True, num_samples=20),
    ],
    ids=["subset", "weighted", "random", "with replacement"],
)
def test_all_that_a_sampler_drew_is_there(accelerator, sampler):
    remembered = Remembered(sampler)
    loader = accelerator.prepare(DataLoader(NUMBERS, batch_size=8, sampler=remembered))
    rows, words = [], []
    for batch in loader:
        rows += accelerator.gather_for_metrics(batch).tolist()
        words += accelerator.gather_for_metrics([str(i) for i in batch.tolist()])
    assert len(rows) == 20 and rows == remembered.drawn
    assert words == [str(i) for i in remembered.drawn]
    assert loader.remainder == 4


@pytest.mark.parametrize("data", [NUMBERS[:11], Count(11)], ids=["map", "stream"])
def test_a_loss_of_each_sample_counts_once_per_sample(accelerator, data):
    loader = accelerator.prepare(DataLoader(data, batch_size=8))
    losses = []
    for batch in loader:
        # Like Trainer, with the nominal batch size.
        losses.append(accelerator.gather_for_metrics(batch.float().mean().repeat(8)))
        assert len(accelerator.gather_for_metrics(["w"] * 8)) == len(batch)
    assert [len(part) for part in losses] == [8, 3]
    assert torch.cat(losses).mean().item() == 5  # of 0 to 10
    assert len(accelerator.gather_for_metrics(torch.ones(8))) == 8


def test_values_that_are_not_of_samples_stay_whole(accelerator):
    loader = accelerator.prepare(DataLoader(NUMBERS[:11], batch_size=8))
    for _ in loader:
        value = {"confusion": torch.ones(5, 5), "loss": torch.tensor(1.0), "flat": torch.ones(16)}
        gathered = accelerator.gather_for_metrics(value)
        assert {name: tensor.shape for name, tensor in gathered.items()} == {
            name: tensor.shape for name, tensor in value.items()
        }
        assert accelerator.gather_for_metrics("a text") == "a text"


def test_rows_of_tokens_all_count_where_nothing_is_repeated(accelerator):
    # The last batch has 15 samples, and as many tokens as a full one has samples.
    loader = accelerator.prepare(DataLoader(NUMBERS[:33], batch_size=18))
    for batch in loader:
        tokens = torch.arange(18)
        assert accelerator.gather_for_metrics(tokens).tolist() == tokens.tolist()
        assert len(accelerator.gather_for_metrics(torch.ones(18, dtype=torch.int64))) == 18
        assert accelerator.gather_for_metrics(list(range(18))) == list(range(18))
        assert len(accelerator.gather_for_metrics(tokens.numpy())) == 18
        assert len(accelerator.gather_for_metrics(torch.full((18,), torch.nan))) == len(batch)


def test_tensors_of_a_stream_that_have_other_sizes_are_not_taken_for_its_batches(accelerator):
    loader = accelerator.prepare(
        DataLoader(Count(11), batch_size=8, collate_fn=lambda i: (torch.ones(3), torch.tensor(i)))
    )
    rows = [len(accelerator.gather_for_metrics(ids)) for _, ids in loader]
    assert rows == [8, 3] and loader.remainder == 3


@pytest.fixture(scope="module")
def two(tmp_path_factory) -> list[dict]:
    return run_ours("metrics/gather_on_two.py", tmp_path_factory.mktemp("metrics"))


def test_two_processes_give_each_drawn_sample_once(two):
    twenty = list(range(20))
    for found in two:
        for name in ("subset", "weighted", "split", "workers", "stream", "dispatched"):
            assert found[name] == [twenty, 20, 4], name
        assert found["stream read by all"] == [twenty, 20, 4]
        # The second process's last batch is short.
        assert found["uneven"] == [list(range(28)), 28, 12]
        ids, losses, remainder = found["end dropped"]
        assert len(ids) == 16 and set(ids) < set(twenty) and (losses, remainder) == (16, 16)
        assert found["full"] == [list(range(32)), 32, 16]
        # The fifth batch meets the first, which repeats.
        assert found["varying"] == [[0, 1, 2], [3, 4, 5, 6, 7, 8, 9], list(range(10, 20))]


def test_repeated_batches_do_not_count_whatever_their_rows_are(two):
    def twice(numbers):
        return [number for number in numbers for _ in range(2)]

    for found in two:
        rounds = [[0, 1, 2], range(3, 10), range(10, 20)]
        # Each text list is longer than its batch by one.
        assert found["packed"] == [[twice(numbers) for numbers in rounds], 45]
        # Of five samples in batches of two, the first process repeats one and the second both. It
        # is unknown which rows of the first are repeats.
        tokens, _ = found["partly repeated"]
        assert tokens == [twice(range(4)), twice([4, 0])]
    first, second = (found["warnings"] for found in two)
    assert first and all("1 of the 2 samples" in text for text in first) and second == []


def test_ranks_with_and_without_objects_gather_together(two):
    for found in two:
        ranks = found["ranks"]
        assert ranks["some and none"] == ["a"]
        assert ranks["none and some"] == [["b", 2], None]
        assert ranks["none"] == []
        assert ranks["empty lists"] == [[], [], [], []]
        assert ranks["empty dictionaries"] == [{}, {}, {}]
        assert ranks["empty samples"] == [[], {}, {"a": []}]
        assert ranks["some empty"] == [["PER"], [], [], []]
        # Of no samples.
        assert ranks["empty dictionary"] == {"a": []}
        assert ranks["many and one"] == ["a", "a", "b"]
        assert ranks["rows"] == [[1.0], [0.0]]


def test_values_that_do_not_fit_are_named_on_every_rank(two):
    def check_named(text):
        assert text.startswith("MismatchError: gather") and "\n" not in text
        assert " was called with " in text and " on rank 1 (" in text

    for found in two:
        ranks = found["ranks"]
        for name in (
            "tensor and text",
            "list and dictionary",
            "tensors and none",
            "tensors and empty lists",
        ):
            check_named(ranks[name])
        assert "with objects on rank 1 (" in ranks["tensor and text"]
        assert "but a tensor on rank 0 (" in ranks["tensor and text"]
        assert "Can't pickle" in ranks["unpicklable"]
        assert "Can't pickle" in ranks["both unpicklable"]
        assert "MismatchError" not in ranks["both unpicklable"]
        assert ranks["after"] == [0, 1]
        check_named(ranks["tensors and objects"])
        assert ranks["undivided"] == [2]
    first, second = (found["ranks"] for found in two)
    for name in ("gathered text", "reduced text", "reduction"):
        assert "rank 1 failed with" in first[name] and "\n" not in first[name]
    assert second["gathered text"].startswith("NotATensor: [gather] Got an object of type str")
    assert second["reduced text"].startswith("NotATensor: [reduce] Got an object of type str")
    assert second["reduction"].startswith("UsageError: [reduce] Unknown reduction 'product'")
    told = two[0]["ranks"]["unpicklable"]
    assert told.startswith("MismatchError: rank 1 failed with") and "\n" not in told
    assert "Can't pickle" in told


def test_rows_that_are_not_samples_warn_once(tmp_path):
    # The last batch of process 1 is the only one with repeats.
    first, second = run_ours("metrics/repeated_rows.py", tmp_path)
    assert not first
    (line,) = second
    assert "Repeated samples are gathered too" in line and "which of the 8 rows" in line
