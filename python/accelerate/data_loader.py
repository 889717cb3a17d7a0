# SPDX-License-Identifier: Apache-2.0
"""Turns a `DataLoader` into one that returns the batches of this process, on its device.

`Accelerator.prepare` calls `prepare_data_loader`. See `docs/guide_python.md`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler

from accelerate._base import debug as _debug
from accelerate._base.checked_values import checked_argument, described, whole_number
from accelerate._base.verification import RECORDER
from accelerate._loaders.batch_indices import get_sampler
from accelerate._loaders.dispatch import DataLoaderDispatcher
from accelerate._loaders.prepared_loader import (
    DataLoaderAdapter,
    DataLoaderShard,
    DataLoaderStateMixin,
    refuse_device_mesh,
)
from accelerate._loaders.settings import kept_settings
from accelerate._loaders.sharding import (
    BatchSamplerShard,
    IterableDatasetShard,
    SeedableRandomSampler,
    SkipBatchSampler,
    SkipBetween,
)
from accelerate._placeholders import placeholders_for
from accelerate.errors import UsageError
from accelerate.state import PartialState
from accelerate.utils.operations import broadcast_object_list


def prepare_data_loader(
    dataloader: DataLoader,
    device: torch.device | None = None,
    num_processes: int | None = None,
    process_index: int | None = None,
    split_batches: bool = False,
    put_on_device: bool = False,
    rng_types: list | None = None,
    dispatch_batches: bool | None = None,
    even_batches: bool = True,
    slice_fn_for_dispatch: Callable | None = None,
    use_seedable_sampler: bool = False,
    data_seed: int | None = None,
    non_blocking: bool = False,
    use_stateful_dataloader: bool = False,
    torch_device_mesh: Any = None,
) -> DataLoader:
    """Returns a loader with the settings of `dataloader` that yields this process's batches.

    With `split_batches`, each batch is split into one share per process. Otherwise, each process
    gets whole batches. With `dispatch_batches`, process 0 reads for all processes. None enables
    this only for iterable datasets that are moved to a device. `even_batches` completes the last
    batches with samples from the beginning, so that all processes get the same number of batches.
    With `use_seedable_sampler`, the order depends only on `data_seed` and the epoch. Process 0's
    seed is used, so all processes must prepare such a loader together.

    A subclass of `DataLoader` is rebuilt from its settings, and the object's attributes are copied.
    Its own `__iter__` is not used, and a warning says so.
    """
    refuse_device_mesh(torch_device_mesh)
    if isinstance(dataloader, (DataLoaderShard, DataLoaderDispatcher)):
        return dataloader
    is_iterable = isinstance(dataloader.dataset, IterableDataset)
    if dispatch_batches is None:
        dispatch_batches = put_on_device and is_iterable
    if dispatch_batches and not put_on_device:
        raise UsageError(
            "[prepare_data_loader] dispatch_batches=True does not work with put_on_device=False, "
            "because process 0 sends batches to devices. Pass put_on_device=True"
        )
    state = PartialState()
    num_processes = state.num_processes if num_processes is None else num_processes
    process_index = state.process_index if process_index is None else process_index
    if RECORDER is not None and (RECORDER.is_reference or RECORDER.has_same_batches):
        process_index = 0
        dispatch_batches = False
        if RECORDER.is_reference:
            # Each batch contains the samples of all processes.
            num_processes = RECORDER.num_merged_ranks
    sampler = get_sampler(dataloader)
    if use_seedable_sampler and isinstance(sampler, RandomSampler):
        sampler = _seedable(sampler, data_seed)
    if isinstance(sampler, SeedableRandomSampler):
        # If processes had different orders, their shards would miss samples.
        (sampler.initial_seed,) = broadcast_object_list([sampler.initial_seed])
    settings = kept_settings(dataloader)
    synchronized_generator = None
    if dispatch_batches:
        _check_split(dataloader, split_batches, num_processes)
        del settings["generator"]
    elif num_processes > 1:
        synchronized_generator = _shared_generator(dataloader, sampler)
        _shard(settings, dataloader, num_processes, process_index, split_batches, even_batches)
    if rng_types is not None and synchronized_generator is None:
        rng_types = [kind for kind in rng_types if kind != "generator"]
    settings |= {
        "use_stateful_dataloader": use_stateful_dataloader,
        "_drop_last": dataloader.drop_last,
        "_non_blocking": non_blocking,
    }
    if dispatch_batches:
        prepared = DataLoaderDispatcher(
            **settings, split_batches=split_batches, slice_fn=slice_fn_for_dispatch
        )
    else:
        prepared = DataLoaderShard(
            **settings,
            device=device if put_on_device else None,
            rng_types=rng_types,
            synchronized_generator=synchronized_generator,
        )
    if isinstance(sampler, SeedableRandomSampler):
        prepared.set_sampler(sampler)
    _keep_what_the_user_added(dataloader, prepared)
    return prepared


def _seedable(sampler: RandomSampler, data_seed: int | None) -> SeedableRandomSampler:
    return SeedableRandomSampler(
        data_source=sampler.data_source,
        replacement=sampler.replacement,
        num_samples=sampler._num_samples,
        generator=sampler.generator,
        data_seed=data_seed,
    )


def _check_split(dataloader: DataLoader, split_batches: bool, num_processes: int) -> None:
    if not split_batches:
        return
    batch_size = dataloader.batch_size
    if batch_size is None:
        batch_size = getattr(dataloader.batch_sampler, "batch_size", None)
    if batch_size is None or (batch_size > 1 and batch_size % num_processes):
        raise UsageError(
            f"[prepare_data_loader] With split_batches, the batch size {batch_size} must be a "
            f"multiple of {num_processes}, the number of processes"
        )


def _shared_generator(dataloader: DataLoader, sampler: Any) -> torch.Generator | None:
    """Returns the generator that determines the order. It must have the same state on all
    processes."""
    if isinstance(dataloader.dataset, IterableDataset):
        return getattr(dataloader.dataset, "generator", None)
    if isinstance(sampler, SeedableRandomSampler) or not hasattr(sampler, "generator"):
        return None
    if sampler.generator is None:
        sampler.generator = torch.Generator(device=torch.get_default_device())
        # Drawn as in the original, so that the order after `set_seed` is the same.
        seed = int(torch.empty((), dtype=torch.int64).random_().item())
        sampler.generator.manual_seed(seed)
    return sampler.generator


def _shard(
    settings: dict[str, Any],
    dataloader: DataLoader,
    num_processes: int,
    process_index: int,
    split_batches: bool,
    even_batches: bool,
) -> None:
    """Replaces the data with this process's share."""
    if not split_batches and _has_shards(dataloader.dataset, num_processes):
        # Each process reads its own files, so the numbers of batches may differ.
        if RECORDER is not None:
            RECORDER.note_obstacle(
                "Each process reads its own files of a streaming dataset, so a single process has "
                "different batches. Pass DataLoaderConfiguration(dispatch_batches=True) to compare",
                only_excuses=False,
            )
        settings["dataset"] = dataloader.dataset.shard(num_processes, process_index)
        return
    if dataloader.batch_size is not None or hasattr(dataloader.batch_sampler, "batch_size"):
        _check_split(dataloader, split_batches, num_processes)
    if isinstance(dataloader.dataset, IterableDataset):
        if dataloader.batch_size is None:
            raise UsageError(
                "[prepare_data_loader] An IterableDataset with batch_size=None cannot be "
                f"distributed across {num_processes} processes. Set a batch_size, or pass "
                "dispatch_batches=True"
            )
        shard = IterableDatasetShard(
            dataloader.dataset,
            dataloader.batch_size,
            dataloader.drop_last,
            num_processes,
            process_index,
            split_batches,
        )
        settings["dataset"] = shard
        settings["batch_size"] = shard.per_process_batch_size
        return
    is_batch_sampler = isinstance(dataloader.sampler, BatchSampler)
    if dataloader.batch_sampler is None and not is_batch_sampler:
        raise UsageError(
            "[prepare_data_loader] A loader with batch_size=None cannot be distributed across "
            f"{num_processes} processes. Set a batch_size, a batch_sampler or a BatchSampler as "
            "its sampler"
        )
    settings["sampler" if is_batch_sampler else "batch_sampler"] = BatchSamplerShard(
        dataloader.sampler if is_batch_sampler else dataloader.batch_sampler,
        num_processes,
        process_index,
        split_batches,
        even_batches,
    )


def _has_shards(dataset: Any, num_processes: int) -> bool:
    """Whether the dataset is a streaming dataset of the library `datasets` that can be divided into
    `num_processes` shards."""
    # If the library is not imported, the dataset cannot be one of its own.
    library = sys.modules.get("datasets")
    if library is None or not isinstance(dataset, library.IterableDataset):
        return False
    return dataset.n_shards >= num_processes


def _keep_what_the_user_added(dataloader: DataLoader, prepared: DataLoader) -> None:
    for name, value in vars(dataloader).items():
        if name not in vars(prepared) and not hasattr(type(prepared), name):
            setattr(prepared, name, value)
    # If the library is not imported, the loader cannot be one of its own.
    library = sys.modules.get("torchdata.stateful_dataloader")
    kinds = (DataLoader,) if library is None else (DataLoader, library.StatefulDataLoader)
    if all(type(dataloader).__iter__ is not kind.__iter__ for kind in kinds):
        _debug.warn(
            "[prepare_data_loader] The prepared loader does not call "
            f"{type(dataloader).__name__}.__iter__(). Move the code of this method into the dataset or "
            "the collate_fn",
            stacklevel=4,
        )


class SkipDataLoader(DataLoaderAdapter, DataLoaderStateMixin):
    """A loader that reads and drops the first `skip_batches` batches. `skip_first_batches` creates
    it for data that can only be read in order."""

    def __init__(self, dataset: Any, skip_batches: int = 0, **kwargs: Any):
        super().__init__(dataset, skip_batches=skip_batches, **kwargs)

    def __iter__(self) -> Iterator:
        self.begin()
        try:
            for index, batch in enumerate(super().__iter__()):
                if index >= self.skip_batches:
                    yield batch
        finally:
            self.end()

    def __len__(self) -> int:
        return max(0, super().__len__() - self.skip_batches)


def skip_first_batches(dataloader: DataLoader, num_batches: int = 0) -> DataLoader:
    """Returns a loader like this one that starts after the first `num_batches` batches, for example
    to resume in the middle of an epoch. Skipped samples are not read, unless the data can only be
    read in order."""
    if not hasattr(dataloader, "dataset"):
        raise UsageError(
            f"[skip_first_batches] The dataloader is {described(dataloader)}. Call "
            "skip_first_batches(dataloader, num_batches) with a torch.utils.data.DataLoader"
        )
    if isinstance(num_batches, torch.Tensor):
        num_batches = num_batches.item()
    num_batches = checked_argument(
        "skip_first_batches", "num_batches", num_batches, whole_number(0)
    )
    settings = kept_settings(dataloader)
    is_iterable = isinstance(dataloader.dataset, IterableDataset)
    num_read = getattr(dataloader, "skip_batches", 0) + (num_batches if is_iterable else 0)
    if not is_iterable:
        name = "sampler" if dataloader.batch_sampler is None else "batch_sampler"
        batches = getattr(dataloader, name)
        is_dispatcher = isinstance(dataloader, DataLoaderDispatcher)
        per_turn = dataloader._num_per_turn if is_dispatcher else 1
        if is_dispatcher and num_batches > 0 and dataloader._fills_up:
            # Read the first batches of the epoch too, because their samples complete the last
            # batch.
            num_skipped = num_read + num_batches - 1
            num_read = 1
            settings[name] = SkipBetween(batches, per_turn, num_skipped * per_turn)
        else:
            settings[name] = SkipBatchSampler(batches, num_batches * per_turn)
    if isinstance(dataloader, (DataLoaderShard, DataLoaderDispatcher)):
        settings |= {
            "use_stateful_dataloader": dataloader.use_stateful_dataloader,
            "skip_batches": num_read,
            "iteration": dataloader.iteration,
            "_drop_last": dataloader._drop_last,
            "_non_blocking": dataloader._non_blocking,
        }
    if isinstance(dataloader, DataLoaderDispatcher):
        rest = DataLoaderDispatcher(
            **settings, split_batches=dataloader.split_batches, slice_fn=dataloader.slice_fn
        )
    elif isinstance(dataloader, DataLoaderShard):
        rest = DataLoaderShard(
            **settings,
            device=dataloader.device,
            rng_types=dataloader.rng_types,
            synchronized_generator=dataloader.synchronized_generator,
        )
    elif is_iterable:
        return SkipDataLoader(**settings, skip_batches=num_batches)
    else:
        return DataLoader(**settings)
    rest._share_position(dataloader, num_batches)
    return rest


__getattr__ = placeholders_for(__name__)
