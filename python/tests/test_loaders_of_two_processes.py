# SPDX-License-Identifier: Apache-2.0
"""Loaders of two connected processes: batches, shuffles and draws from the generators equal those
of Hugging Face Accelerate under torchrun; errors reach every process."""

from __future__ import annotations

import pytest
import torch
from ranks import run_original, run_ours

LOADERS = "loaders/two_epochs.py"


@pytest.fixture(scope="module")
def loaders(tmp_path_factory) -> tuple[list, list]:
    folder = tmp_path_factory.mktemp("loaders")
    return run_ours(LOADERS, folder), run_original(LOADERS, folder)


@pytest.mark.parametrize("group", ["0 workers", "2 workers", "dispatched"])
def test_batches_and_generators_equal_the_originals(loaders, group):
    ours, originals = loaders
    for rank in (0, 1):
        assert ours[rank][group].keys() == originals[rank][group].keys()
        for name, found in ours[rank][group].items():
            assert found == originals[rank][group][name], (rank, name)


def test_every_sample_comes_once_on_one_of_the_ranks(loaders):
    ours, _ = loaders
    for name in ("0 workers", "2 workers"):
        epoch = [ours[rank][name]["shuffled, uneven"][0][0] for rank in (0, 1)]
        assert sorted(i for batches in epoch for batch in batches for i in batch) == list(range(23))


@pytest.fixture(scope="module")
def facts(tmp_path_factory) -> list[dict]:
    return run_ours("loaders/facts_of_batches.py", tmp_path_factory.mktemp("facts"))


def test_every_dispatched_sample_is_real_once(facts):
    for size in range(1, 18):
        assert sorted(facts[0][str(size)] + facts[1][str(size)]) == list(range(size))


@pytest.mark.parametrize(("name", "seed"), [("torch's seed", 100), ("data_seed", 7)])
def test_the_seed_of_process_0_counts(facts, name, seed):
    for rank, found in enumerate(facts):
        for epoch, batches in enumerate(found[name]):
            order = torch.randperm(16, generator=torch.Generator().manual_seed(seed + epoch))
            whole = order.view(4, 4).tolist()
            assert batches == whole[rank::2]


def test_what_fails_on_the_rank_that_reads_is_raised_on_all(tmp_path):
    ranks = run_ours("loaders/faults.py", tmp_path)
    for name, own, word in (
        ("broken", "KeyError", "no such sample"),
        ("ragged", "UsageError", "only the first dimension may differ"),
        ("texts", "NotATensor", "contains values other than tensors"),
        ("unopened", "OSError", "no such"),
    ):
        for rank, (batches, kind, text, is_runtime_error) in enumerate(r[name] for r in ranks):
            assert kind == (own if rank == 0 else "DataError")
            assert word in text
            if rank == 1:
                assert text.startswith("[DataLoaderDispatcher] Process 0, which reads for all")
                assert f"failed with {own}" in text and "\n" not in text
            assert is_runtime_error or kind in ("KeyError", "OSError")
            # Batches before the error were returned.
            expected = [[[0, 1, 2, 3], [8, 9, 10, 11]], [[4, 5, 6, 7], [12, 13, 14, 15]]][rank]
            assert batches == (expected if name == "broken" else [])
    for odd in (0, 1):
        own, other = (ranks[rank][f"generator of {odd}"] for rank in (odd, 1 - odd))
        assert own[0] == "UsageError" and "needs a generator" in own[1]
        assert other[0] == "MismatchError" and "needs a generator" in other[1]
        assert f"rank {odd} failed with UsageError" in other[1]
    assert sorted(i for r in ranks for batch in r["after"] for i in batch) == list(range(8))


def test_dispatched_loops_are_left_nested_and_resumed(tmp_path):
    def of_rank(rank):
        # The last of seven rounds has samples 24 and 25, one for each process.
        return [[i, i + 1] for i in range(2 * rank, 24, 4)] + [[24 + rank]]

    for rank, found in enumerate(run_ours("loaders/left_early.py", tmp_path)):
        batches = of_rank(rank)
        assert found["begun"] == [[batch, batches, batches[1]] for batch in batches[:3]]
        assert found["position"] == {"epoch": 0, "num_batches": 3}
        assert found["rest"] == batches[3:]
        assert found["ahead"] == batches[:2]


def test_a_dispatched_epoch_that_is_skipped_into_ends_as_the_whole_one(tmp_path):
    for found in run_ours("loaders/skipped_into.py", tmp_path):
        for (num, whole), *rests, twice in found.values():
            assert num == len(whole)
            for num_skipped, rest in enumerate(rests):
                assert rest == [num - num_skipped, whole[num_skipped:]]
            assert twice == [num - 2, whole[2:]]
