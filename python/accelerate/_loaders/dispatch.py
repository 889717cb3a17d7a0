# SPDX-License-Identifier: Apache-2.0
"""Process 0 reads for all processes and sends each process its share. See `docs/guide_python.md`.

C++ decides which process gets which samples, and exchanges the messages (`data/batch_dealer.h`,
`data/dispatch_chain.h`). A message is a batch, the end, or the exception of process 0, so no
process waits for a batch that never arrives. This module reads, splits and serialises batches."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch.utils.data import IterDataPipe

from accelerate import _C
from accelerate._base.trees import NotATensor, has_only_tensors, tensors_of, with_tensors
from accelerate._base.verification import note_batch
from accelerate._loaders.loop_positions import LoopPosition, ReadAhead
from accelerate._loaders.prepared_loader import DataLoaderAdapter, DataLoaderStateMixin
from accelerate._loaders.sharding import BatchCounts
from accelerate._loaders.tensor_bytes import dump, load
from accelerate.errors import UsageError, in_one_line
from accelerate.state import PartialState
from accelerate.utils.operations import send_to_device

# Processes receive a batch when the loop requests it. Process 0 reads only one round ahead, because
# datasets and loops may draw from the same generators.
_NUM_AHEAD = 0


class _Slice(NamedTuple):
    """The share of one process in a round."""

    batch: Any
    num_samples: int
    num_real: int


class _Turn(NamedTuple):
    slices: list[_Slice]
    # The number of samples that were read for the round, over all processes. -1 if unknown.
    num_samples: int

    def messages(self) -> list[tuple[bytes | None, int, int]]:
        """Returns the message to each process. Process 0 keeps its own share."""
        own, *others = self.slices
        return [
            (None, own.num_samples, own.num_real),
            *((dump((p.batch, self.num_samples)), p.num_samples, p.num_real) for p in others),
        ]


def _concatenate(batches: list) -> Any:
    if len(batches) == 1:
        return batches[0]
    try:
        joined = [torch.cat(tensors) for tensors in zip(*map(tensors_of, batches), strict=True)]
    except (RuntimeError, ValueError) as error:
        raise UsageError(
            f"[DataLoaderDispatcher] The batches of one step have different shapes ({error}), but "
            "only the first dimension may differ. Pass dispatch_batches=False to read on every "
            "process, or split_batches=True to split one batch"
        ) from error
    return with_tensors(batches[0], joined)


class _Cutter:
    """Splits the samples that process 0 has read in a round into one share per process. C++ decides
    which samples a share contains (`data/batch_dealer.h`)."""

    def __init__(self, dealer: _C.BatchDealer, world_size: int, slice_fn: Callable | None):
        self.dealer = dealer
        self.world_size = world_size
        self.slice_fn = slice_fn
        self.first: list = []

    def deal(self, counted: list[tuple[Any, BatchCounts]]) -> _Turn:
        batches = [batch for batch, _ in counted]
        if self.world_size == 1 and self.slice_fn is None:
            # The batches are not split, so they may contain anything.
            num_samples, num_real, num_of_turn = counted[0][1]
            return _Turn(
                [_Slice(batches[0], num_samples, num_real)],
                num_samples if num_of_turn is None else num_of_turn,
            )
        turn = self.dealer.deal([self._count(batch) for batch in batches])
        if turn.is_kept:
            self.first = batches
        shapes = [[tensor.shape for tensor in tensors_of(batch)] for batch in batches]
        is_even = turn.is_even and all(shape == shapes[0] for shape in shapes)
        if not is_even or self.slice_fn is not None:
            batches = self._cut(batches, turn)
        slices = [
            _Slice(batch, dealt.num_samples, dealt.num_real)
            for batch, dealt in zip(batches, turn.slices, strict=True)
        ]
        return _Turn(slices, turn.num_samples)

    def _cut(self, batches: list, turn: _C.DealtTurn) -> list:
        whole = _concatenate(batches)
        if turn.repeated:
            filler = self._rows(_concatenate(self.first), torch.tensor(turn.repeated))
            whole = _concatenate([whole, filler])
        slices = []
        for rank, dealt in enumerate(turn.slices):
            own = slice(dealt.first, dealt.first + dealt.num_samples)
            if self.slice_fn is None or dealt.num_samples == 0:
                slices.append(self._rows(whole, own))
            else:
                slices.append(
                    self.slice_fn(whole, own, process_index=rank, num_processes=self.world_size)
                )
        return slices

    @staticmethod
    def _rows(data: Any, rows: slice | torch.Tensor) -> Any:
        return with_tensors(data, [tensor[rows] for tensor in tensors_of(data)])

    @staticmethod
    def _count(batch: Any) -> int:
        if not has_only_tensors(batch) or not (tensors := tensors_of(batch)):
            raise NotATensor(
                f"[DataLoaderDispatcher] The batch ({type(batch).__name__}) contains values other "
                "than tensors, which process 0 cannot split between processes. Pass "
                "dispatch_batches=False, or a collate_fn that returns only tensors"
            )
        sizes = {tensor.shape[0] if tensor.dim() else None for tensor in tensors}
        if len(sizes) > 1 or None in sizes:
            raise UsageError(
                "[DataLoaderDispatcher] The tensors of the batch have the shapes "
                f"{[tuple(tensor.shape) for tensor in tensors]}, but only tensors with the same "
                "first dimension can be split. Pass dispatch_batches=False to read on every process"
            )
        return sizes.pop()


class DataLoaderDispatcher(DataLoaderAdapter, DataLoaderStateMixin):
    """A loader for which process 0 reads all data. Each step reads one batch per process. With
    `split_batches`, each step reads a single batch and splits it into equal shares.

    `slice_fn(batch, slice, process_index=, num_processes=)` returns one share of the batch that was
    read in a step. It runs on process 0. Batches must consist of tensors with the same first
    dimension.
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
        self._count_batches()

    @property
    def state(self) -> PartialState:
        return PartialState()

    @property
    def _full_size(self) -> int:
        return super()._full_size // (self.state.num_processes if self.split_batches else 1)

    @property
    def _num_per_turn(self) -> int:
        return 1 if self.split_batches else self.state.num_processes

    @property
    def _fills_up(self) -> bool:
        """Whether the last batch of an epoch may need samples from the first batch."""
        return self.state.num_processes > 1 and not self._drop_last

    def _dealer(self) -> _C.BatchDealer:
        return _C.BatchDealer(self.split_batches, self._drop_last, self.state.num_processes)

    def __len__(self) -> int:
        return max(0, self._dealer().num_turns(super().__len__()) - self.skip_batches)

    @property
    def total_batch_size(self) -> int:
        """The number of samples per step over all processes."""
        num_batches = 1 if self.split_batches else self.state.num_processes
        return self._batches.batch_size * num_batches

    def __iter__(self) -> Iterator:
        reported = self.begin()
        feed = self.gradient_state.step_state.open_feed(self._full_size)
        position = None
        try:
            device = self.state.device
            position, num_passed = self._begin_loop()
            is_reader = self.state.process_index == 0
            num_to_skip = self.skip_batches + num_passed
            taken = self._send(position, num_to_skip) if is_reader else self._receive(position)
            for batch, num_of_turn, facts in taken:
                batch = send_to_device(batch, device, non_blocking=self._non_blocking)
                self.reset()
                if facts.is_last:
                    self.end_of_dataloader = True
                    self.remainder = num_of_turn
                feed.hand_out(facts.is_last, facts.num_samples, facts.num_real)
                self._hand_out(position, facts.is_last)
                note_batch(batch, facts.num_samples)
                yield batch
                self._take_back(position)
            self._end_loop(position)
        except GeneratorExit:
            feed.leave()
            raise
        finally:
            # Otherwise an exception's traceback keeps the feed alive through this frame.
            del feed
            self._leave_loop(position)
            self.end(reported)

    def _receive(self, position: LoopPosition) -> Iterator[tuple[Any, int, _C.BatchFacts]]:
        """Yields this process's batches, each with the number of samples over all processes and its
        `BatchFacts`."""
        self.set_epoch(self.iteration)
        with self._as_begun(position):
            if isinstance(self.dataset, IterDataPipe):
                super().__iter__()  # torch makes all processes use the same seed
            else:
                # An iterator draws a seed for its workers. Draw it here too, so that generators of
                # all processes have the same state.
                torch.empty((), dtype=torch.int64).random_(generator=self.generator)
        receiver = _C.DispatchReceiver(self.state.group, _NUM_AHEAD)
        while (received := receiver.next()) is not None:
            data, facts = received
            yield *load(data), facts

    def _send(
        self, position: LoopPosition, num_to_skip: int
    ) -> Iterator[tuple[Any, int, _C.BatchFacts]]:
        """Like `_receive`, but on process 0, which also sends the batches of the other
        processes."""
        sender = _C.DispatchSender(self.state.group, _NUM_AHEAD)
        turns = self._turns(position, num_to_skip)
        own: deque = deque()
        error = None
        try:
            while True:
                while sender.wants_turn:
                    try:
                        turn = next(turns, None)
                        messages = [] if turn is None else turn.messages()
                    except Exception as caught:  # raised later, after the preceding batches
                        error = caught
                        sender.fail(
                            "[DataLoaderDispatcher] Process 0, which reads for all processes, "
                            "failed with " + in_one_line(error)
                        )
                        continue
                    if turn is None:
                        sender.end()
                    else:
                        sender.give(messages)
                        own.append((turn.slices[0].batch, turn.num_samples))
                if (facts := sender.next()) is None:
                    break
                yield *own.popleft(), facts
            if error is not None:
                raise error
        finally:
            # Otherwise an exception's traceback keeps these objects alive through this frame.
            del sender, error

    def _turns(self, position: LoopPosition, num_to_skip: int) -> Iterator[_Turn]:
        # Called inside the try block, because exceptions of a dataset must reach all processes.
        self.set_epoch(self.iteration)
        with self._as_begun(position):
            turns = self._dealt(self._counted(self._iterate()))
            if self._recorded is not None and num_to_skip == 0:
                self._recorded.epoch.draw()
            for _ in islice(turns, num_to_skip):
                pass
        ahead = ReadAhead(position, is_here=self.num_workers == 0)
        turn = ahead.read(turns)
        while turn is not None:
            yield turn
            turn = ahead.read(turns)

    def _dealt(self, iterator: Iterator[tuple[Any, BatchCounts]]) -> Iterator[_Turn]:
        dealer = self._dealer()
        cutter = _Cutter(dealer, self.state.num_processes, self.slice_fn)
        while dealer.num_turns(len(counted := list(islice(iterator, dealer.batches_per_turn)))):
            yield cutter.deal(counted)
