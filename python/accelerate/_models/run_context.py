# SPDX-License-Identifier: Apache-2.0
"""The objects that an `Accelerator` has prepared and registered, for the modules that save and
load."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from accelerate import _C
from accelerate._state.values import ObjectState
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.scheduler import AcceleratedScheduler
from accelerate.state import AcceleratorState
from accelerate.utils.dataclasses import ProjectConfiguration

# The name of the object that lists Python's files in a checkpoint.
PYTHON_FILES = "python_parts"


class PythonFiles(ObjectState):
    """The files that Python has written to a checkpoint, by the object whose state they contain.
    Reading `weights` does not run code, but reading `pickles` may. C++ also reads
    `weights.OBJECT.file`, to report files that it cannot load."""

    def __init__(self) -> None:
        super().__init__(lambda: None, lambda _: None)
        self.weights: dict[str, str] = {}
        self.pickles: dict[str, str] = {}

    def state_dict(self) -> dict[str, Any]:
        return {
            f"{kind}.{name}.file": file
            for kind, files in (("weights", self.weights), ("pickles", self.pickles))
            for name, file in files.items()
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


@dataclass(eq=False)
class RunContext:
    """Data that an `Accelerator` creates, fills in, and shares with the modules that need it."""

    project: ProjectConfiguration
    # Whether each machine has its own disks.
    saves_on_each_node: bool
    # Set when the processes are connected.
    state: AcceleratorState = field(init=False)
    run: _C.TrainingRun = field(init=False)
    is_sharded: bool = False
    has_own_engine: bool = False
    # The user's modules, and the modules that `prepare` has returned for them.
    models: list[torch.nn.Module] = field(default_factory=list)
    prepared_models: list[torch.nn.Module] = field(default_factory=list)
    optimizers: list[AcceleratedOptimizer] = field(default_factory=list)
    schedulers: list[AcceleratedScheduler] = field(default_factory=list)
    loaders: list[Any] = field(default_factory=list)
    # Objects registered with the run. These lists own them, because the run's registry does not.
    states: list[ObjectState] = field(default_factory=list)
    custom_objects: list[Any] = field(default_factory=list)
    custom_states: list[ObjectState] = field(default_factory=list)
    python_files: PythonFiles = field(default_factory=PythonFiles)
    save_hooks: OrderedDict[int, Callable] = field(default_factory=OrderedDict)
    load_hooks: OrderedDict[int, Callable] = field(default_factory=OrderedDict)
    # `Accelerator.step`.
    step: int = 0
    # Kinds of state that the current checkpoint does not contain.
    kinds_left_out: tuple[str, ...] = ()

    @property
    def is_writer(self) -> bool:
        """Whether this process writes the files that are common to all processes."""
        state = self.state
        return state.is_local_main_process if self.saves_on_each_node else state.is_main_process


def context_of_run(accelerator: Any) -> RunContext:
    return accelerator._context
