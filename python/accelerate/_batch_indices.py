# SPDX-License-Identifier: Apache-2.0
"""Which samples make up the batch of a loop's turn, however many are read ahead."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, count, islice
from typing import Any

from torch.utils.data import BatchSampler, DataLoader

from accelerate._sharding import BatchCounts, DealtBatch


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
        # Of what was skipped; not known before the first index was asked for.
        self._digest_of_skipped: int | None = None
        self._is_drawn = False
        self.taken: deque = deque()
        self.digests: deque = deque()

    def draw(self) -> int | None:
        """Samplers draw when the first index is asked for, which is now. Gives the digest of what
        is skipped, also where workers have asked before."""
        if not self._is_drawn:
            self._is_drawn = True
            for batch in islice(self._indices, self._num_skipped):
                self._add(batch)
            self._digest_of_skipped = self._digest
            self._indices = chain(list(islice(self._indices, 1)), self._indices)
        return self._digest_of_skipped

    def _add(self, batch: Any) -> None:
        # Numbers have the same hash in every process, others may not.
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
