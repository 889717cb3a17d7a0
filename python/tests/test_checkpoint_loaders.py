# SPDX-License-Identifier: Apache-2.0
"""Loops over loaders that go on from a checkpoint: where they stand, and in which order."""

from __future__ import annotations

import numpy
import pytest
import torch
from new_run import make  # noqa: F401
from torch.utils.data import DataLoader

from accelerate.utils import DataLoaderConfiguration


def shuffled(accelerator, **kwargs):
    return accelerator.prepare(DataLoader(torch.arange(20), 2, shuffle=True, **kwargs))


@pytest.mark.parametrize("seedable", [False, True])
def test_a_place_is_not_skipped_to_twice(make, seedable):
    config = DataLoaderConfiguration(use_seedable_sampler=seedable)
    accelerator, *_ = make(dataloader_config=config)
    loader = shuffled(accelerator)
    expected = []
    for epoch in range(3):
        for index, batch in enumerate(loader):
            expected.append(batch.tolist())
            if (epoch, index) == (1, 3):
                accelerator.save_state("x")

    def rest(way):
        torch.manual_seed(77)
        accelerator, *_ = make(dataloader_config=config)
        loader = shuffled(accelerator)
        accelerator.load_state("x", restore_loaders=way != "from the beginning")
        first = loader if way != "skip_first_batches" else accelerator.skip_first_batches(loader, 4)
        return [batch.tolist() for loop in (first, loader) for batch in loop]

    assert rest("by itself") == expected[14:]
    assert rest("skip_first_batches") == expected[14:]
    assert len(rest("from the beginning")) == 20


@pytest.mark.parametrize("generator", [None, 5])
@pytest.mark.parametrize("num_done", [10, 13, 20])
def test_persistent_workers_keep_the_order(make, num_done, generator, recwarn):
    def loader_of(accelerator):
        own = {} if generator is None else {"generator": torch.Generator().manual_seed(generator)}
        return shuffled(accelerator, num_workers=1, persistent_workers=True, **own)

    accelerator, *_ = make()
    loader = loader_of(accelerator)
    expected = []
    for _ in range(3):
        for batch in loader:
            expected.append(batch.tolist())
            if len(expected) == num_done:
                accelerator.save_state("x")
    accelerator, *_ = make()
    loader = loader_of(accelerator)
    torch.manual_seed(77)
    accelerator.load_state("x")
    rest = [batch.tolist() for _ in range(3 - num_done // 10) for batch in loader]
    assert rest == expected[num_done:]
    assert not [w for w in recwarn if "gives other batches" in str(w.message)]


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("own", [False, True], ids=["", "generator"])
@pytest.mark.parametrize("stops", [(10, 12), (10, 20, 23), (4, 10, 13, 15)], ids=str)
def test_runs_that_are_stopped_again_and_again_keep_the_order(make, stops, own, num_workers):
    def run(stop, is_first):
        """What the part of the run up to `stop` is given; the end of an epoch is saved behind."""
        accelerator, *_ = make()
        generator = torch.Generator().manual_seed(5) if own else None
        loader = shuffled(accelerator, num_workers=num_workers, generator=generator)
        torch.manual_seed(7 if is_first else 77)
        if not is_first:
            accelerator.load_state("x")
        given = []
        while True:
            for batch in loader:
                given.append(batch.tolist())
                torch.rand(1)
                if len(given) == stop and not loader.end_of_dataloader:
                    break
            if len(given) == stop:
                accelerator.save_state("x")
                return given

    expected = run(30, True)
    given = []
    for begin, end in zip((0, *stops), (*stops, 30)):
        given += run(end - begin, begin == 0)
    assert given == expected


class Lazy(torch.utils.data.Sampler):
    """Draws each index when it is asked for."""

    def __len__(self):
        return 20

    def __iter__(self):
        left = list(range(20))
        while left:
            yield left.pop(int(torch.randint(len(left), ())))


class Counting(torch.utils.data.Sampler):
    """Each epoch has an order of its own."""

    epoch = 0

    def __len__(self):
        return 20

    def __iter__(self):
        self.epoch += 1
        return iter(numpy.random.RandomState(self.epoch).permutation(20).tolist())


class Stateful(Counting):
    def state_dict(self):
        return {"epoch": self.epoch}

    def load_state_dict(self, state):
        self.epoch = state["epoch"]


@pytest.mark.parametrize("sampler", [Lazy, Counting, Stateful])
@pytest.mark.parametrize("num_done", [13, 20])
def test_a_sampler_that_cannot_be_replayed_is_named(make, sampler, num_done, recwarn):
    def loop(accelerator, num_epochs, save_at=0):
        loader = accelerator.prepare(DataLoader(torch.arange(20), 2, sampler=sampler()))
        if not save_at:
            accelerator.load_state("x")
        given = []
        for _ in range(num_epochs):
            for batch in loader:
                given.append(batch.tolist())
                torch.rand(1)  # as dropout does
                if len(given) == save_at:
                    accelerator.save_state("x")
        return given

    expected = loop(make()[0], 3, save_at=num_done)
    rest = loop(make()[0], 3 - num_done // 10)
    told = [str(w.message) for w in recwarn if "gives other batches" in str(w.message)]
    if sampler is Stateful or (sampler is Lazy and num_done == 20):
        assert rest == expected[num_done:] and not told
    elif num_done == 13:
        assert len(told) == 1 and sampler.__name__ in told[0]


def test_a_loader_with_a_generator_goes_on(make):
    def loader_of(accelerator, seed):
        return shuffled(accelerator, generator=torch.Generator().manual_seed(seed))

    accelerator, *_ = make()
    loader = loader_of(accelerator, 1)
    expected = []
    for epoch in range(3):
        for index, batch in enumerate(loader):
            expected.append(batch.tolist())
            if (epoch, index) == (1, 3):
                accelerator.save_state("middle")
        if epoch == 1:
            accelerator.save_state("between")
    for name, begin in (("middle", 14), ("between", 20)):
        accelerator, *_ = make()
        loader = loader_of(accelerator, 55)
        accelerator.load_state(name)
        batches = [batch.tolist() for _ in range(2) for batch in loader]
        assert batches[: 30 - begin] == expected[begin:]
