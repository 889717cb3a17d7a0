# SPDX-License-Identifier: Apache-2.0
"""Where a loop over a prepared loader stands, and how another goes on from there: its place in the
epoch, and the generators by which the order was drawn and samples were made."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, RandomSampler

from accelerate import _C, _debug, _generators
from accelerate._batch_indices import RecordedIndices, get_sampler
from accelerate._sharding import (
    BatchSamplerShard,
    IterableDatasetShard,
    SeedableRandomSampler,
    are_of_one_size,
)
from accelerate.errors import UsageError
from accelerate.state import PartialState


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
        # Of `begin`, what the order was drawn by in a run before: others go on from there.
        self.lends: list[str] = []
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
        part = _C.enter_data()
        try:
            return self._read(batches)
        finally:
            _C.leave_part(part)

    def _read(self, batches: Iterator) -> Any:
        if self._kinds is not None:
            self._place.ahead = _generators.take(self._kinds)
            return next(batches, None)
        self._place.ahead = before = _generators.take()
        batch = next(batches, None)
        self._kinds = _generators.differ(before, _generators.take(before))
        return batch


class PlacedLoader(DataLoader):
    """The part of a prepared loader that knows the place of its loops."""

    set_epoch: Callable[[int], None]
    _batches: Any
    _recorded: RecordedIndices | None

    def _keep_place(self, iteration: int, num_before: int) -> None:
        """`num_before`: batches of an epoch in front of the first that a loop gives."""
        self._loops = _Loops(iteration)
        self._num_before = num_before
        # Where the next loop begins, if it is of that epoch; and what is this process's own of it.
        self._restored: Place | None = None
        self._restored_own: dict[str, Any] | None = None

    def get_sampler(self) -> Any:
        return get_sampler(self)

    @property
    def iteration(self) -> int:
        return self._loops.iteration

    @iteration.setter
    def iteration(self, iteration: int) -> None:
        self._loops.iteration = iteration

    def state_dict(self) -> dict[str, Any]:
        """Where the loop stands, and the generators that it depends on: a loop over a loader of the
        same data that has loaded it goes on from here, in as many processes."""
        return {"shared": self._state(), "own": self._own_state()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """The next loop goes on where the state was taken."""
        self._load_state(state_dict["shared"])
        self._load_own_state(state_dict["own"])

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

    def _share_position(self, loader: PlacedLoader, num_skipped: int) -> None:
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
            place.lends = [kind for kind in _generators.KINDS if kind in place.begin]
            # An epoch that had not begun is drawn by the generators as they are now.
            place.begin = {**_generators.take(), **place.begin}
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
        elif "sampler" not in place.begin and own is not None and "torch" in place.lends:
            # Drawn by one process, whose sampler had none.
            sampler.generator = None
        for name, generator in self._own_generators().items():
            if name in place.begin:
                generator.set_state(place.begin[name])
        try:
            with _generators.lent({kind: place.begin[kind] for kind in place.lends}):
                yield
        finally:
            if own is not None:
                sampler.generator = own

    def _end_loop(self, place: Place) -> None:
        if self._restored is None:  # Else the next loop goes on from there.
            self.iteration += 1
        if self._loops.latest is place:
            self._loops.latest = None
