# SPDX-License-Identifier: Apache-2.0
"""The members of `Accelerator` that describe the processes of a run, or that run functions on some
of them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from accelerate.state import AcceleratorState, PartialState
from accelerate.utils.dataclasses import DistributedType


class Processes:
    """The part of an `Accelerator` that knows the rank of this process."""

    state: AcceleratorState

    @property
    def device(self) -> torch.device:
        """The device of this process."""
        return self.state.device

    @property
    def distributed_type(self) -> DistributedType:
        return self.state.distributed_type

    @property
    def num_processes(self) -> int:
        """The number of processes that train together."""
        return self.state.num_processes

    @property
    def process_index(self) -> int:
        """The index of this process among all processes, from 0."""
        return self.state.process_index

    @property
    def local_process_index(self) -> int:
        """The index of this process on its machine, from 0."""
        return self.state.local_process_index

    @property
    def is_main_process(self) -> bool:
        return self.state.is_main_process

    @property
    def is_local_main_process(self) -> bool:
        return self.state.is_local_main_process

    @property
    def is_last_process(self) -> bool:
        return self.state.is_last_process

    @property
    def use_distributed(self) -> bool:
        return self.state.use_distributed

    @property
    def multi_device(self) -> bool:
        """Whether several processes train on devices other than the CPU."""
        return self.use_distributed and self.distributed_type != DistributedType.MULTI_CPU

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Prints once per machine."""
        self.state.print(*args, **kwargs)

    def wait_for_everyone(self) -> None:
        """Waits until all processes have called it."""
        self.state.wait_for_everyone()

    def main_process_first(self) -> AbstractContextManager[None]:
        """Runs the block on the main process before the other processes."""
        return self.state.main_process_first()

    def local_main_process_first(self) -> AbstractContextManager[None]:
        """Runs the block on the first process of each machine before the other processes of that
        machine."""
        return self.state.local_main_process_first()

    def on_main_process(self, function: Callable | None = None) -> Callable:
        """Runs the function only on the main process. Returns None on other processes."""
        return PartialState().on_main_process(function)

    def on_local_main_process(self, function: Callable | None = None) -> Callable:
        """Runs the function once per machine."""
        return PartialState().on_local_main_process(function)

    def on_last_process(self, function: Callable) -> Callable:
        """Runs the function only on the last process."""
        return PartialState().on_last_process(function)

    def on_process(
        self, function: Callable | None = None, process_index: int | None = None
    ) -> Callable:
        """Runs the function only on the process with this index."""
        return PartialState().on_process(function, process_index)

    def on_local_process(
        self, function: Callable | None = None, local_process_index: int | None = None
    ) -> Callable:
        """Runs the function only on processes with this index on their machine."""
        return PartialState().on_local_process(function, local_process_index)

    def split_between_processes(
        self, inputs: Any, apply_padding: bool = False
    ) -> AbstractContextManager[Any]:
        """See `PartialState.split_between_processes`."""
        return PartialState().split_between_processes(inputs, apply_padding)
