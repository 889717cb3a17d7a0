# SPDX-License-Identifier: Apache-2.0
"""Loaders of two connected processes: batches, shuffles and draws from the generators equal those
of Hugging Face Accelerate under torchrun; errors reach every process."""

from __future__ import annotations

import pytest
import torch
from ranks import run_original, run_ours

LOADERS = '''
import torch
from torch.utils.data import DataLoader, IterableDataset, WeightedRandomSampler
from accelerate import Accelerator
from accelerate.data_loader import prepare_data_loader
from accelerate.utils import set_seed

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
        torch.device("cpu"), put_on_device=True, rng_types=["generator"], **options
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
    weighted = WeightedRandomSampler(torch.arange(1., 24.), 21)
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
'''

FACTS = """
import torch
from torch.utils.data import DataLoader, IterableDataset
from accelerate import Accelerator
from accelerate.state import GradientState
from accelerate.utils import DataLoaderConfiguration

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
        real += batch.tolist()[:facts.num_real]
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
"""

FAULT = """
import torch
from torch.utils.data import DataLoader, IterableDataset
from accelerate import Accelerator
from accelerate.state import GradientState

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
            raise OSError("no such\\nfile")
    def __iter__(self):
        return iter(range(4))

accelerator = Accelerator(cpu=True)
found = {}
for name, data, size in (
    ("broken", Broken(), 4), ("ragged", Ragged(), None), ("texts", Texts(), 2),
    ("unopened", Unopened(), 2)
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
"""


LEFT_EARLY = """
import os, time
import torch
from torch.utils.data import DataLoader, IterableDataset
from accelerate import Accelerator

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
"""


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
    return run_ours(FACTS, tmp_path_factory.mktemp("facts"))


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
    ranks = run_ours(FAULT, tmp_path)
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


def test_dispatched_loops_are_left_nested_and_gone_on_with(tmp_path):
    def of_rank(rank):
        # The last of seven rounds has samples 24 and 25, one for each process.
        return [[i, i + 1] for i in range(2 * rank, 24, 4)] + [[24 + rank]]

    for rank, found in enumerate(run_ours(LEFT_EARLY, tmp_path)):
        batches = of_rank(rank)
        assert found["begun"] == [[batch, batches, batches[1]] for batch in batches[:3]]
        assert found["position"] == {"epoch": 0, "num_batches": 3}
        assert found["rest"] == batches[3:]
        assert found["ahead"] == batches[:2]


def test_a_dispatched_epoch_that_is_skipped_into_ends_as_the_whole_one(tmp_path):
    script = """
    import torch
    from accelerate import Accelerator, DataLoaderConfiguration, skip_first_batches
    found = {}
    for splits in (False, True):
        config = DataLoaderConfiguration(dispatch_batches=True, split_batches=splits)
        accelerator = Accelerator(cpu=True, dataloader_config=config)
        for size in (21, 23):
            loader = torch.utils.data.DataLoader(torch.arange(size), batch_size=4)
            loader = accelerator.prepare(loader)
            rests = [skip_first_batches(loader, num) for num in range(len(loader) + 1)]
            rests.append(skip_first_batches(skip_first_batches(loader, 1), 1))
            found[f"{splits} {size}"] = [
                [len(rest), [batch.tolist() for batch in rest]] for rest in (loader, *rests)
            ]
    answer(found)
    """
    for found in run_ours(script, tmp_path):
        for (num, whole), *rests, twice in found.values():
            assert num == len(whole)
            for num_skipped, rest in enumerate(rests):
                assert rest == [num - num_skipped, whole[num_skipped:]]
            assert twice == [num - 2, whole[2:]]
