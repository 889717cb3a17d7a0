# SPDX-License-Identifier: Apache-2.0
"""The settings that a loader keeps when it reads different batches of the same data."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader, IterableDataset

# Settings that do not determine which samples are in a batch.
_KEPT_SETTINGS = (
    "num_workers",
    "collate_fn",
    "pin_memory",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "generator",
    "prefetch_factor",
    "persistent_workers",
    "pin_memory_device",
    "in_order",
)


def kept_settings(dataloader: DataLoader) -> dict[str, Any]:
    """Returns the arguments of a loader for the same data in the same batches."""
    settings = {name: getattr(dataloader, name) for name in _KEPT_SETTINGS}
    settings["dataset"] = dataloader.dataset
    if isinstance(dataloader.dataset, IterableDataset):
        settings |= {"batch_size": dataloader.batch_size, "drop_last": dataloader.drop_last}
    elif dataloader.batch_sampler is None:
        settings |= {"batch_size": None, "sampler": dataloader.sampler}
    else:
        settings["batch_sampler"] = dataloader.batch_sampler
    return settings
