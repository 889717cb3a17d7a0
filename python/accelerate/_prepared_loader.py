# SPDX-License-Identifier: Apache-2.0
"""Loops over prepared loaders: what every loader of this package does, and `DataLoaderShard`, with
which each process reads its own batches. See `docs/guide_python.md`."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain, count, islice
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler

from accelerate import _debug, _generators
from accelerate._sharding import (
    BatchCounts,
    BatchSamplerShard,
    CountingCollate,
    DealtBatch,
    IterableDatasetShard,
    SeedableRandomSampler,
    are_of_one_size,
)
from accelerate.errors import UsageError
from accelerate.state import GradientState, PartialState


def get_sampler(dataloader: DataLoader) -> Any:
    """The sampler underneath the batches of a loader; None where they come without one."""
    sampler = dataloader.sampler
    batches = sampler if isinstance(sampler, BatchSampler) else dataloader.batch_sampler
    return getattr(batches, "sampler", None)


class RecordedIndices:
    """Hands the indices of a loader's sampler on to torch and remembers them, so that the loop
    knows what the batch of its turn consists of, however many are read ahead by workers. The first
    `num_skipped` of the epochs that begin are left out; all of them while they are `held_back`."""

    def __init__(self, indices: Iterable):
        self.indices = indices
        self.num_skipped = 0
        self.held_back = False
        self.epoch = _EpochIndices(iter(()))

    def __len__(self) -> int:
        return len(self.indices)

    def __iter__(self) -> Iterator:
        # A new queue for each epoch: an older loop goes on with its own.
        indices = iter(()) if self.held_back else iter(self.indices)
        self.epoch = _EpochIndices(indices, self.num_skipped)
        return self.epoch


class _EpochIndices(Iterator):
    """Those of one epoch behind the first `num_skipped`. `taken` are the batches that torch was
    given and no loop was yet, `digests` what tells them and all before them from others."""

    def __init__(self, indices: Iterator, num_skipped: int = 0):
        self._indices = indices
        self._num_skipped = num_skipped
        self._digest: int | None = 0
        self.taken: deque = deque()
        self.digests: deque = deque()

    def draw(self) -> int | None:
        """Samplers draw when the first index is asked for, which is now. Gives the digest of what
        is skipped."""
        for batch in islice(self._indices, self._num_skipped):
            self._add(batch)
        self._num_skipped = 0
        digest = self._digest
        self._indices = chain(list(islice(self._indices, 1)), self._indices)
        return digest

    def _add(self, batch: Any) -> None:
        # Numbers have the same hash in every process, others may not.
        if self._digest is not None:
            indices = batch if isinstance(batch, list) else (batch,)
            is_known = not indices or isinstance(indices[0], int)
            self._digest = hash((self._digest, *indices)) if is_known else None

    def __next__(self) -> Any:
        if self._num_skipped:
            self.draw()
        batch = next(self._indices)
        self._add(batch)
        self.taken.append(batch)
        self.digests.append(self._digest)
        return batch[:] if type(batch) is DealtBatch else batch


class _TaskLog(dict):
    """torch's list of what its workers have to do; remembers which task was handed on last."""

    def pop(self, task: int) -> Any:
        self.last = task
        return super().pop(task)


def indices_in_turn(iterator: Any, taken: deque, in_order: bool) -> Callable[[], Any]:
    """What gives the indices of the batch that `iterator` has given last."""
    if in_order or not hasattr(iterator, "_task_info"):
        return taken.popleft
    # Workers may overtake each other: tasks are numbered in the order of `taken`.
    tasks = iterator._task_info = _TaskLog(iterator._task_info)
    numbers = count()
    waiting: dict[int, Any] = {}

    def indices() -> Any:
        while taken:
            waiting[next(numbers)] = taken.popleft()
        return waiting.pop(tasks.last)

    return indices


def count_samples(indices: Any) -> BatchCounts:
    if type(indices) is DealtBatch:
        return BatchCounts(len(indices), indices.num_real, indices.num_of_round)
    try:
        num_samples = len(indices)
    except TypeError:  # a single index: the loader does not batch
        num_samples = 1
    return BatchCounts(num_samples, num_samples, None)


def is_plain_cpu(batch: Any) -> bool:
    """Whether it is a plain container of tensors on the CPU, where nothing has to move; a quick
    look, so no may be wrong."""
    kind = type(batch)
    items = batch.values() if kind is dict else batch if kind in (list, tuple) else (batch,)
    for item in items:
        if type(item) is not torch.Tensor or not item.is_cpu:
            return False
    return True


class DataLoaderStateMixin:
    """What a loader tells while a loop runs over it: `end_of_dataloader` (the batch of this turn
    is the last), `remainder` (real samples of all processes in the last turn; -1 before it, and
    where unknown)."""

    end_of_dataloader = False
    remainder = -1

    @property
    def gradient_state(self) -> GradientState:
        return GradientState()

    def reset(self) -> None:
        self.end_of_dataloader = False
        self.remainder = -1

    def begin(self) -> tuple[bool, int]:
        """A loop begins. Gives what was told before, for `end`."""
        told = self.end_of_dataloader, self.remainder
        self.reset()
        self.gradient_state._add_dataloader(self)
        return told

    def end(self, told: tuple[bool, int] | None = None) -> None:
        """The loop is over, or was left; a loop over the same loader around it goes on."""
        self.gradient_state._remove_dataloader(self)
        running = self.gradient_state.dataloader_references
        if told is not None and any(loader is self for loader in running):
            self.end_of_dataloader, self.remainder = told


class Place:
    """In an epoch, behind its first `num_batches`; `is_at_end` where that was the last.

    `begin`: what generators were when the loop began, those of `_generators.KINDS` and the
    loader's own by name. `ahead`: what they were before the batch was read that comes next, which
    is read before the one in hand is given out. `num_left_out`: units (`_turn`) in front of the
    first batch, less than a turn, that other processes than these were given."""

    def __init__(
        self,
        epoch: int,
        num_batches: int,
        begin: dict[str, Any] | None = None,
        ahead: dict[str, Any] | None = None,
        num_left_out: int = 0,
    ):
        self.epoch = epoch
        self.num_batches = num_batches
        self.is_at_end = False
        self.is_restored = False
        # Whether the loop found persistent workers that an earlier one had made.
        self.has_workers = False
        # What a sampler that tells its state was when the loop began.
        self.sampler_state: Any = None
        # Of the batches so far; None where nothing is known of them.
        self.digest: int | None = None
        self.begin = begin or {}
        self.ahead = ahead or {}
        self.num_left_out = num_left_out


class _Loops:
    """What a loader and those that `skip_first_batches` makes of it have in common: how many loops
    came to their end, and the place of the one that was begun last, until it does."""

    def __init__(self, iteration: int):
        self.iteration = iteration
        self.latest: Place | None = None


class ReadAhead:
    """Notes in a place what generators were before a batch is read. Those that reading does not
    draw from, as the first batch shows, are left out: they cost more than many a batch."""

    def __init__(self, place: Place, is_here: bool):
        self._place = place
        # Workers have generators of their own.
        self._kinds: Iterable[str] | None = None if is_here else ()

    def read(self, batches: Iterator) -> Any:
        """The next batch, or None."""
        if self._kinds is not None:
            self._place.ahead = _generators.take(self._kinds)
            return next(batches, None)
        self._place.ahead = before = _generators.take()
        batch = next(batches, None)
        self._kinds = _generators.differ(before, _generators.take(before))
        return batch


class DataLoaderAdapter(DataLoader):
    """Base of the loaders that `prepare` makes: torch's loader with the settings of the user's.

    `skip_batches` are read and left out. `iteration` counts finished loops and is the epoch that
    samplers are told.
    """

    # What tells the samples of each batch: where torch takes the indices, or where it collates.
    _recorded: RecordedIndices | None = None
    _is_counted = False

    def __init__(
        self,
        dataset: Any,
        use_stateful_dataloader: bool = False,
        batch_sampler: Any = None,
        skip_batches: int = 0,
        _drop_last: bool = False,
        _non_blocking: bool = False,
        torch_device_mesh: Any = None,
        iteration: int = 0,
        **kwargs: Any,
    ):
        refuse_device_mesh(torch_device_mesh)
        super().__init__(dataset, batch_sampler=batch_sampler, **kwargs)
        # Only remembered: all loaders here have `state_dict`.
        self.use_stateful_dataloader = use_stateful_dataloader
        self.skip_batches = skip_batches
        self._drop_last = _drop_last
        self._non_blocking = _non_blocking
        self._loops = _Loops(iteration)
        # Batches of an epoch in front of the first that a loop gives.
        self._num_before = skip_batches
        # Where the next loop begins, if it is of that epoch; and what is this process's own of it.
        self._restored: Place | None = None
        self._restored_own: dict[str, Any] | None = None

    @property
    def base_dataloader(self) -> DataLoader:
        """torch's loader of the same batches, which are those of this process where it reads for
        itself."""
        from accelerate.data_loader import kept_settings

        return DataLoader(**kept_settings(self))

    def state_dict(self) -> dict[str, Any]:
        """Where the loop stands, and the generators that it depends on: a loop over a loader of the
        same data that has loaded it goes on from here, in as many processes."""
        return {"shared": self._state(), "own": self._own_state()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """The next loop goes on where the state was taken."""
        self._load_state(state_dict["shared"])
        self._load_own_state(state_dict["own"])

    @property
    def iteration(self) -> int:
        return self._loops.iteration

    @iteration.setter
    def iteration(self, iteration: int) -> None:
        self._loops.iteration = iteration

    def _count_batches(self) -> None:
        """What the constructor of a loader that uses `_counted` calls."""
        if isinstance(self.dataset, IterableDataset):
            self._is_counted = self._auto_collation
        else:
            self._recorded = RecordedIndices(super()._index_sampler)

    @property
    def _index_sampler(self) -> Any:
        return super()._index_sampler if self._recorded is None else self._recorded

    def _get_iterator(self) -> Iterator:
        if not self._is_counted:
            return super()._get_iterator()
        # torch's iterator takes the function when it is made; the loader keeps the user's.
        collate_fn = self.collate_fn
        self.collate_fn = CountingCollate(collate_fn, self.dataset)
        try:
            return super()._get_iterator()
        finally:
            self.collate_fn = collate_fn

    def _counted(self, iterator: Iterator) -> Iterator[tuple[Any, BatchCounts]]:
        """The batches of one of torch's iterators over this loader that has just been made."""
        if self._is_counted:
            return iterator
        if self._recorded is None:
            # The data set makes its own batches, of which nobody knows the samples.
            return ((batch, BatchCounts(1, 1, -1)) for batch in iterator)
        indices = indices_in_turn(iterator, self._recorded.epoch.taken, self.in_order)
        return ((batch, count_samples(indices())) for batch in iterator)

    @property
    def _full_size(self) -> int:
        """Samples of each batch of this process, but for a short last one; 0 where they vary."""
        size = getattr(self._batches, "batch_size", None)
        if not isinstance(size, int):
            return 0
        is_split = getattr(self._batches, "split_batches", False)
        return size // self._batches.num_processes if is_split else size

    @property
    def _batches(self) -> Any:
        return self.sampler if isinstance(self.sampler, BatchSampler) else self.batch_sampler

    def get_sampler(self) -> Any:
        return get_sampler(self)

    def set_sampler(self, sampler: Any) -> None:
        """Replaces the sampler underneath the batches."""
        self._batches.sampler = sampler

    def set_epoch(self, epoch: int) -> None:
        """Tells the number of the epoch to every sampler underneath, and to the data set."""
        if epoch != self.iteration:
            self._loops.latest = self._restored = None
        self.iteration = epoch
        level = self._batches
        while level is not None:
            # By class, as a sampler that skips passes attributes of the inner one on.
            if hasattr(type(level), "set_epoch"):
                level.set_epoch(epoch)
            inner = getattr(level, "batch_sampler", None)
            sampler = None if inner is not None else getattr(level, "sampler", None)
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(epoch)
            level = inner
        if hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(epoch)

    # --- where a loop stands -----------------------------------------------------------------

    def _place(self) -> Place:
        """The loop begun last, as long as it is not at its end, or the one to come."""
        place = self._loops.latest or self._restored
        if place is not None and not place.is_at_end:
            return place
        epoch = self.iteration if place is None else place.epoch + 1
        place = Place(epoch, 0, self._states_of_own())
        self._note_begin(place)
        return place

    def _note_begin(self, place: Place) -> None:
        place.has_workers = self._iterator is not None
        sampler = self._sampler_with_state
        place.sampler_state = None if sampler is None else copy.deepcopy(sampler.state_dict())

    @property
    def _sampler_with_state(self) -> Any:
        """The sampler of batches or of indices that tells its state, where one does."""
        level = self._batches
        while level is not None:
            if hasattr(level, "state_dict") and hasattr(level, "load_state_dict"):
                return level
            # Without asking whether it is true: samplers may have no length.
            inner = getattr(level, "batch_sampler", None)
            level = getattr(level, "sampler", None) if inner is None else inner
        return None

    def _position(self) -> dict[str, int]:
        """`epoch`, `num_batches` of it that this process was given, and the `seed` of a sampler of
        ours."""
        place = self._place()
        position = {"epoch": place.epoch, "num_batches": place.num_batches}
        sampler = self.get_sampler()
        if isinstance(sampler, SeedableRandomSampler):
            position["seed"] = sampler.initial_seed
        return position

    def _restore_position(self, position: dict[str, int], num_left_out: int = 0) -> None:
        """The next loop goes on where a loader of the same data, in as many processes, stood."""
        sampler = self.get_sampler()
        is_seedable = isinstance(sampler, SeedableRandomSampler)
        if is_seedable != ("seed" in position):
            raise UsageError(
                f"[DataLoader] got the position {position} for a loader that shuffles "
                f"{'by a seed' if is_seedable else 'without a seed of its own'}, expected one of "
                "the same kind; prepare it with the same use_seedable_sampler"
            )
        if is_seedable:
            sampler.initial_seed = position["seed"]
        self.set_epoch(position["epoch"])
        self._loops.latest = None
        self._restored = Place(
            position["epoch"], position["num_batches"], num_left_out=num_left_out
        )

    def _state(self) -> dict[str, Any]:
        """What all processes go on from, under C++'s names but for `begin`."""
        place = self._place()
        position = self._position()
        unit, num_per_turn = self._turn
        sampler = self.get_sampler()
        state = {
            "epoch": place.epoch,
            "num_done": place.num_left_out + place.num_batches * num_per_turn,
            "unit": unit,
            "shuffle": isinstance(sampler, RandomSampler),
            "num_samples": len(self.dataset) if hasattr(self.dataset, "__len__") else -1,
            "world_size": PartialState().num_processes,
            "num_workers": self.num_workers,
            "batch_size": getattr(self._batches, "batch_size", None) or 0,
            "begin": {"generators": place.begin, "has_workers": place.has_workers},
        }
        if "seed" in position:
            # Bits of a number without a sign.
            state["seed"] = (position["seed"] + 2**63) % 2**64 - 2**63
        return state

    @staticmethod
    def _split_state(state: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        shared = dict(state)
        begin = shared.pop("begin")
        return shared, begin

    @staticmethod
    def _join_state(shared: dict[str, Any], begin: dict[str, Any] | None) -> dict[str, Any]:
        return {**shared, "begin": begin or {"generators": {}, "has_workers": False}}

    def _load_state(self, state: dict[str, Any]) -> None:
        unit, num_per_turn = self._turn
        if state["unit"] != unit:
            raise UsageError(
                f"[load_state] got a place in an epoch in {state['unit']}, expected {unit}, which "
                "this loader counts; prepare one over the same data"
            )
        # Batches are dealt out over the processes, so the place is one of all of them.
        num_batches, num_left = divmod(state["num_done"], num_per_turn)
        shard = self._shard_of_batches
        if num_left > 0 and shard is None:
            _debug.warn(
                f"[load_state] {state['num_done']} {unit} of the epoch were given to "
                f"{state['world_size']} processes, which these cannot share evenly: the last "
                f"{num_left} come again",
                stacklevel=2,
            )
            num_left = 0
        position = {"epoch": state["epoch"], "num_batches": num_batches}
        # C++ has a seed whether it shuffles or not.
        if state["shuffle"] and "seed" in state:
            position["seed"] = state["seed"]
        self._restore_position(position, num_left)
        self._restored.begin = state["begin"]["generators"]
        self._restored.has_workers = state["begin"]["has_workers"]

    @property
    def _turn(self) -> tuple[str, int]:
        """The unit of places in an epoch, and how many all processes are given in a turn."""
        batches = self._batches
        if are_of_one_size(batches) and not isinstance(self.dataset, IterableDataset):
            return "samples", batches.batch_size * self._num_per_turn
        return "batches", self._num_per_turn

    @property
    def _shard_of_batches(self) -> BatchSamplerShard | None:
        """What deals batches out, and can begin in the middle of a turn."""
        level = self._batches
        while level is not None and not isinstance(level, BatchSamplerShard):
            level = getattr(level, "batch_sampler", None)
        return level

    def _own_state(self) -> dict[str, Any]:
        """What this process alone goes on from: generators may differ between processes."""
        place = self._place()
        return {
            **self._position(),
            "begin": place.begin,
            "ahead": place.ahead,
            "sampler": place.sampler_state,
            "digest": place.digest,
        }

    def _load_own_state(self, state: dict[str, Any]) -> None:
        self._restored_own = state

    @property
    def _num_per_turn(self) -> int:
        """Batches of the user's loader that all processes together are given in a turn."""
        dealt = self.dataset if isinstance(self.dataset, IterableDatasetShard) else self._batches
        is_split = getattr(dealt, "split_batches", False)
        return 1 if is_split else getattr(dealt, "num_processes", 1)

    def _own_generators(self) -> dict[str, torch.Generator]:
        """Those that decide on the order and on what workers draw."""
        named = {
            "loader": self.generator,
            "sampler": getattr(self.get_sampler(), "generator", None),
            "shared": getattr(self, "synchronized_generator", None),
        }
        return {name: own for name, own in named.items() if isinstance(own, torch.Generator)}

    def _states_of_own(self) -> dict[str, Any]:
        return {name: own.get_state() for name, own in self._own_generators().items()}

    def _share_position(self, loader: DataLoaderAdapter, num_skipped: int) -> None:
        """This loader begins `num_skipped` batches behind the first of `loader`. It takes the place
        of where that would have gone on, which is not skipped to a second time."""
        self._loops = loader._loops
        self._num_before = loader._num_before + num_skipped
        restored = loader._take_restored()
        if restored is not None:
            is_there = restored.num_batches == self._num_before
            ahead = restored.ahead if is_there else None
            self._restored = Place(
                restored.epoch, self._num_before, restored.begin, ahead, restored.num_left_out
            )
            self._restored.has_workers = restored.has_workers

    def _take_restored(self) -> Place | None:
        """Where the loop that begins now is to go on; once."""
        place, self._restored = self._restored, None
        own, self._restored_own = self._restored_own, None
        if place is None or place.epoch != self.iteration:
            return None
        if own and (own["epoch"], own["num_batches"]) == (place.epoch, place.num_batches):
            # Where all processes drew from it, they drew from process 0's.
            place.begin = {**own["begin"], **self._of_order(place.begin)}
            place.ahead = own["ahead"]
            place.sampler_state = own["sampler"]
            place.digest = own["digest"]
        return place

    @staticmethod
    def _of_order(begin: dict[str, Any]) -> dict[str, Any]:
        return {name: begin[name] for name in ("sampler", "shared") if name in begin}

    def _begin_loop(self) -> tuple[Place, int]:
        """The place of a new loop, and how many batches it must leave out to come there."""
        num_batches = self._num_before
        place = self._take_restored()
        if place is None:
            begin = {**_generators.take(), **self._states_of_own()}
            place = Place(self.iteration, num_batches, begin)
            self._note_begin(place)
        else:
            sampler = self._sampler_with_state
            if sampler is not None and place.sampler_state is not None:
                sampler.load_state_dict(place.sampler_state)
            if place.has_workers and self._iterator is None:
                self._make_workers()
            place.num_batches = max(num_batches, place.num_batches)
            place.is_restored = True
        if (shard := self._shard_of_batches) is not None:
            shard.num_left_out = place.num_left_out
        self._loops.latest = place
        return place, place.num_batches - num_batches

    def _make_workers(self) -> None:
        """The persistent workers that a run had when it was saved. Making them draws a seed; the
        loop that goes on has found them, and must not see it drawn."""
        own = self._states_of_own()
        if self._recorded is not None:
            self._recorded.held_back = True
        try:
            with _generators.lent(_generators.take()):
                self._iterator = self._get_iterator()
        finally:
            if self._recorded is not None:
                self._recorded.held_back = False
            for name, generator in self._own_generators().items():
                generator.set_state(own[name])

    def _check_replay(self, place: Place, digest: int | None) -> None:
        """Whether the sampler has given the same again for the part of the epoch that was done."""
        if self._num_before == 0 and place.is_restored and place.digest not in (None, digest):
            _debug.warn(
                f"[load_state] {type(self.get_sampler()).__name__} gives other batches than before "
                "for the part of the epoch that was done, so that samples come twice or never: it "
                "draws while the loop runs, or keeps a state; let it draw when the epoch begins, or "
                "give it state_dict and load_state_dict",
                stacklevel=4,
            )

    @contextmanager
    def _as_begun(self, place: Place) -> Iterator[None]:
        """Inside of the block the order is drawn; in a loop that goes on, by the generators that it
        was drawn by when the loop began. Those of the loader's own go on from there."""
        if not place.is_restored:
            yield
            return
        sampler = self.get_sampler()
        own = getattr(sampler, "generator", None)
        if "sampler" in place.begin and own is None and hasattr(sampler, "generator"):
            # Drawn by several processes, which need one that they agree on.
            sampler.generator = own = torch.Generator()
        elif "sampler" not in place.begin and own is not None and "torch" in place.begin:
            # Drawn by one process, whose sampler had none.
            sampler.generator = None
        for name, generator in self._own_generators().items():
            if name in place.begin:
                generator.set_state(place.begin[name])
        kinds = {kind: place.begin[kind] for kind in _generators.KINDS if kind in place.begin}
        try:
            with _generators.lent(kinds):
                yield
        finally:
            if own is not None:
                sampler.generator = own

    def _end_loop(self, place: Place) -> None:
        if self._restored is None:  # Else the next loop goes on from there.
            self.iteration += 1
        if self._loops.latest is place:
            self._loops.latest = None

    @property
    def total_dataset_length(self) -> int:
        """Samples of the whole data set."""
        length = getattr(self.dataset, "total_length", None)
        return len(self.dataset) if length is None else length


class DataLoaderShard(DataLoaderAdapter, DataLoaderStateMixin):
    """A loader that gives this process its batches, on its device.

    `rng_types` and `synchronized_generator`: generators that take process 0's state when a loop
    begins. Everything else is torch's `DataLoader`.
    """

    _is_accelerate_prepared = True

    def __init__(
        self,
        dataset: Any,
        device: torch.device | None = None,
        rng_types: list | None = None,
        synchronized_generator: torch.Generator | None = None,
        **kwargs: Any,
    ):
        super().__init__(dataset, **kwargs)
        self.device = device
        self.rng_types = rng_types
        self.synchronized_generator = synchronized_generator
        self._num_loops = 0
        self._count_batches()

    def __iter__(self) -> Iterator:
        if self.rng_types is not None:
            from accelerate.utils.random import synchronize_rng_states

            synchronize_rng_states(self.rng_types, self.synchronized_generator)
        told = self.begin()
        self._num_loops += 1
        feed = self.gradient_state.step_state.open_feed(self._full_size)
        try:
            self.set_epoch(self.iteration)
            position, num_passed = self._begin_loop()
            with self._as_begun(position):
                if self._recorded is not None:
                    self._recorded.num_skipped = num_passed
                # Persistent workers serve one loop; another at the same time gets its own.
                iterator = self._counted(
                    super().__iter__() if self._num_loops == 1 else self._get_iterator()
                )
                epoch = None if self._recorded is None else self._recorded.epoch
                if epoch is not None:
                    self._check_replay(position, epoch.draw())
                num_to_read = self.skip_batches + (num_passed if self._recorded is None else 0)
                for _ in islice(iterator, num_to_read):
                    pass
            place = self._placer()
            ahead = ReadAhead(position, is_here=self.num_workers == 0)
            with _generators.lent(position.ahead):
                upcoming = ahead.read(iterator)
            while upcoming is not None:
                batch, counts = upcoming
                batch = place(batch)
                # One batch ahead: the last must be known as such when it is handed out.
                upcoming = ahead.read(iterator)
                is_last = upcoming is None
                self.reset()
                if is_last:
                    self._end_with(counts)
                feed.hand_out(is_last, counts.num_samples, counts.num_real)
                position.num_batches += 1
                position.is_at_end = is_last
                position.digest = None if epoch is None else epoch.digests.popleft()
                yield batch
            self._end_loop(position)
        except GeneratorExit:
            feed.leave()
            raise
        finally:
            # Not left to the frame, which the traceback of an exception keeps alive.
            del feed
            self._num_loops -= 1
            self.end(told)

    def _end_with(self, counts: BatchCounts) -> None:
        self.end_of_dataloader = True
        if counts.num_of_round is not None:
            self.remainder = counts.num_of_round
        elif PartialState().num_processes == 1:
            self.remainder = counts.num_real

    def _placer(self) -> Callable[[Any], Any]:
        """What puts a batch on the device of this loader."""
        device, non_blocking = self.device, self._non_blocking
        if device is None:
            return lambda batch: batch
        from accelerate.utils.operations import send_to_device

        if torch.device(device).type != "cpu":
            return lambda batch: send_to_device(batch, device, non_blocking=non_blocking)
        return lambda batch: batch if is_plain_cpu(batch) else send_to_device(batch, device)

    def __len__(self) -> int:
        return max(0, super().__len__() - self.skip_batches)

    @property
    def total_batch_size(self) -> int:
        """Samples of a step of all processes."""
        is_shard = isinstance(self.dataset, IterableDatasetShard)
        dealt = self.dataset if is_shard else self._batches
        if getattr(dealt, "split_batches", False):
            return dealt.batch_size
        return dealt.batch_size * getattr(dealt, "num_processes", 1)


def refuse_device_mesh(torch_device_mesh: Any) -> None:
    if torch_device_mesh is not None:
        raise UsageError(
            "[prepare_data_loader] got torch_device_mesh, which is not there yet, expected None; "
            "data is dealt out over all processes"
        )
