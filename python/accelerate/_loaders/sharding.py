# SPDX-License-Identifier: Apache-2.0
"""Samplers and the sharded iterable dataset, which determine the samples in each batch of this
process.

C++ computes positions (`accelerate/data/samplers.h`). These classes only fetch the items at these
positions. See `docs/guide_python.md`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from typing import Any, NamedTuple

import torch
from torch.utils.data import BatchSampler, IterableDataset, RandomSampler

from accelerate import _C
from accelerate._base.verification import note_round
from accelerate.errors import UsageError


class DealtBatch(list):
    """One process's batch of a round. Its first `num_real` samples are real, and the others are
    repeats that complete the batch. `num_of_round` counts the real samples in the batches of all
    processes. Loaders read these numbers from the batch itself, so other samplers may wrap this
    one."""

    def __init__(self, samples: Iterable, num_real: int, num_of_round: int):
        super().__init__(samples)
        self.num_real = num_real
        self.num_of_round = num_of_round


def own_range(shard: _C.IterableShard) -> slice:
    """Returns the positions of this rank's units in a full round."""
    mine = [position for position in range(shard.round_size) if shard.is_mine(position)]
    return slice(mine[0], mine[-1] + 1)


def take_rounds(
    stream: Iterator, shard: _C.IterableShard, count: Callable[[list], int] = len
) -> Iterator[tuple[list, int, int]]:
    """Yields, for each round, this rank's units, how many of them are real, and the `count` of all
    units that were read for the round. Reads at most one round ahead, so endless streams work."""
    size = shard.round_size
    own = own_range(shard)
    first: list = []
    num_done = 0
    while len(units := list(islice(stream, size))) == size:
        if num_done == 0 and shard.is_repeated(0):
            first = units
        num_done += size
        note_round(units)
        yield units[own], own.stop - own.start, count(units)
    positions, num_real = shard.last_batch(num_done + len(units))
    if positions:
        last = [first[p] if p < num_done else units[p - num_done] for p in positions]
        yield last, num_real, count(units)


class SeedableRandomSampler(RandomSampler):
    """A `RandomSampler` whose order depends only on `data_seed` (default: torch's initial seed)
    plus `epoch`, which every complete pass increments."""

    def __init__(self, *args: Any, data_seed: int | None = None, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.initial_seed = torch.random.initial_seed() if data_seed is None else data_seed
        self.epoch = 0

    def __iter__(self) -> Iterator[int]:
        if self.generator is None and not self.replacement and self._num_samples is None:
            seed = self.initial_seed % 2**64
            yield from _C.random_order(len(self.data_source), seed, self.epoch)
        else:
            if self.generator is None:
                self.generator = torch.Generator(device=torch.get_default_device())
            self.generator.manual_seed(self.initial_seed + self.epoch)
            yield from super().__iter__()
        self.set_epoch(self.epoch + 1)

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


class _OverBatches(BatchSampler):
    """A batch sampler on top of another one, `batch_sampler`."""

    batch_sampler: BatchSampler

    @property
    def sampler(self) -> Any:
        """The sampler of the inner batch sampler."""
        return self.batch_sampler.sampler

    @sampler.setter
    def sampler(self, sampler: Any) -> None:
        self.batch_sampler.sampler = sampler

    @property
    def total_length(self) -> int:
        """The number of batches of the inner batch sampler."""
        return len(self.batch_sampler)


def are_of_one_size(batches: Any) -> bool:
    """Whether torch's own batch sampler creates the batches, so that samples can be counted."""
    while isinstance(batches, _OverBatches):
        batches = batches.batch_sampler
    return type(batches) is BatchSampler


class BatchSamplerShard(_OverBatches):
    """The batches of one process, out of all batches of `batch_sampler`.

    Processes take whole batches in turn, or an equal share of each batch (`split_batches`). If the
    last batches do not fill a round of all processes, they are dropped (`drop_last` of the batch
    sampler), completed with samples from the beginning (`even_batches`), or left uneven. A batch
    sampler without `batch_size` may have batches of varying size. Whole batches are then repeated.
    """

    def __init__(
        self,
        batch_sampler: BatchSampler,
        num_processes: int = 1,
        process_index: int = 0,
        split_batches: bool = False,
        even_batches: bool = True,
    ):
        self.batch_sampler = batch_sampler
        self.num_processes = num_processes
        self.process_index = process_index
        self.split_batches = split_batches
        self.even_batches = even_batches
        # Samples to skip before the first round, or batches if their size may vary.
        self.num_left_out = 0
        self.batch_size = getattr(batch_sampler, "batch_size", None)
        self.drop_last = getattr(batch_sampler, "drop_last", False)
        if split_batches and self.batch_size is None:
            raise UsageError(
                "[BatchSamplerShard] split_batches needs batches of equal size, but "
                f"{type(batch_sampler).__name__} has no batch_size. Pass split_batches=False"
            )
        self._shard()

    def _shard(self, of_whole_batches: bool = False) -> _C.IterableShard:
        return _C.IterableShard(
            batch_size=1 if of_whole_batches or self.batch_size is None else self.batch_size,
            drop_last=self.drop_last,
            even_batches=self.even_batches,
            split_batches=self.split_batches and not of_whole_batches,
            rank=self.process_index,
            world_size=self.num_processes,
        )

    def __len__(self) -> int:
        if not self.split_batches:
            return self._shard(of_whole_batches=True).size(len(self.batch_sampler))
        if type(self.batch_sampler) is BatchSampler:
            return self._shard().size(len(self.batch_sampler.sampler))
        return len(self.batch_sampler)

    def __iter__(self) -> Iterator[list[int]]:
        # Batches of varying size are distributed unchanged. If nothing is repeated, batch samplers
        # with a constant size need no special case.
        is_own = type(self.batch_sampler) is not BatchSampler
        is_left_uneven = is_own and not self.even_batches and not self.split_batches
        if self.batch_size is None or is_left_uneven:
            shard = self._shard(of_whole_batches=True)
            for (batch,), num_real, num_of_round in take_rounds(
                islice(self.batch_sampler, self.num_left_out, None),
                shard,
                lambda batches: sum(map(len, batches)),
            ):
                yield DealtBatch(batch, len(batch) if num_real else 0, num_of_round)
        else:
            unit = 1 if are_of_one_size(self) else self.batch_size
            samples = islice(self._samples(), self.num_left_out * unit, None)
            for dealt in take_rounds(samples, self._shard()):
                yield DealtBatch(*dealt)

    def _samples(self) -> Iterator[int]:
        # A subclass may group samples differently, so only torch's own class is bypassed.
        if type(self.batch_sampler) is BatchSampler:
            return iter(self.batch_sampler.sampler)
        return chain.from_iterable(self._full_batches())

    def _full_batches(self) -> Iterator[list[int]]:
        size = self.batch_size
        for number, batch in enumerate(self.batch_sampler):
            # Only the last batch may be short, so earlier ones must be full.
            if size != self.batch_size:
                raise self._uneven(number - 1, size)
            size = len(batch)
            if size > self.batch_size:
                raise self._uneven(number, size)
            yield batch

    def _uneven(self, number: int, size: int) -> UsageError:
        return UsageError(
            f"[BatchSamplerShard] Batch {number} of {type(self.batch_sampler).__name__} has {size} "
            f"samples, but its batch_size is {self.batch_size}. Remove the batch_size attribute if "
            "batches vary in size"
        )


class SkipBatchSampler(_OverBatches):
    """The batches of another batch sampler without the first `skip_batches`."""

    def __init__(self, batch_sampler: BatchSampler, skip_batches: int = 0):
        self.batch_sampler = batch_sampler
        self.skip_batches = skip_batches

    def __getattr__(self, name: str) -> Any:
        if name == "batch_sampler":  # not set yet during unpickling
            raise AttributeError(name)
        return getattr(self.batch_sampler, name)

    def __iter__(self) -> Iterator[list[int]]:
        return islice(iter(self.batch_sampler), self.skip_batches, None)

    def __len__(self) -> int:
        return max(0, len(self.batch_sampler) - self.skip_batches)


class SkipBetween(SkipBatchSampler):
    """The batches of another batch sampler, except for the `skip_batches` batches that follow the
    first `num_first`."""

    def __init__(self, batch_sampler: BatchSampler, num_first: int, skip_batches: int):
        super().__init__(batch_sampler, skip_batches)
        self.num_first = num_first

    def __iter__(self) -> Iterator[list[int]]:
        batches = iter(self.batch_sampler)
        yield from islice(batches, self.num_first)
        yield from islice(batches, self.skip_batches, None)


class IterableDatasetShard(IterableDataset):
    """The elements of one process, out of all elements of `dataset`. Every process reads all of
    them.

    `batch_size` is the size for one process, or for all processes together with `split_batches`.
    An incomplete round at the end is dropped (`drop_last`), or completed with elements from the
    beginning.
    """

    def __init__(
        self,
        dataset: IterableDataset,
        batch_size: int = 1,
        drop_last: bool = False,
        num_processes: int = 1,
        process_index: int = 0,
        split_batches: bool = False,
    ):
        self.dataset = dataset
        self.batch_size = batch_size
        self.drop_last = drop_last
        self.num_processes = num_processes
        self.process_index = process_index
        self.split_batches = split_batches
        self.epoch = 0
        self._num_repeated = 0
        self._num_of_round = 0
        self._shard()

    def _shard(self) -> _C.IterableShard:
        return _C.IterableShard(
            batch_size=self.batch_size,
            drop_last=self.drop_last,
            even_batches=True,
            split_batches=self.split_batches,
            rank=self.process_index,
            world_size=self.num_processes,
        )

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch
        if hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(epoch)

    @property
    def total_length(self) -> int:
        """The number of elements of the inner dataset."""
        return len(self.dataset)

    @property
    def per_process_batch_size(self) -> int:
        own = own_range(self._shard())
        return own.stop - own.start

    def __len__(self) -> int:
        return self._shard().size(len(self.dataset)) * self.per_process_batch_size

    def __iter__(self) -> Iterator[Any]:
        generator = getattr(self.dataset, "generator", None)
        if isinstance(generator, torch.Generator) and not hasattr(self.dataset, "set_epoch"):
            generator.manual_seed(self.epoch)
        self._num_repeated = 0
        for elements, num_real, num_of_round in take_rounds(iter(self.dataset), self._shard()):
            self._num_of_round = num_of_round
            yield from elements[:num_real]
            for element in elements[num_real:]:
                self._num_repeated += 1
                yield element

    def take_counts(self) -> tuple[int, int]:
        """Returns how many elements since the last call were repeats, and how many elements of the
        current round, over all processes, are real."""
        num_repeated, self._num_repeated = self._num_repeated, 0
        return num_repeated, self._num_of_round


class BatchCounts(NamedTuple):
    """What a loader knows about a batch: the number of its samples, how many of them are real, and
    the number of real samples over all processes in the same round. The last number is -1 if it is
    unknown, and None if the batch was not distributed. Samples that are not real are repeats that
    complete the batch."""

    num_samples: int
    num_real: int
    num_of_round: int | None


class CountingCollate:
    """Collates elements of an iterable dataset and returns the batch and its counts. It must run in
    the process that reads the elements, for example in a worker, directly after reading them."""

    def __init__(self, collate_fn: Callable, dataset: IterableDataset):
        self.collate_fn = collate_fn
        self.shard = dataset if isinstance(dataset, IterableDatasetShard) else None

    def __call__(self, elements: list) -> tuple[Any, BatchCounts]:
        num_repeated, num_of_round = (0, None) if self.shard is None else self.shard.take_counts()
        num_real = len(elements) - num_repeated
        return self.collate_fn(elements), BatchCounts(len(elements), num_real, num_of_round)
