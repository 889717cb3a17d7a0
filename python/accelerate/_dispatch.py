# SPDX-License-Identifier: Apache-2.0
"""Process 0 reads for all and sends each process its part, and only that. See
`docs/guide_python.md`.

Each turn of the loop is one message to every process: a batch, the end, or the exception that
process 0 met, so that nobody waits for a batch that never comes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch.utils.data import IterDataPipe

from accelerate import _C
from accelerate._prepared_loader import DataLoaderAdapter, DataLoaderStateMixin
from accelerate._sharding import own_range
from accelerate._tensor_bytes import dump, load
from accelerate._trees import NotATensor, has_only_tensors, tensors_of, with_tensors
from accelerate.errors import DataError, UsageError
from accelerate.state import PartialState


class _Part(NamedTuple):
    """What one process gets of a round of all."""

    batch: Any
    num_samples: int
    num_real: int


class _Message(NamedTuple):
    """What one process is told in one turn; without a part the end, or an error."""

    part: _Part | None
    is_last: bool = True
    # Samples of all processes in the round.
    num_of_round: int = 0
    error: str | None = None


def _concatenate(batches: list) -> Any:
    if len(batches) == 1:
        return batches[0]
    try:
        joined = [torch.cat(tensors) for tensors in zip(*map(tensors_of, batches), strict=True)]
    except (RuntimeError, ValueError) as error:
        raise UsageError(
            "[DataLoaderDispatcher] the batches of one step differ in more than their first "
            f"dimension ({error}), expected the same shape, as process 0 reads for all of them; "
            "pass dispatch_batches=False, so that each process reads its own, or "
            "split_batches=True, so that one batch is cut into parts"
        ) from error
    return with_tensors(batches[0], joined)


class _Dealer:
    """Cuts what process 0 has read in a turn into one part per process. The end is filled up with
    the first samples of the first turn."""

    def __init__(self, world_size: int, drop_last: bool, slice_fn: Callable | None):
        self.world_size = world_size
        self.drop_last = drop_last
        self.slice_fn = slice_fn
        self.first: list | None = None
        self._ranges: dict[tuple[int, int], slice] = {}

    def shard(self, rank: int, batch_size: int = 1) -> _C.IterableShard:
        return _C.IterableShard(
            batch_size=batch_size,
            drop_last=self.drop_last,
            even_batches=True,
            split_batches=False,
            rank=rank,
            world_size=self.world_size,
        )

    def deal(self, batches: list) -> tuple[list[_Part], int]:
        """The parts, and how many samples they were made of."""
        if self.world_size == 1 and self.slice_fn is None:
            # Nothing is cut, so any number will do that is the batch's.
            sizes = [tensor.shape[0] for tensor in tensors_of(batches[0]) if tensor.dim() > 0]
            num_samples = sizes[0] if sizes else 1
            return [_Part(batches[0], num_samples, num_samples)], num_samples
        sizes = [self._count(batch) for batch in batches]
        first = batches if self.first is None else self.first
        if self.first is None and not self.drop_last:
            self.first = batches
        shapes = [[tensor.shape for tensor in tensors_of(batch)] for batch in batches]
        is_even = all(shape == shapes[0] for shape in shapes) and len(batches) == self.world_size
        if is_even and self.slice_fn is None:
            return [_Part(batch, sizes[0], sizes[0]) for batch in batches], sum(sizes)
        whole = _concatenate(batches)
        # Where this is the first turn, its own samples fill it up.
        kept = None if first is batches else self._rows(_concatenate(first), self.world_size)
        parts = [self._part(rank, whole, sum(sizes), kept) for rank in range(self.world_size)]
        return parts, sum(sizes)

    def _part(self, rank: int, whole: Any, num_rows: int, kept: Any) -> _Part:
        per_rank = self.shard(rank).size(num_rows)
        if per_rank == 0:
            return _Part(self._rows(whole, 0), 0, 0)
        shard = self.shard(rank, per_rank)
        if (rank, per_rank) not in self._ranges:
            self._ranges[rank, per_rank] = own_range(shard)
        own = self._ranges[rank, per_rank]
        if self.drop_last or num_rows == shard.round_size:
            return self._cut(rank, whole, own, per_rank, per_rank)
        # As if a full round had come first, whose samples may be repeated.
        num_before = shard.round_size if kept is not None else 0
        positions, num_real = shard.last_batch(num_before + num_rows)
        if self.slice_fn is not None:
            filler = kept if kept is not None else whole
            return self._cut(rank, _concatenate([whole, filler]), own, per_rank, num_real)
        num_kept = 0 if kept is None else self._count(kept)
        rows = [p if p < num_before else p - num_before + num_kept for p in positions]
        source = whole if kept is None else _concatenate([kept, whole])
        return _Part(self._rows(source, torch.tensor(rows)), len(rows), num_real)

    def _cut(self, rank: int, data: Any, own: slice, num_samples: int, num_real: int) -> _Part:
        if self.slice_fn is None:
            batch = with_tensors(data, [tensor[own] for tensor in tensors_of(data)])
        else:
            batch = self.slice_fn(
                data, own, process_index=rank, num_processes=self.world_size
            )
        return _Part(batch, num_samples, num_real)

    @staticmethod
    def _rows(data: Any, which: int | torch.Tensor) -> Any:
        """The first rows, or those of these indices."""
        index = slice(which) if isinstance(which, int) else which
        return with_tensors(data, [tensor[index] for tensor in tensors_of(data)])

    @staticmethod
    def _count(batch: Any) -> int:
        if not has_only_tensors(batch) or not (tensors := tensors_of(batch)):
            raise NotATensor(
                f"[DataLoaderDispatcher] got a batch ({type(batch).__name__}) with other values "
                "than tensors, expected tensors only, as process 0 reads and cuts them for all; "
                "pass dispatch_batches=False, or a collate_fn that leaves the others out"
            )
        sizes = {tensor.shape[0] if tensor.dim() else None for tensor in tensors}
        if len(sizes) > 1 or None in sizes:
            raise UsageError(
                "[DataLoaderDispatcher] got a batch with tensors of the shapes "
                f"{[tuple(tensor.shape) for tensor in tensors]}, expected one first dimension, the "
                "samples, to cut; pass dispatch_batches=False to read on every process"
            )
        return sizes.pop()


class DataLoaderDispatcher(DataLoaderAdapter, DataLoaderStateMixin):
    """A loader that process 0 reads for all: a batch for each process in each step, or one that is
    cut into equal parts (`split_batches`).

    `slice_fn(batch, slice, process_index=, num_processes=)` cuts a part out of what was read in a
    step; it runs on process 0. Batches must consist of tensors with one first dimension.
    """

    _is_accelerate_prepared = True

    def __init__(
        self,
        dataset: Any,
        split_batches: bool = False,
        *,
        slice_fn: Callable | None = None,
        **kwargs: Any,
    ):
        super().__init__(dataset, **kwargs)
        self.split_batches = split_batches
        self.slice_fn = slice_fn

    @property
    def state(self) -> PartialState:
        return PartialState()

    def _dealer(self) -> _Dealer:
        return _Dealer(self.state.num_processes, self._drop_last, self.slice_fn)

    def __len__(self) -> int:
        num_batches = super().__len__()
        if not self.split_batches:
            num_batches = self._dealer().shard(self.state.process_index).size(num_batches)
        return max(0, num_batches - self.skip_batches)

    @property
    def total_batch_size(self) -> int:
        """Samples of a step of all processes."""
        num_batches = 1 if self.split_batches else self.state.num_processes
        return self._batches.batch_size * num_batches

    def __iter__(self) -> Iterator:
        from accelerate.utils.operations import send_to_device

        self.begin()
        feed = self.gradient_state.step_state.open_feed()
        try:
            self.set_epoch(self.iteration)
            device = self.state.device
            for part, is_last, num_of_round, _ in self._messages():
                batch = send_to_device(part.batch, device, non_blocking=self._non_blocking)
                if is_last:
                    self.end_of_dataloader = True
                    self.remainder = num_of_round
                feed.hand_out(is_last, part.num_samples, part.num_real)
                yield batch
            self.iteration += 1
        except GeneratorExit:
            feed.leave()
            raise
        finally:
            # Not left to the frame, which the traceback of an exception keeps alive.
            del feed
            self.end()

    def _messages(self) -> Iterator[_Message]:
        """What this process is told, up to the end."""
        tell = self._receive if self.state.process_index else self._send
        for message in tell():
            if message.error is not None:
                raise DataError(
                    "[DataLoaderDispatcher] process 0, which reads for all, failed with "
                    f"{message.error}"
                )
            if message.part is None:
                return
            yield message
            if message.is_last:
                return

    def _receive(self) -> Iterator[_Message]:
        if isinstance(self.dataset, IterDataPipe):
            super().__iter__()  # torch agrees on a seed among all processes
        else:
            # What an iterator draws for its workers: generators stay the same on all processes.
            torch.empty((), dtype=torch.int64).random_(generator=self.generator)
        while True:
            yield load(self.state.group.scatter_bytes([], 0))

    def _send(self) -> Iterator[_Message]:
        rounds = self._rounds()
        while True:
            try:
                own, *others = next(rounds, [_Message(None)] * self.state.num_processes)
                payload = [dump(message) for message in others]
            except Exception as error:
                message = _Message(None, error=f"{type(error).__name__}: {error}")
                self._scatter([dump(message)] * (self.state.num_processes - 1))
                raise
            self._scatter(payload)
            yield own

    def _scatter(self, payload: list[bytes]) -> None:
        if payload:
            self.state.group.scatter_bytes([b"", *payload], 0)

    def _rounds(self) -> Iterator[list[_Message]]:
        """What each process is told, turn by turn, read one turn ahead."""
        dealer = self._dealer()
        iterator = super().__iter__()
        batches = self._read(iterator)
        num_read = 0
        while batches:
            error = None
            try:
                following = self._read(iterator)
            except Exception as caught:  # comes in its turn, after the batch before it
                following, error = [], caught
            parts, num_of_round = dealer.deal(batches)
            num_read += 1
            if num_read > self.skip_batches:
                is_last = not following and error is None
                yield [_Message(part, is_last, num_of_round) for part in parts]
            if error is not None:
                raise error
            batches = following

    def _read(self, iterator: Iterator) -> list:
        num_wanted = 1 if self.split_batches else self.state.num_processes
        batches = list(islice(iterator, num_wanted))
        return [] if self._drop_last and len(batches) < num_wanted else batches
