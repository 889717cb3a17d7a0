# SPDX-License-Identifier: Apache-2.0
"""The indices of the samples in the current batch of a loop, even if workers have read ahead."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, count, islice
from typing import Any

from torch.utils.data import BatchSampler, DataLoader

from accelerate._loaders.sharding import BatchCounts, DealtBatch


def get_sampler(dataloader: DataLoader) -> Any:
    """Returns the sampler that determines a loader's batches, or None if the loader uses no
    sampler."""
    sampler = dataloader.sampler
    batches = sampler if isinstance(sampler, BatchSampler) else dataloader.batch_sampler
    return getattr(batches, "sampler", None)


class RecordedIndices:
    """Passes the indices of a loader's sampler to torch and remembers them, so that the loop knows
    which samples are in its current batch, even if workers have read ahead. Each new epoch skips
    the first `num_skipped` batches, or all batches while `held_back` is set."""

    def __init__(self, indices: Iterable):
        self.indices = indices
        self.num_skipped = 0
        self.held_back = False
        self.epoch = _EpochIndices(iter(()))

    def __len__(self) -> int:
        return len(self.indices)

    def __iter__(self) -> Iterator:
        # Use a new queue per epoch, because an older loop may still use its own.
        indices = iter(()) if self.held_back else iter(self.indices)
        self.epoch = _EpochIndices(indices, self.num_skipped)
        return self.epoch


class _EpochIndices(Iterator):
    """The indices of one epoch, after its first `num_skipped` batches. `taken` holds the batches
    that torch has received but the loop has not. For each of these batches, `digests` holds a hash
    of the batch and all earlier batches."""

    def __init__(self, indices: Iterator, num_skipped: int = 0):
        self._indices = indices
        self._num_skipped = num_skipped
        self._digest: int | None = 0
        # The digest of the skipped batches. Unknown until the first index is requested.
        self._digest_of_skipped: int | None = None
        self._is_drawn = False
        self.taken: deque = deque()
        self.digests: deque = deque()

    def draw(self) -> int | None:
        """Requests the first index immediately, because samplers draw the order at this point.
        Returns the digest of the skipped batches, even if workers requested the first index
        earlier."""
        if not self._is_drawn:
            self._is_drawn = True
            for batch in islice(self._indices, self._num_skipped):
                self._add(batch)
            self._digest_of_skipped = self._digest
            self._indices = chain(list(islice(self._indices, 1)), self._indices)
        return self._digest_of_skipped

    def _add(self, batch: Any) -> None:
        # Hashes of integers are the same in every process. Hashes of other values may differ.
        if self._digest is not None:
            indices = batch if isinstance(batch, list) else (batch,)
            is_known = not indices or isinstance(indices[0], int)
            self._digest = hash((self._digest, *indices)) if is_known else None

    def __next__(self) -> Any:
        self.draw()
        batch = next(self._indices)
        self._add(batch)
        self.taken.append(batch)
        self.digests.append(self._digest)
        return batch[:] if type(batch) is DealtBatch else batch


class _TaskLog(dict):
    """torch's table of tasks for its workers. It remembers which task was returned last."""

    def pop(self, task: int) -> Any:
        self.last = task
        return super().pop(task)


def indices_in_turn(iterator: Any, taken: deque, in_order: bool) -> Callable[[], Any]:
    """Returns a function that returns the indices of the batch that `iterator` returned last."""
    if in_order or not hasattr(iterator, "_task_info"):
        return taken.popleft
    # Workers may overtake each other, but tasks are numbered in the order of `taken`.
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
