# SPDX-License-Identifier: Apache-2.0
"""Loaders that resume from a checkpoint: their position and order."""

from __future__ import annotations

import json

import numpy
import pytest
import torch
from new_run import make  # noqa: F401
from original import ROOT
from torch.utils.data import DataLoader

from accelerate.utils import DataLoaderConfiguration


def shuffled(accelerator, **kwargs):
    return accelerator.prepare(DataLoader(torch.arange(20), 2, shuffle=True, **kwargs))


def backward(accelerator, model):
    """Draws no random numbers."""
    accelerator.backward(model(torch.ones(1, 3)).sum())


WAYS = {
    "restore_loaders": {"restore_loaders": True},
    "skip_first_batches": {},
    "skip_first_batches, restore_loaders": {"restore_loaders": True},
    "continue": {},
    "continue, restore_loaders=False": {"restore_loaders": False},
}


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("seedable", [False, True])
def test_a_place_is_not_skipped_to_twice(make, seedable, num_workers):
    config = DataLoaderConfiguration(use_seedable_sampler=seedable)
    accelerator, model, _ = make(dataloader_config=config)
    loader = shuffled(accelerator, num_workers=num_workers)
    expected = []
    for epoch in range(3):
        for index, batch in enumerate(loader):
            expected.append(batch.tolist())
            backward(accelerator, model)
            if (epoch, index) == (1, 3):
                accelerator.save_state("x")

    def rest(way):
        torch.manual_seed(77)
        accelerator, *_ = make(dataloader_config=config)
        loader = shuffled(accelerator, num_workers=num_workers)
        accelerator.load_state("x", **WAYS[way])
        first = accelerator.skip_first_batches(loader, 4) if "skip" in way else loader
        given = []
        for epoch, loop in enumerate((first, loader)):
            for index, batch in enumerate(loop):
                if "continue" in way and epoch == 0 and index < 4:
                    continue
                given.append(batch.tolist())
        return given

    for way in WAYS:
        assert rest(way) == expected[14:], way


@pytest.mark.parametrize("seedable", [False, True])
@pytest.mark.parametrize("leave", ["break", "next", "exception", "evaluation"])
def test_a_loop_that_was_left_starts_anew(make, leave, seedable):
    """As the uninterrupted run does."""
    config = DataLoaderConfiguration(use_seedable_sampler=seedable)

    def begun():
        torch.manual_seed(7)
        accelerator, model, _ = make(dataloader_config=config)
        own = torch.Generator().manual_seed(5)
        loaders = shuffled(accelerator), shuffled(accelerator, generator=own)
        return accelerator, model, loaders

    accelerator, model, loaders = begun()
    for loader in loaders:
        if leave == "next":
            next(iter(loader))
        elif leave == "evaluation":
            with torch.no_grad():
                for _ in loader:
                    model(torch.ones(1, 3))
        else:
            try:
                for index, _ in enumerate(loader):
                    backward(accelerator, model)
                    if index == 2 and leave == "exception":
                        raise KeyError
                    if index == 2:
                        break
            except KeyError:
                pass
    accelerator.save_state("x")
    expected = [[batch.tolist() for batch in loader] for loader in loaders]
    assert [len(batches) for batches in expected] == [10, 10]
    for restore_loaders in (None, True, False):
        accelerator, _, loaders = begun()
        torch.manual_seed(77)
        accelerator.load_state("x", restore_loaders=restore_loaders)
        assert [[batch.tolist() for batch in loader] for loader in loaders] == expected


@pytest.mark.parametrize("own", [False, True], ids=["", "generator"])
def test_skip_first_batches_takes_up_the_order_of_a_loop_that_was_left(make, own):
    def loader_of(accelerator):
        generator = torch.Generator().manual_seed(5) if own else None
        return shuffled(accelerator, generator=generator)

    def run(stop):
        torch.manual_seed(7)
        accelerator, model, _ = make()
        loader, given = loader_of(accelerator), []
        for batch in loader:
            given.append(batch.tolist())
            backward(accelerator, model)
            if len(given) == stop:
                break
        accelerator.save_state("x")
        return given

    expected = run(None)
    assert run(4) == expected[:4]
    torch.manual_seed(77)
    accelerator, *_ = make()
    loader = loader_of(accelerator)
    accelerator.load_state("x")
    rest = [batch.tolist() for batch in accelerator.skip_first_batches(loader, 4)]
    assert rest == expected[4:]


class Drawing(torch.utils.data.Dataset):
    """Samples with random numbers of the generator that the loop also uses."""

    def __len__(self):
        return 20

    def __getitem__(self, index):
        return index + torch.rand(())


@pytest.mark.parametrize("is_used", [False, True], ids=["top", "after backward"])
@pytest.mark.parametrize("index", [0, 3, 9])
@pytest.mark.parametrize("dispatched", [False, True])
def test_a_batch_counts_once_backward_was_called(make, index, is_used, dispatched):
    config = DataLoaderConfiguration(dispatch_batches=dispatched)

    def begun():
        accelerator, model, _ = make(dataloader_config=config)
        return accelerator, model, accelerator.prepare(DataLoader(Drawing(), 2, shuffle=True))

    torch.manual_seed(7)
    accelerator, model, loader = begun()
    expected = []
    for epoch in range(2):
        for number, batch in enumerate(loader):
            torch.rand(1)  # as dropout does
            if is_used:
                backward(accelerator, model)
            if (epoch, number) == (0, index):
                accelerator.save_state("x")
            expected.append((batch.tolist(), torch.rand(1).item()))
            if not is_used:
                backward(accelerator, model)

    num_done = index + is_used
    for is_skipped in (False, True):
        torch.manual_seed(77)
        accelerator, _, loader = begun()
        accelerator.load_state("x", restore_loaders=None if is_skipped else True)
        loops = [loader] if num_done == 10 else [loader, loader]
        if is_skipped and num_done < 10:
            loops[0] = accelerator.skip_first_batches(loader, num_done)
        # The save was between the two draws of a step.
        given = []
        if is_used:
            assert torch.rand(1).item() == expected[index][1]
        for loop in loops:
            for batch in loop:
                if given or is_used:
                    torch.rand(1)
                given.append((batch.tolist(), torch.rand(1).item()))
        assert given == expected[num_done:]


def test_a_batch_counts_once_the_next_was_asked_for(make):
    accelerator, *_ = make()
    loader = accelerator.prepare(DataLoader(torch.arange(20), 2))
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    accelerator.save_state("x")
    batches.close()
    accelerator, *_ = make()
    loader = accelerator.prepare(DataLoader(torch.arange(20), 2))
    accelerator.load_state("x", restore_loaders=True)
    assert next(iter(loader)).tolist() == [4, 5]


@pytest.mark.parametrize("leaves", [False, True])
def test_a_batch_of_a_stateful_loader_counts_when_it_is_returned(make, leaves):
    config = DataLoaderConfiguration(use_stateful_dataloader=True)
    accelerator, *_ = make(dataloader_config=config)
    loader = accelerator.prepare(DataLoader(torch.arange(20), 2))
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    if leaves:
        batches.close()
    accelerator.save_state("x")
    for restore_loaders, first in ((None, [6, 7]), (True, [6, 7]), (False, [0, 1])):
        accelerator, *_ = make(dataloader_config=config)
        loader = accelerator.prepare(DataLoader(torch.arange(20), 2))
        accelerator.load_state("x", restore_loaders=restore_loaders)
        assert next(iter(loader)).tolist() == first


def test_a_loop_around_another_over_the_same_loader_keeps_its_position(make):
    accelerator, model, _ = make()
    loader = shuffled(accelerator)
    expected = []
    for index, batch in enumerate(loader):
        expected.append(batch.tolist())
        next(iter(loader))
        backward(accelerator, model)
        if index == 3:
            accelerator.save_state("x")
    accelerator, *_ = make()
    loader = shuffled(accelerator)
    accelerator.load_state("x", restore_loaders=True)
    assert [batch.tolist() for batch in loader] == expected[4:]


def test_a_loop_in_which_state_is_loaded_continues(make):
    """As in the original: epochs are counted, and each has its own order."""
    config = DataLoaderConfiguration(use_seedable_sampler=True, data_seed=3)

    def epochs(goes_back):
        accelerator, model, _ = make(dataloader_config=config)
        loader, given = shuffled(accelerator), []
        for epoch in range(3):
            given.append([])
            for index, batch in enumerate(loader):
                given[-1].append(batch.tolist())
                backward(accelerator, model)
                if goes_back and (epoch, index) == (0, 5):
                    accelerator.save_state("x")
                if goes_back and (epoch, index) == (1, 2):
                    accelerator.load_state("x")
        return given

    assert epochs(True) == epochs(False)


def test_one_line_says_where_loaders_start(make, caplog):
    accelerator, model, _ = make()
    loaders = shuffled(accelerator), shuffled(accelerator)
    for index, _ in enumerate(loaders[0]):
        backward(accelerator, model)
        if index == 3:
            accelerator.save_state("x")
    for restore_loaders, place in (
        (None, "starts epoch 0 (saved after 4 batches)"),
        (True, "resumes epoch 0 after 4 batches"),
    ):
        accelerator, *_ = make()
        loaders = shuffled(accelerator), shuffled(accelerator)
        caplog.clear()
        with caplog.at_level("INFO", logger="accelerate"):
            accelerator.load_state("x", restore_loaders=restore_loaders)
        (line,) = (line for line in caplog.messages if "[load_state]" in line)
        assert line.endswith(f"[load_state] loader {place}")
    # Empty if no loop was interrupted.
    accelerator, *_ = make()
    loader = shuffled(accelerator)
    accelerator.save_state("y")
    caplog.clear()
    with caplog.at_level("INFO", logger="accelerate"):
        accelerator.load_state("y", restore_loaders=True)
    assert len(loader) and not [line for line in caplog.messages if "[load_state]" in line]


def test_checkpoint_of_an_earlier_release_loads(make):
    """Written before a batch counted by `backward`, and before loops knew that they were left."""
    folder = ROOT / "tests" / "reference" / "checkpoint" / "from_d5ba3cd"
    expected = json.loads((folder / "python_expected.json").read_text())
    num_done, given = expected["num_done"], expected["batches"]
    for restore_loaders, num_skipped in ((True, None), (None, num_done - 10), (None, None)):
        accelerator, model, optimizer = make()
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
        scheduler, loader = accelerator.prepare(
            scheduler, DataLoader(torch.arange(20), 2, shuffle=True)
        )
        accelerator.load_state(folder / "python", restore_loaders=restore_loaders)
        assert model.weight.tolist() == expected["weight"]
        assert scheduler.get_last_lr() == expected["lr"]
        first = loader
        if num_skipped is not None:
            first = accelerator.skip_first_batches(loader, num_skipped)
        rest = [batch.tolist() for loop in (first, loader) for batch in loop]
        begin = 10 if (restore_loaders, num_skipped) == (None, None) else num_done
        assert rest == given[begin:]


@pytest.mark.parametrize("skips", [False, True], ids=["restore_loaders", "skip_first_batches"])
@pytest.mark.parametrize("generator", [None, 5])
@pytest.mark.parametrize("num_done", [10, 13, 20])
def test_persistent_workers_keep_the_order(make, num_done, generator, skips, recwarn):
    def loader_of(accelerator):
        own = {} if generator is None else {"generator": torch.Generator().manual_seed(generator)}
        return shuffled(accelerator, num_workers=1, persistent_workers=True, **own)

    accelerator, model, _ = make()
    loader = loader_of(accelerator)
    expected = []
    for _ in range(3):
        for batch in loader:
            expected.append(batch.tolist())
            backward(accelerator, model)
            if len(expected) == num_done:
                accelerator.save_state("x")
    accelerator, *_ = make()
    loader = loader_of(accelerator)
    torch.manual_seed(77)
    accelerator.load_state("x", restore_loaders=not skips)
    loops = [loader] * (3 - num_done // 10)
    if skips and num_done % 10 > 0:
        loops[0] = accelerator.skip_first_batches(loader, num_done % 10)
    rest = [batch.tolist() for loop in loops for batch in loop]
    assert rest == expected[num_done:]
    assert not [w for w in recwarn if "does not repeat the batches" in str(w.message)]


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("own", [False, True], ids=["", "generator"])
@pytest.mark.parametrize("stops", [(10, 12), (10, 20, 23), (4, 10, 13, 15)], ids=str)
def test_runs_that_are_stopped_again_and_again_keep_the_order(make, stops, own, num_workers):
    def run(stop, is_first):
        """The batches of the run up to `stop`; at the end of an epoch, the save comes after it."""
        accelerator, model, _ = make()
        generator = torch.Generator().manual_seed(5) if own else None
        loader = shuffled(accelerator, num_workers=num_workers, generator=generator)
        torch.manual_seed(7 if is_first else 77)
        if not is_first:
            accelerator.load_state("x", restore_loaders=True)
        given = []
        while True:
            for batch in loader:
                given.append(batch.tolist())
                torch.rand(1)
                backward(accelerator, model)
                if len(given) == stop and not loader.end_of_dataloader:
                    accelerator.save_state("x")
                    return given
            if len(given) == stop:
                accelerator.save_state("x")
                return given

    expected = run(30, True)
    given = []
    for begin, end in zip((0, *stops), (*stops, 30)):
        given += run(end - begin, begin == 0)
    assert given == expected


class Lazy(torch.utils.data.Sampler):
    """Draws each index when it is requested."""

    def __len__(self):
        return 20

    def __iter__(self):
        left = list(range(20))
        while left:
            yield left.pop(int(torch.randint(len(left), ())))


class Counting(torch.utils.data.Sampler):
    """Each epoch has its own order."""

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
@pytest.mark.parametrize("restores", [True, None])
def test_a_sampler_that_cannot_be_replayed_is_named(make, sampler, num_done, restores, recwarn):
    def loop(run, num_epochs, save_at=0):
        accelerator, model, _ = run
        loader = accelerator.prepare(DataLoader(torch.arange(20), 2, sampler=sampler()))
        if not save_at:
            accelerator.load_state("x", restore_loaders=restores)
        given = []
        for _ in range(num_epochs):
            for batch in loader:
                given.append(batch.tolist())
                torch.rand(1)  # as dropout does
                backward(accelerator, model)
                if len(given) == save_at:
                    accelerator.save_state("x")
        return given

    expected = loop(make(), 3, save_at=num_done)
    rest = loop(make(), 3 - num_done // 10)
    told = [str(w.message) for w in recwarn if "does not repeat the batches" in str(w.message)]
    if sampler is Stateful or (sampler is Lazy and num_done == 20):
        assert not told
        assert rest == expected[num_done if restores else num_done // 10 * 10 :]
    elif num_done == 13:
        assert len(told) == 1 and sampler.__name__ in told[0]


def test_a_loader_with_a_generator_resumes(make):
    def loader_of(accelerator, seed):
        return shuffled(accelerator, generator=torch.Generator().manual_seed(seed))

    accelerator, model, _ = make()
    loader = loader_of(accelerator, 1)
    expected = []
    for epoch in range(3):
        for index, batch in enumerate(loader):
            expected.append(batch.tolist())
            backward(accelerator, model)
            if (epoch, index) == (1, 3):
                accelerator.save_state("middle")
        if epoch == 1:
            accelerator.save_state("between")
    for name, begin in (("middle", 14), ("between", 20)):
        accelerator, *_ = make()
        loader = loader_of(accelerator, 55)
        accelerator.load_state(name, restore_loaders=True)
        batches = [batch.tolist() for _ in range(2) for batch in loader]
        assert batches[: 30 - begin] == expected[begin:]
