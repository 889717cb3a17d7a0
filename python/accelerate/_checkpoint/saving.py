# SPDX-License-Identifier: Apache-2.0
"""Saving and loading with an `Accelerator` (docs/guide_checkpoint.md); implemented in
`checkpoints`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch.utils.hooks import RemovableHandle

from accelerate import _C
from accelerate._base import debug as _debug
from accelerate._checkpoint import checkpoints as _checkpoints
from accelerate._models.run_context import PARTS, RunContext
from accelerate._process.processes import Processes
from accelerate._state import generators as _generators
from accelerate._state.values import ObjectState
from accelerate.checkpointing import is_original_checkpoint, log_loaded, log_saved
from accelerate.errors import AccelerateError, UsageError
from accelerate.logging import get_logger
from accelerate.scheduler import state_of, unprepared_schedulers
from accelerate.utils.constants import (
    SAFE_WEIGHTS_INDEX_NAME,
    SAFE_WEIGHTS_NAME,
    WEIGHTS_INDEX_NAME,
    WEIGHTS_NAME,
)
from accelerate.utils.dataclasses import ProjectConfiguration
from accelerate.utils.other import save

_log = get_logger("accelerate.accelerator")


class Saving(Processes):
    """The part of an `Accelerator` that saves and resumes runs."""

    unwrap_model: Callable[..., Any]
    end_training: Callable[[], None]
    step: int
    _mark: Callable[[str], None]
    _run: _C.TrainingRun
    _context: RunContext

    def _keep_project(
        self, config: ProjectConfiguration | None, project_dir: str | os.PathLike | None
    ) -> None:
        project = config or ProjectConfiguration(project_dir)
        if project_dir is not None and project.project_dir is None:
            project.set_directories(project_dir)
        self._context = RunContext(project, bool(project.save_on_each_node))

    def _keep_saved_state(self) -> None:
        """Registers state with the run, whose registry does not own it."""
        self._generators = ObjectState(
            lambda: _generators.take(("python", "numpy")), _generators.put
        )
        self._run.state.add("python_generators", self._generators, per_rank=True)
        self._run.state.add(PARTS, self._context.parts)

    def _keep_state(
        self,
        kind: str,
        value: Callable[[], Any],
        put: Callable[[Any], None],
        per_rank: bool = False,
    ) -> ObjectState:
        return self._keep(kind, ObjectState(value, put), per_rank)

    def _keep(self, kind: str, kept: ObjectState, per_rank: bool = False) -> ObjectState:
        kept.name = self._run.state.add(kind, kept, per_rank)
        return kept

    @property
    def project_configuration(self) -> ProjectConfiguration:
        return self._context.project

    @project_configuration.setter
    def project_configuration(self, value: ProjectConfiguration) -> None:
        self._context.project = value

    @property
    def project_dir(self) -> str | None:
        return self.project_configuration.project_dir

    @property
    def logging_dir(self) -> str | None:
        return self.project_configuration.logging_dir

    @property
    def save_iteration(self) -> int:
        """The number of the next automatically named checkpoint."""
        return self.project_configuration.iteration

    def save(self, obj: Any, f: Any, safe_serialization: bool = False) -> None:
        """As `torch.save`, on the main process only, or with `save_on_each_node` once per machine.
        With `safe_serialization`, writes a dictionary of tensors as a safetensors file."""
        save(obj, f, self._context.saves_on_each_node, safe_serialization)

    def get_state_dict(self, model: Any, unwrap: bool = True) -> dict[str, Any]:
        """The module's `state_dict`; names have no prefix, even without `unwrap`. If parameters are
        sharded, a collective that returns whole values on the main process and nothing on others.
        With `master_weights`, returns the master weights."""
        context = _checkpoints.context_of_model(self._context, model)
        if context is not None and (context.is_spread or context.weights is not None):
            keep = self._context.is_writer or not context.is_spread
            return _checkpoints.whole_state(self.unwrap_model(model), context, keep)
        return (self.unwrap_model(model) if unwrap else model).state_dict()

    def save_model(
        self,
        model: torch.nn.Module,
        save_directory: str | os.PathLike,
        max_shard_size: int | str = "10GB",
        safe_serialization: bool = True,
    ) -> None:
        """Writes the weights into a folder for `from_pretrained`, in files of at most
        `max_shard_size` with an index. Runs on the main process, or once per machine. If parameters
        are sharded, call it on all processes. No process then holds the whole model, unless its
        `state_dict` contains anything besides its parameters and buffers, or files are pickles
        (`safe_serialization=False`)."""
        context = _checkpoints.context_of_model(self._context, model)
        is_spread = context is not None and context.is_spread
        if context is not None and is_spread and safe_serialization:
            module = self.unwrap_model(model)
            names = _checkpoints.names_of_plain_state(module)
            if names is not None:
                max_bytes = _C.parse_size(str(max_shard_size))
                self._run.save_model(context, os.fspath(save_directory), max_bytes, names)
                _log_saved_model(Path(save_directory), max_shard_size, safe_serialization)
                return
        state = self.get_state_dict(model) if self._context.is_writer or is_spread else {}
        if self._context.is_writer:
            _checkpoints.save_model(state, Path(save_directory), max_shard_size, safe_serialization)
        _log_saved_model(Path(save_directory), max_shard_size, safe_serialization)

    def register_for_checkpointing(self, *objects: Any) -> None:
        """Also saves and loads the state of these objects, with their `state_dict` and
        `load_state_dict`. Register the same ones in the same order before `load_state`."""
        invalid = [
            type(obj).__name__
            for obj in objects
            if not hasattr(obj, "state_dict") or not hasattr(obj, "load_state_dict")
        ]
        if invalid:
            raise UsageError(
                f"[register_for_checkpointing] {', '.join(invalid)} cannot be saved. Register objects "
                "with state_dict() and load_state_dict()"
            )
        for obj in objects:
            self._context.custom_objects.append(obj)
            self._context.custom_states.append(
                self._keep_state("python_custom", obj.state_dict, obj.load_state_dict)
            )

    def register_save_state_pre_hook(self, hook: Callable[..., None]) -> RemovableHandle:
        """`hook(models, weights, folder)` runs in `save_state` before anything is written. It may
        write into the folder, which has a temporary name until the checkpoint is complete, and
        remove weights that it has saved itself from the list. Call `remove()` of the handle to
        unregister it."""
        handle = RemovableHandle(self._context.save_hooks)
        self._context.save_hooks[handle.id] = hook
        return handle

    def register_load_state_pre_hook(self, hook: Callable[..., None]) -> RemovableHandle:
        """`hook(models, folder)` runs in `load_state` before anything is loaded, and removes models
        that it has loaded itself from the list."""
        handle = RemovableHandle(self._context.load_hooks)
        self._context.load_hooks[handle.id] = hook
        return handle

    def save_state(
        self,
        output_dir: str | os.PathLike | None = None,
        safe_serialization: bool = True,
        *,
        layout: str | None = None,
        asynchronous: bool = False,
        **save_model_func_kwargs: Any,
    ) -> Path:
        """Saves everything needed to resume, and returns the folder.

        The folder gets its name when the main process's files are complete; other processes add
        their own without waiting. It may therefore be called on the main process alone, unless
        models are sharded: then all processes must call it. With automatic naming, the folder is
        `project_dir/checkpoints/checkpoint_N`, where N counts the saves of the main process.
        `safe_serialization=False` writes weights with `torch.save`. `layout="accelerate"` writes
        what Hugging Face Accelerate loads. `asynchronous` returns when everything is copied to the
        host, and writes in the background; see `wait_for_save` and docs/guide_checkpoint.md."""
        if layout not in (None, "accelerate"):
            raise UsageError(
                f"[save_state] layout={layout!r} is not supported. Use None (this package's layout) or "
                "'accelerate' (Hugging Face Accelerate's)"
            )
        if save_model_func_kwargs:
            _debug.warn(
                f"[save_state] {', '.join(save_model_func_kwargs)} has no effect here. Leave it out",
                stacklevel=2,
            )
        if layout is not None and asynchronous:
            raise UsageError(
                "[save_state] layout='accelerate' cannot be saved asynchronously. Leave out "
                "asynchronous=True or the layout"
            )
        if self._context.is_sharded and (layout is not None or not safe_serialization):
            raise UsageError(
                "[save_state] Sharded models cannot be saved with layout='accelerate' or "
                "safe_serialization=False. Leave them out, or use save_model() or get_state_dict() "
                "for whole weights"
            )
        self.wait_for_save()
        folder = _checkpoints.folder_to_save(self._context, output_dir, layout)
        _log.info(f"Saving current state to {folder}")
        if layout is None:
            with self._unprepared_schedulers():
                _checkpoints.save(self._context, folder, safe_serialization, asynchronous)
            if not asynchronous:
                self._log_saved(folder)
        else:
            _checkpoints.save_as_original(self._context, folder, safe_serialization)
        self.project_configuration.iteration += 1
        self._mark("checkpoint")
        return folder

    def _log_saved(self, folder: Path) -> None:
        """What has a file of its own, which state without tensors and shards have not."""
        for name in self._run.state.names():
            path = folder / self._context.parts.weights.get(name, f"{name}.safetensors")
            kind = name.partition("_")[0]
            if kind in ("model", "optimizer", "scheduler"):
                log_saved(kind, path if path.exists() else folder)
        log_saved("generators", folder)

    @contextmanager
    def _unprepared_schedulers(self) -> Iterator[None]:
        """Inside the block, checkpoints include schedulers that were not prepared but drive a
        prepared optimizer. They may be missing in a checkpoint or in a run."""
        found = unprepared_schedulers(self._context.optimizers, self._context.schedulers)
        states = [state_of(scheduler) for scheduler in found]
        for kept in states:
            kept.name = self._run.state.add_optional("scheduler", kept)
        self._context.states += states
        try:
            yield
        finally:
            del self._context.states[len(self._context.states) - len(states) :]

    def wait_for_save(self) -> None:
        """Blocks until asynchronous saves have finished. Raises the error of a failed save once,
        here or in the next `save_state`, `load_state` or `end_training`. The end of a process waits
        too, but can only print the error."""
        self._run.wait_for_save()

    def should_stop(self) -> bool:
        """Whether the run was asked to end soon, by SIGTERM or SIGUSR1 to one of its processes or
        to the launcher; true on all processes at the same step. Collective. After the first call,
        the two signals no longer end the process, unless the program handles them itself. Before
        that, a signal to the process ends it; the launcher holds back its own until the first call,
        for at most half of `--grace_seconds`."""
        return self._run.should_stop()

    def save_and_leave(self, output_dir: str | os.PathLike | None = None) -> NoReturn:
        """Saves and ends the process with an exit code that makes the launcher restart the job
        without counting a failure. The new processes resume with `load_state("latest")`. The
        default of `output_dir` is the next folder in `project_dir/checkpoints`."""
        try:
            self.wait_for_save()
        except AccelerateError as error:
            print(error, file=sys.stderr)  # This process may still succeed.
        if output_dir is None:
            output_dir = _checkpoints.folder_to_leave(self._context)
        self.save_state(output_dir)
        # When the first process exits, the others are stopped.
        self.wait_for_everyone()
        self.end_training()
        sys.exit(_C.EXIT_PREEMPTED)

    def load_state(
        self,
        input_dir: str | os.PathLike | None = None,
        load_kwargs: dict[str, Any] | None = None,
        *,
        allow_pickle: bool = False,
        restore_loaders: bool | None = None,
        **load_model_func_kwargs: Any,
    ) -> None:
        """Resumes from a checkpoint of this package or of Hugging Face Accelerate; prepare and
        register the same objects before. Call it on all processes. It waits for saves in progress,
        and changes nothing unless every process can load: if one cannot, all of them raise the same
        error.

        `input_dir` is a folder; "latest" is the newest complete checkpoint in
        `project_dir/checkpoints`, as is None with automatic naming. The next loop over a loader
        runs the epoch of the save in its order, from its first batch: call `skip_first_batches`, or
        pass `restore_loaders=True` to resume at the position of a running loop. None does so only
        for loaders with `use_stateful_dataloader`. `allow_pickle` loads objects that only a pickle
        can store, which may run any code. Other arguments go to the models' `load_state_dict`."""
        # A process that has written its files may be ahead of the main process.
        self._run.wait_for_saves_of_all()
        folder = _checkpoints.folder_to_load(self._context, input_dir)
        _log.info(f"Loading states from {folder}")
        # The device on which tensors are loaded before they are copied; not needed here.
        load_model_func_kwargs.pop("map_location", None)

        def find_layout() -> bool:
            if _C.is_checkpoint(str(folder)):
                return True
            if is_original_checkpoint(folder):
                return False
            raise UsageError(
                f"[load_state] {folder} is not a complete checkpoint: it has neither checkpoint.json "
                "nor Hugging Face Accelerate's random_states_0.pkl"
            )

        if _checkpoints.together(self._context, find_layout):
            with self._unprepared_schedulers():
                self.step = _checkpoints.load_ours(
                    self._context,
                    folder,
                    allow_pickle,
                    restore_loaders,
                    load_kwargs or {},
                    load_model_func_kwargs,
                )
            log_loaded("scaler" in self._run.state.names())
        else:
            self.step = _checkpoints.load_original(
                self._context, folder, allow_pickle, load_kwargs or {}, load_model_func_kwargs
            )
        _checkpoints.go_on_counting(self._context, folder)


def _log_saved_model(folder: Path, max_shard_size: int | str, is_safe: bool) -> None:
    weights, index = (
        (SAFE_WEIGHTS_NAME, SAFE_WEIGHTS_INDEX_NAME)
        if is_safe
        else (WEIGHTS_NAME, WEIGHTS_INDEX_NAME)
    )
    if (folder / index).exists():
        _log.info(
            f"The model is bigger than the maximum size per checkpoint ({max_shard_size}) and is "
            "split in checkpoint shards. You can find where each parameters has been saved in the "
            f"index located at {folder / index}."
        )
    else:
        _log.info(f"Model weights saved in {folder / weights}")
