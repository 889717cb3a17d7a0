# SPDX-License-Identifier: Apache-2.0
"""Loops over prepared loaders. Contains the common base class of this package's loaders, and
`DataLoaderShard`, which reads the batches of one process. See `docs/guide_python.md`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from accelerate._base.verification import RECORDER, note_batch
from accelerate._loaders.batch_indices import RecordedIndices, count_samples, indices_in_turn
from accelerate._loaders.loop_positions import PlacedLoader, ReadAhead
from accelerate._loaders.settings import kept_settings
from accelerate._loaders.sharding import BatchCounts, CountingCollate, IterableDatasetShard
from accelerate.errors import UsageError
from accelerate.state import GradientState, PartialState
from accelerate.utils.imports import is_torchdata_stateful_dataloader_available
from accelerate.utils.operations import send_to_device
from accelerate.utils.random import synchronize_rng_states


def is_plain_cpu(batch: Any) -> bool:
    """Whether the batch is a plain container of CPU tensors, so that nothing has to move. To be
    quick, the check may return False for some of these containers."""
    kind = type(batch)
    items = batch.values() if kind is dict else batch if kind in (list, tuple) else (batch,)
    for item in items:
        if type(item) is not torch.Tensor or not item.is_cpu:
            return False
    return True


class DataLoaderStateMixin:
    """What a loader reports during a loop. `end_of_dataloader` says whether the current batch is
    the last one. `remainder` is the number of real samples of all processes in the last round, or
    -1 before that round or if it is unknown."""

    end_of_dataloader = False
    remainder = -1

    @property
    def gradient_state(self) -> GradientState:
        return GradientState()

    def reset(self) -> None:
        self.end_of_dataloader = False
        self.remainder = -1

    def begin(self) -> tuple[bool, int]:
        """Starts a loop. Returns the previous values, for `end`."""
        reported = self.end_of_dataloader, self.remainder
        self.reset()
        self.gradient_state._add_dataloader(self)
        return reported

    def end(self, reported: tuple[bool, int] | None = None) -> None:
        """Ends a loop. An outer loop over the same loader continues."""
        self.gradient_state._remove_dataloader(self)
        running = self.gradient_state.dataloader_references
        if reported is not None and any(loader is self for loader in running):
            self.end_of_dataloader, self.remainder = reported


class DataLoaderAdapter(PlacedLoader):
    """The base class of the loaders that `prepare` creates. It is torch's loader with the user's
    settings.

    The first `skip_batches` batches are read and dropped. `iteration` counts completed loops and is
    the epoch passed to samplers.
    """

    # Records the samples of each batch, either when torch takes the indices or when it collates.
    _recorded: RecordedIndices | None = None
    _is_counted = False
    # torchdata's class, if requested and installed.
    _stateful_kind: type[DataLoader] | None = None

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
        # All loaders of this package have `state_dict`, but user code checks this flag before it
        # calls `state_dict`.
        self.use_stateful_dataloader = use_stateful_dataloader
        if use_stateful_dataloader and is_torchdata_stateful_dataloader_available():
            from torchdata.stateful_dataloader import StatefulDataLoader

            self._stateful_kind = StatefulDataLoader
        self.skip_batches = skip_batches
        self._drop_last = _drop_last
        self._non_blocking = _non_blocking
        self._keep_position(iteration, skip_batches)

    @property
    def __class__(self) -> type:  # type: ignore[override]
        return self._stateful_kind or type(self)

    def __reduce_ex__(self, protocol: int) -> Any:
        # pickle rejects an object whose type is not its `__class__`, unless a function creates the
        # object.
        made, arguments, *rest = super().__reduce_ex__(protocol)
        return (_made_by, (made, arguments), *rest)

    def __getstate__(self) -> dict[str, Any]:
        # An open loop and its workers are not pickled.
        state = {**vars(self), "_iterator": None}
        if self._recorded is not None:
            state["_recorded"] = RecordedIndices(self._recorded.indices)
        return state

    @property
    def base_dataloader(self) -> DataLoader:
        """torch's (or torchdata's) loader for the same batches. If each process reads its own data,
        these are the batches of this process."""
        return (self._stateful_kind or DataLoader)(**kept_settings(self))

    def _count_batches(self) -> None:
        """Called by the constructor of a loader that uses `_counted`."""
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
        # torch's iterator keeps the loader's current collate function. The loader then gets the
        # user's function back.
        collate_fn = self.collate_fn
        self.collate_fn = CountingCollate(collate_fn, self.dataset)
        try:
            return super()._get_iterator()
        finally:
            self.collate_fn = collate_fn

    def _counted(self, iterator: Iterator) -> Iterator[tuple[Any, BatchCounts]]:
        """Yields the batches of a new torch iterator over this loader, with their counts."""
        if self._is_counted:
            return iterator
        if self._recorded is None:
            # The dataset makes its own batches, so the number of samples is unknown.
            return ((batch, BatchCounts(1, 1, -1)) for batch in iterator)
        indices = indices_in_turn(iterator, self._recorded.epoch.taken, self.in_order)
        return ((batch, count_samples(indices())) for batch in iterator)

    @property
    def _full_size(self) -> int:
        """The number of samples in a full batch of this process. 0 if it varies."""
        size = getattr(self._batches, "batch_size", None)
        if not isinstance(size, int):
            return 0
        if getattr(self._batches, "split_batches", False):
            size //= self._batches.num_processes
        return size * (1 if RECORDER is None else RECORDER.num_merged_ranks)

    @property
    def _batches(self) -> Any:
        return self.sampler if isinstance(self.sampler, BatchSampler) else self.batch_sampler

    def set_sampler(self, sampler: Any) -> None:
        """Replaces the sampler that determines the batches."""
        self._batches.sampler = sampler

    def set_epoch(self, epoch: int) -> None:
        """Passes the epoch to every sampler of this loader, and to the dataset."""
        if epoch != self.iteration:
            self._loops.forget()
            self._restored = None
        self.iteration = epoch
        level = self._batches
        while level is not None:
            # Check the class, because a skipping sampler forwards attributes of the inner one.
            if hasattr(type(level), "set_epoch"):
                level.set_epoch(epoch)
            inner = getattr(level, "batch_sampler", None)
            sampler = None if inner is not None else getattr(level, "sampler", None)
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(epoch)
            level = inner
        if hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(epoch)

    @property
    def total_dataset_length(self) -> int:
        """The number of samples in the whole dataset."""
        length = getattr(self.dataset, "total_length", None)
        return len(self.dataset) if length is None else length


class DataLoaderShard(DataLoaderAdapter, DataLoaderStateMixin):
    """A loader that returns this process's batches on its device.

    `rng_types` and `synchronized_generator` select generators that receive process 0's state at the
    start of a loop. Everything else works like torch's `DataLoader`.
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
            synchronize_rng_states(self.rng_types, self.synchronized_generator)
        reported = self.begin()
        self._num_loops += 1
        feed = self.gradient_state.step_state.open_feed(self._full_size)
        position = None
        try:
            self.set_epoch(self.iteration)
            position, num_passed = self._begin_loop()
            with self._as_begun(position):
                if self._recorded is not None:
                    self._recorded.num_skipped = num_passed
                # Persistent workers serve one loop. A concurrent loop gets its own workers.
                iterator = self._counted(
                    self._iterate() if self._num_loops == 1 else self._get_iterator()
                )
                epoch = None if self._recorded is None else self._recorded.epoch
                if epoch is not None:
                    self._check_replay(position, epoch.draw())
                num_to_read = self.skip_batches + (num_passed if self._recorded is None else 0)
                for _ in islice(iterator, num_to_read):
                    pass
            move = self._placer()
            ahead = ReadAhead(position, is_here=self.num_workers == 0)
            upcoming = ahead.read(iterator)
            while upcoming is not None:
                batch, counts = upcoming
                batch = move(batch)
                # Read one batch ahead to know whether the returned batch is the last one.
                upcoming = ahead.read(iterator)
                is_last = upcoming is None
                self.reset()
                if is_last:
                    self._end_with(counts)
                feed.hand_out(is_last, counts.num_samples, counts.num_real)
                self._hand_out(
                    position, is_last, None if epoch is None else epoch.digests.popleft()
                )
                note_batch(batch, counts.num_samples)
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
            self._num_loops -= 1
            self.end(reported)

    def _end_with(self, counts: BatchCounts) -> None:
        self.end_of_dataloader = True
        if counts.num_of_round is not None:
            self.remainder = counts.num_of_round
        elif PartialState().num_processes == 1:
            self.remainder = counts.num_real

    def _placer(self) -> Callable[[Any], Any]:
        """Returns a function that moves a batch to the device of this loader."""
        device, non_blocking = self.device, self._non_blocking
        if device is None:
            return lambda batch: batch
        if torch.device(device).type != "cpu":
            return lambda batch: send_to_device(batch, device, non_blocking=non_blocking)
        return lambda batch: batch if is_plain_cpu(batch) else send_to_device(batch, device)

    def __len__(self) -> int:
        return max(0, super().__len__() - self.skip_batches)

    @property
    def total_batch_size(self) -> int:
        """The number of samples per step over all processes."""
        is_shard = isinstance(self.dataset, IterableDatasetShard)
        dealt = self.dataset if is_shard else self._batches
        if getattr(dealt, "split_batches", False):
            return dealt.batch_size
        return dealt.batch_size * getattr(dealt, "num_processes", 1)


def _made_by(function: Callable[..., Any], arguments: tuple) -> Any:
    return function(*arguments)


def refuse_device_mesh(torch_device_mesh: Any) -> None:
    if torch_device_mesh is not None:
        raise UsageError(
            "[prepare_data_loader] torch_device_mesh is not supported. Leave it out to distribute "
            "the data across all processes"
        )
