# SPDX-License-Identifier: Apache-2.0
"""The position of a loop over a prepared loader: the position in the epoch, and the states of the
generators that determined the order and the samples. Another loop can resume there."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, RandomSampler

from accelerate import _C
from accelerate._base import debug as _debug
from accelerate._loaders.batch_indices import RecordedIndices, get_sampler
from accelerate._loaders.sharding import (
    BatchSamplerShard,
    IterableDatasetShard,
    SeedableRandomSampler,
    are_of_one_size,
)
from accelerate._state import generators as _generators
from accelerate.errors import UsageError
from accelerate.state import GradientState, PartialState


class LoopPosition:
    """The position of a loop in its epoch."""

    def __init__(
        self,
        epoch: int,
        num_batches: int,
        begin: dict[str, Any] | None = None,
        num_left_out: int = 0,
    ):
        self.epoch = epoch
        # The number of batches that the loop has returned.
        self.num_batches = num_batches
        # Generator states at the start of the loop, by name: `_generators.KINDS` and the loader's.
        self.begin = begin or {}
        # Samples or batches (see `_turn`) of an incomplete round that an earlier run with a
        # different number of processes has already used.
        self.num_left_out = num_left_out
        # Whether the last batch was returned.
        self.is_at_end = False
        self.is_restored = False
        # Names of global generators. Their states in `begin` must be restored to draw the same
        # order.
        self.borrows: list[str] = []
        # Whether the loop found persistent workers of an earlier loop.
        self.has_workers = False
        # The state of a stateful sampler at the start of the loop.
        self.sampler_state: Any = None
        # The digest of all batches so far, and of the batches before the current one. None if it is
        # unknown.
        self.digest: int | None = None
        self.digest_before: int | None = None
        # Generator states before the next batch was read ahead.
        self.ahead: dict[str, Any] = {}
        # Generator states before the loop's current batch was read.
        self.ahead_of_hand: dict[str, Any] = {}
        # Generator states of the earlier run, for reading the first batches.
        self.to_borrow: list[dict[str, Any]] = []
        # How many batches the earlier run had received, and their digest.
        self.expected: tuple[int, int | None] | None = None
        # `total_backwards` when the current batch was returned. None without a current batch.
        self.backwards_at_hand: int | None = None
        # Whether the program left the loop without a backward pass for its current batch.
        self.is_left_unused = False

    def hand_out(self, is_last: bool, digest: int | None, total_backwards: int) -> None:
        self.num_batches += 1
        self.is_at_end = is_last
        self.digest_before, self.digest = self.digest, digest
        self.backwards_at_hand = total_backwards

    def is_used(self, total_backwards: int) -> bool:
        """Whether the loop has finished using its current batch."""
        return not self.is_left_unused and self.backwards_at_hand != total_backwards


@dataclasses.dataclass
class Start:
    """Where the next loop starts. If it `resumes`, it skips `num_batches` batches of `epoch`.
    Otherwise it starts at the first batch. Both use the order that `begin` determines."""

    epoch: int
    num_batches: int = 0
    resumes: bool = True
    begin: dict[str, Any] = dataclasses.field(default_factory=dict)
    has_workers: bool = False
    num_left_out: int = 0
    # Set if the program left the loop with `break` before saving: the loader's own generators, and
    # whether it has workers. A new loop then draws a new order. Only `skip_first_batches` continues
    # the old one.
    left: dict[str, Any] | None = None
    # State of this process only.
    own: dict[str, Any] | None = None

    @property
    def num_to_pass(self) -> int:
        return self.num_batches if self.resumes else 0

    def position_at(self, num_batches: int) -> LoopPosition:
        position = LoopPosition(self.epoch, num_batches, self.begin, self.num_left_out)
        position.is_restored = True
        position.has_workers = self.has_workers
        own = self.own
        if own and own["epoch"] == self.epoch:
            # Generators that all processes share have the state of process 0.
            of_order = {name: self.begin[name] for name in _OF_ORDER if name in self.begin}
            position.begin = {**own["begin"], **of_order}
            position.sampler_state = own["sampler"]
            num_given = own["num_batches"]
            if num_batches == num_given:
                position.to_borrow = [own["ahead"]]
                position.digest = own["digest"]
            elif num_batches == num_given - 1 and "ahead_of_hand" in own:
                position.to_borrow = [own["ahead_of_hand"], own["ahead"]]
                position.digest = own["digest_before"]
            elif num_batches < num_given:
                position.expected = num_given, own["digest"]
        return position


# Names of a loader's generators that determine the order on all processes.
_OF_ORDER = ("sampler", "shared")


class _Loops:
    """The state that a loader shares with the loaders that `skip_first_batches` creates from it:
    the number of completed loops, the positions of running loops, and the position of the loop that
    was left last."""

    def __init__(self, iteration: int):
        self.iteration = iteration
        self.running: list[LoopPosition] = []
        self.left: LoopPosition | None = None
        # Whether one of the loaders has created persistent workers.
        self.has_workers = False

    @property
    def latest(self) -> LoopPosition | None:
        return self.running[-1] if self.running else self.left

    def is_open(self, position: LoopPosition) -> bool:
        return any(position is running for running in self.running)

    def begin(self, position: LoopPosition) -> None:
        self.running.append(position)
        self.left = None

    def end(self, position: LoopPosition) -> None:
        self.running = [running for running in self.running if running is not position]

    def leave(self, position: LoopPosition) -> None:
        if self.is_open(position):
            self.end(position)
            self.left = position

    def forget(self) -> None:
        self.running, self.left = [], None


class ReadAhead:
    """Records the states of generators before a batch is read. If reading the first batch does not
    change a generator, later reads do not record it. Recording can take longer than reading a
    batch."""

    def __init__(self, position: LoopPosition, is_here: bool):
        self._position = position
        # Workers have their own generators.
        self._kinds: Iterable[str] | None = None if is_here else ()

    def read(self, batches: Iterator) -> Any:
        """Returns the next batch, or None at the end."""
        phase = _C.enter_data()
        try:
            if not self._position.to_borrow:
                return self._read(batches)
            with _generators.borrowed(self._position.to_borrow.pop(0)):
                return self._read(batches)
        finally:
            _C.leave_phase(phase)

    def _read(self, batches: Iterator) -> Any:
        position = self._position
        position.ahead_of_hand = position.ahead
        if self._kinds is not None:
            position.ahead = _generators.take(self._kinds)
            return next(batches, None)
        position.ahead = before = _generators.take()
        batch = next(batches, None)
        self._kinds = _generators.differ(before, _generators.take(before))
        return batch


class PlacedLoader(DataLoader):
    """The part of a prepared loader that knows the positions of its loops."""

    set_epoch: Callable[[int], None]
    use_stateful_dataloader: bool
    _batches: Any
    _recorded: RecordedIndices | None

    def _keep_position(self, iteration: int, num_before: int) -> None:
        """`num_before` is the number of batches that every loop skips at the start of the epoch."""
        self._loops = _Loops(iteration)
        self._num_before = num_before
        # Where the next loop starts. Used only if the epoch of the next loop is the same.
        self._restored: Start | None = None
        # Whether loading state also restores the position, not only epoch and order.
        self._resumes_on_load = True

    def get_sampler(self) -> Any:
        return get_sampler(self)

    @property
    def _has_workers(self) -> bool:
        """Whether an uninterrupted run would have persistent workers now."""
        is_shared = self.persistent_workers and self._loops.has_workers
        return is_shared or self._iterator is not None

    def _iterate(self) -> Iterator:
        """Returns torch's iterator. Creating persistent workers draws a seed. A run draws it once,
        so a loader that continues after `skip_first_batches` must not draw another seed."""
        if self.persistent_workers:
            if self._loops.has_workers and self._iterator is None:
                self._make_workers()
            self._loops.has_workers = True
        return super().__iter__()

    @property
    def iteration(self) -> int:
        return self._loops.iteration

    @iteration.setter
    def iteration(self, iteration: int) -> None:
        self._loops.iteration = iteration

    def state_dict(self) -> dict[str, Any]:
        """Returns the position of the loop, and the states of the generators that it depends on.
        After this state is loaded, a loop over a loader of the same data with the same number of
        processes resumes here. Every returned batch counts as used."""
        start = self._start(counts_handed_out=True)
        return {"shared": self._state_of(start), "own": start.own}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Makes the next loop resume where the state was saved."""
        if not {"shared", "own"} <= set(state_dict):
            raise UsageError(
                f"[load_state_dict] The state has the keys {list(state_dict)}, so it does not come "
                "from a loader that this package prepared. Load the state of a torchdata loader "
                "into a StatefulDataLoader, or call skip_first_batches()"
            )
        self._resumes_on_load = True
        self._load_state(state_dict["shared"])
        self._load_own_state(state_dict["own"])

    def _start(self, counts_handed_out: bool) -> Start:
        """Returns where a loop starts in the run that loads this state. For a running loop, this is
        its position, including the current batch if `backward` was called since the batch was
        returned. With `counts_handed_out`, it always includes the current batch, and a loop that
        was left is treated as running."""
        position = self._loops.latest
        if position is None:
            return self._restored or self._start_of_epoch(self.iteration)
        is_used = counts_handed_out or position.is_used(self._total_backwards)
        if position.is_at_end and is_used:
            return self._start_of_epoch(position.epoch + 1)
        own = {
            "epoch": position.epoch,
            "num_batches": position.num_batches,
            "begin": position.begin,
            "ahead": position.ahead,
            "ahead_of_hand": position.ahead_of_hand,
            "sampler": position.sampler_state,
            "digest": position.digest,
            "digest_before": position.digest_before,
        }
        start = Start(
            position.epoch, begin=position.begin, has_workers=position.has_workers, own=own
        )
        if counts_handed_out or self._loops.is_open(position):
            start.num_batches = position.num_batches - (not is_used)
            start.num_left_out = position.num_left_out
        else:
            start.left = {
                "generators": self._states_of_own(),
                "has_workers": self._has_workers,
            }
            own["left_sampler"] = self._sampler_state()
        return start

    def _start_of_epoch(self, epoch: int) -> Start:
        begin = self._states_of_own()
        own = {
            "epoch": epoch,
            "num_batches": 0,
            "begin": begin,
            "ahead": {},
            "sampler": self._sampler_state(),
            "digest": None,
        }
        return Start(epoch, begin=begin, has_workers=self._has_workers, own=own)

    @property
    def _total_backwards(self) -> int:
        return GradientState().step_state.total_backwards

    def _sampler_state(self) -> Any:
        sampler = self._sampler_with_state
        return None if sampler is None else copy.deepcopy(sampler.state_dict())

    def _load_sampler_state(self, state: Any) -> None:
        sampler = self._sampler_with_state
        if sampler is not None and state is not None:
            sampler.load_state_dict(state)

    @property
    def _sampler_with_state(self) -> Any:
        """The first sampler of batches or indices that has a `state_dict`, or None."""
        level = self._batches
        while level is not None:
            if hasattr(level, "state_dict") and hasattr(level, "load_state_dict"):
                return level
            # Compare with None, because the truth value of a sampler may depend on its length.
            inner = getattr(level, "batch_sampler", None)
            level = getattr(level, "sampler", None) if inner is None else inner
        return None

    def _position(self) -> dict[str, int]:
        """Returns `epoch`, the number of its batches that this process has received
        (`num_batches`), and the `seed` if the sampler belongs to this package."""
        start = self._start(counts_handed_out=True)
        position = {"epoch": start.epoch, "num_batches": start.num_to_pass}
        sampler = self.get_sampler()
        if isinstance(sampler, SeedableRandomSampler):
            position["seed"] = sampler.initial_seed
        return position

    def _restore_position(
        self, position: dict[str, int], num_left_out: int = 0, resumes: bool = True
    ) -> None:
        """Makes the next loop start in the epoch of `position` and, if it `resumes`, after
        `num_batches`. The loader must read the same data with the same number of processes."""
        sampler = self.get_sampler()
        is_seedable = isinstance(sampler, SeedableRandomSampler)
        if is_seedable != ("seed" in position):
            problem = (
                "saved without a seedable sampler, but this loader has one"
                if is_seedable
                else "saved with a seedable sampler, but this loader has none"
            )
            if resumes:
                raise UsageError(
                    f"[DataLoader] The position was {problem}. Use the same shuffle and "
                    "use_seedable_sampler as in the saved run"
                )
            _debug.warn(
                f"[load_state] The position of a loader was {problem}, so its order is not "
                "restored. Use the same shuffle and use_seedable_sampler as in the saved run",
                stacklevel=2,
            )
        elif is_seedable:
            sampler.initial_seed = position["seed"]
        self.set_epoch(position["epoch"])
        self._loops.forget()
        self._restored = Start(
            position["epoch"], position["num_batches"], resumes, num_left_out=num_left_out
        )

    def _state(self) -> dict[str, Any]:
        """Returns the state in a checkpoint that is common to all processes."""
        return self._state_of(self._start(self.use_stateful_dataloader))

    def _state_of(self, start: Start) -> dict[str, Any]:
        """Returns the common state. Uses the same keys as the C++ loader, except for `begin`."""
        unit, num_per_turn = self._turn
        sampler = self.get_sampler()
        num_left_out = start.num_left_out if start.resumes else 0
        state = {
            "epoch": start.epoch,
            "num_done": num_left_out + start.num_to_pass * num_per_turn,
            "unit": unit,
            "shuffle": isinstance(sampler, RandomSampler),
            "num_samples": self._num_samples(),
            "world_size": PartialState().num_processes,
            "num_workers": self.num_workers,
            "batch_size": getattr(self._batches, "batch_size", None) or 0,
            "begin": {
                "generators": start.begin,
                "has_workers": start.has_workers,
                "left": start.left,
            },
        }
        if isinstance(sampler, SeedableRandomSampler):
            # Files store int64, so an unsigned seed is stored as the int64 with the same bits.
            state["seed"] = (sampler.initial_seed + 2**63) % 2**64 - 2**63
        return state

    def _num_samples(self) -> int:
        """Returns the length of the dataset, or -1 if it is unknown. `len()` of a shard calls
        `len()` of the dataset, which can raise an error."""
        try:
            return len(self.dataset)
        except (TypeError, NotImplementedError):
            return -1

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
        resumes = self._resumes_on_load
        if resumes and state["unit"] != unit:
            raise UsageError(
                f"[load_state] The saved position counts {state['unit']}, but this loader counts "
                f"{unit}. Prepare a loader over the same data"
            )
        # The saved position counts the batches of all processes.
        num_batches, num_left = divmod(state["num_done"], num_per_turn)
        if not resumes:
            num_left = 0
        elif num_left > 0 and self._shard_of_batches is None:
            _debug.warn(
                f"[load_state] {state['world_size']} processes had read {state['num_done']} {unit} "
                "of the epoch. This number cannot be split evenly between the processes of this "
                f"run, so the last {num_left} are read again",
                stacklevel=2,
            )
            num_left = 0
        position = {"epoch": state["epoch"], "num_batches": num_batches}
        # The state of a C++ loader has a seed even if the loader does not shuffle.
        if state["shuffle"] and "seed" in state:
            position["seed"] = state["seed"]
        self._restore_position(position, num_left, resumes)
        begin = state["begin"]
        self._restored.begin = begin["generators"]
        self._restored.has_workers = begin["has_workers"]
        self._restored.left = begin.get("left")

    def _restored_to(self) -> str:
        """Says where the next loop starts. Empty if no loop was saved in the middle of an epoch."""
        start = self._restored
        if start is not None and start.num_to_pass > 0:
            return f"resumes epoch {start.epoch} after {start.num_to_pass} batches"
        if start is not None and start.num_batches:
            return f"starts epoch {start.epoch} (saved after {start.num_batches} batches)"
        return ""

    @property
    def _turn(self) -> tuple[str, int]:
        """The unit of positions in an epoch, and how many units all processes receive per round."""
        batches = self._batches
        if are_of_one_size(batches) and not isinstance(self.dataset, IterableDataset):
            return "samples", batches.batch_size * self._num_per_turn
        return "batches", self._num_per_turn

    @property
    def _shard_of_batches(self) -> BatchSamplerShard | None:
        """The sampler that distributes batches, or None if it cannot start in the middle of a
        round."""
        level = self._batches
        while level is not None and not isinstance(level, BatchSamplerShard):
            level = getattr(level, "batch_sampler", None)
        return level

    def _own_state(self) -> dict[str, Any]:
        """Returns the state of this process only, because generators may differ between
        processes."""
        return self._start(self.use_stateful_dataloader).own or {}

    def _load_own_state(self, state: dict[str, Any]) -> None:
        if self._restored is not None:
            self._restored.own = state

    @property
    def _num_per_turn(self) -> int:
        """The number of batches of the user's loader that all processes together receive per
        round."""
        dealt = self.dataset if isinstance(self.dataset, IterableDatasetShard) else self._batches
        is_split = getattr(dealt, "split_batches", False)
        return 1 if is_split else getattr(dealt, "num_processes", 1)

    def _own_generators(self) -> dict[str, torch.Generator]:
        """Returns the loader's generators that determine the order and the seeds of workers, by
        name."""
        named = {
            "loader": self.generator,
            "sampler": getattr(self.get_sampler(), "generator", None),
            "shared": getattr(self, "synchronized_generator", None),
        }
        return {name: own for name, own in named.items() if isinstance(own, torch.Generator)}

    def _states_of_own(self) -> dict[str, Any]:
        return {name: own.get_state() for name, own in self._own_generators().items()}

    def _share_position(self, loader: PlacedLoader, num_skipped: int) -> None:
        """Makes this loader start `num_skipped` batches after the first batch of `loader`. It
        replaces the position at which `loader` would have resumed, so that batches are not skipped
        twice."""
        self._loops = loader._loops
        self._num_before = loader._num_before + num_skipped
        start, loader._restored = loader._restored, None
        if start is not None and start.epoch == self.iteration:
            self._restored = dataclasses.replace(
                start,
                resumes=False,
                left=start.left if num_skipped == 0 else None,
                num_left_out=start.num_left_out if start.resumes else 0,
            )

    def _take_restored(self) -> Start | None:
        """Returns and clears the restored start, or returns None if the loop starts normally."""
        start, self._restored = self._restored, None
        if start is None or start.epoch != self.iteration:
            return None
        if start.left is None:
            return start
        for name, generator in self._own_generators().items():
            if name in start.left["generators"]:
                generator.set_state(start.left["generators"][name])
        self._load_sampler_state((start.own or {}).get("left_sampler"))
        if start.left["has_workers"] and self._iterator is None:
            self._make_workers()
        return None

    def _begin_loop(self) -> tuple[LoopPosition, int]:
        """Returns the position of a new loop, and how many batches it must skip to get there."""
        num_before = self._num_before
        start = self._take_restored()
        if start is None:
            begin = {**_generators.take(), **self._states_of_own()}
            position = LoopPosition(self.iteration, num_before, begin)
            position.has_workers = self._has_workers
            position.sampler_state = self._sampler_state()
        else:
            position = start.position_at(max(num_before, start.num_to_pass))
            self._load_sampler_state(position.sampler_state)
            if position.has_workers and self._iterator is None:
                self._make_workers()
            position.borrows = [kind for kind in _generators.KINDS if kind in position.begin]
            # The state of an epoch that had not started lacks the global generators.
            position.begin = {**_generators.take(), **position.begin}
        if (shard := self._shard_of_batches) is not None:
            shard.num_left_out = position.num_left_out
        self._loops.begin(position)
        return position, position.num_batches - num_before

    def _make_workers(self) -> None:
        """Creates the persistent workers that a run had when it was saved. Creating workers draws a
        seed. The saved state already includes this draw, so the generators are restored
        afterwards."""
        own = self._states_of_own()
        if self._recorded is not None:
            self._recorded.held_back = True
        try:
            with _generators.borrowed(_generators.take()):
                self._iterator = self._get_iterator()
        finally:
            if self._recorded is not None:
                self._recorded.held_back = False
            for name, generator in self._own_generators().items():
                generator.set_state(own[name])

    def _check_replay(self, position: LoopPosition, digest: int | None) -> None:
        """Checks that the sampler has produced the same batches for the completed part of the
        epoch."""
        if self._num_before == 0 and position.is_restored and position.digest not in (None, digest):
            self._warn_of_order()

    def _hand_out(self, position: LoopPosition, is_last: bool, digest: int | None = None) -> None:
        """Records that the next batch is returned to the loop."""
        position.hand_out(is_last, digest, self._total_backwards)
        if position.expected is not None and position.expected[0] == position.num_batches:
            if self._num_before == 0 and None not in (digest, position.expected[1]):
                if digest != position.expected[1]:
                    self._warn_of_order()
            position.expected = None

    def _take_back(self, position: LoopPosition) -> None:
        """Called when the loop requests its next batch."""
        position.backwards_at_hand = None
        start = self._restored
        if start is not None and not start.resumes and not self._loops.is_open(position):
            # State was loaded inside this loop, but the loop continues its own epoch.
            self.set_epoch(position.epoch)
            self._restored = None
            self._loops.begin(position)

    def _warn_of_order(self) -> None:
        _debug.warn(
            f"[load_state] {type(self.get_sampler()).__name__} does not repeat the batches of the "
            "finished part of the epoch, so some samples are read twice and others are skipped. "
            "Draw all indices at the start of the epoch, or define state_dict and "
            "load_state_dict in the class",
            stacklevel=5,
        )

    @contextmanager
    def _as_begun(self, position: LoopPosition) -> Iterator[None]:
        """The block draws the order of the epoch. For a resumed loop, the generators have the
        states from the start of the original loop. Only the loader's own generators continue from
        these states afterwards."""
        if not position.is_restored:
            yield
            return
        sampler = self.get_sampler()
        own = getattr(sampler, "generator", None)
        if "sampler" in position.begin and own is None and hasattr(sampler, "generator"):
            # Several processes draw the order, so they need a common generator.
            sampler.generator = own = torch.Generator()
        elif "sampler" not in position.begin and own is not None and "torch" in position.borrows:
            # A single process drew the order, and its sampler had no generator.
            sampler.generator = None
        for name, generator in self._own_generators().items():
            if name in position.begin:
                generator.set_state(position.begin[name])
        try:
            with _generators.borrowed({kind: position.begin[kind] for kind in position.borrows}):
                yield
        finally:
            if own is not None:
                sampler.generator = own

    def _end_loop(self, position: LoopPosition) -> None:
        if self._restored is None:  # Otherwise, the next loop resumes there.
            self.iteration += 1
        self._loops.end(position)

    def _leave_loop(self, position: LoopPosition | None) -> None:
        """Marks a loop as left early. A completed loop is unchanged."""
        if position is not None:
            position.is_left_unused = not position.is_used(self._total_backwards)
            self._loops.leave(position)
