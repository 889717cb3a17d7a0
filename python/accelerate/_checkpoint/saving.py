# SPDX-License-Identifier: Apache-2.0
"""Saving and loading with an `Accelerator` (docs/guide_checkpoint.md). `checkpoints` contains the
implementation."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch.utils.hooks import RemovableHandle

from accelerate import _C
from accelerate._base import debug as _debug
from accelerate._base.verification import RECORDER
from accelerate._checkpoint import checkpoints as _checkpoints
from accelerate._models.run_context import PYTHON_FILES, RunContext
from accelerate._state import generators as _generators
from accelerate._state.values import ObjectState
from accelerate.checkpointing import is_original_checkpoint, log_loaded, log_saved
from accelerate.errors import UsageError
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


def new_context(
    config: ProjectConfiguration | None, project_dir: str | os.PathLike | None
) -> RunContext:
    project = config or ProjectConfiguration(project_dir)
    if project_dir is not None and project.project_dir is None:
        project.set_directories(project_dir)
    return RunContext(project, bool(project.save_on_each_node))


class Checkpoints:
    """The part of an `Accelerator` that saves and resumes runs. It calls `mark("checkpoint")` after
    a save."""

    def __init__(self, context: RunContext, mark: Callable[[str], None]) -> None:
        self._context = context
        self._run = context.run
        self._mark = mark
        # Keep a reference, because the run's registry does not own the object.
        self._generators = ObjectState(
            lambda: _generators.take(("python", "numpy")), _generators.put
        )
        self._run.state.add("python_generators", self._generators, per_rank=True)
        self._run.state.add(PYTHON_FILES, context.python_files)

    def keep_values(
        self,
        kind: str,
        value: Callable[[], Any],
        put: Callable[[Any], None],
        per_rank: bool = False,
    ) -> ObjectState:
        return self.keep(kind, ObjectState(value, put), per_rank)

    def keep(self, kind: str, kept: ObjectState, per_rank: bool = False) -> ObjectState:
        kept.name = self._run.state.add(kind, kept, per_rank)
        return kept

    def save(self, obj: Any, f: Any, safe_serialization: bool = False) -> None:
        """Like `torch.save`, but only on the main process, or once per machine with
        `save_on_each_node`. With `safe_serialization`, writes a dictionary of tensors as a
        safetensors file."""
        save(obj, f, self._context.saves_on_each_node, safe_serialization)

    def register_for_checkpointing(self, *objects: Any) -> None:
        """Also saves and loads the state of these objects, with their `state_dict` and
        `load_state_dict`. Before `load_state`, register the same objects in the same order."""
        invalid = [
            type(obj).__name__
            for obj in objects
            if not hasattr(obj, "state_dict") or not hasattr(obj, "load_state_dict")
        ]
        if invalid:
            raise UsageError(
                f"[register_for_checkpointing] {', '.join(invalid)} cannot be saved. Register only "
                "objects that have state_dict() and load_state_dict()"
            )
        for obj in objects:
            self._context.custom_objects.append(obj)
            self._context.custom_states.append(
                self.keep_values("python_custom", obj.state_dict, obj.load_state_dict)
            )

    def register_save_state_pre_hook(self, hook: Callable[..., None]) -> RemovableHandle:
        """Registers `hook(models, weights, folder)`. It runs in `save_state` before anything is
        written. It may write into the folder, which has a temporary name until the checkpoint is
        complete. It may also remove weights from the list if it has saved them itself. Call
        `remove()` of the returned handle to unregister the hook."""
        handle = RemovableHandle(self._context.save_hooks)
        self._context.save_hooks[handle.id] = hook
        return handle

    def register_load_state_pre_hook(self, hook: Callable[..., None]) -> RemovableHandle:
        """Registers `hook(models, folder)`. It runs in `load_state` before anything is loaded. It
        must remove models that it has loaded itself from the list."""
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
        """Saves everything that is needed to resume, and returns the folder.

        The folder gets its final name when the main process's files are complete. Other processes
        add their files without waiting, so the main process may call this method alone. If models
        are sharded, all processes must call it. With automatic naming, the folder is
        `project_dir/checkpoints/checkpoint_N`, where N counts the saves of the main process.
        `safe_serialization=False` writes weights with `torch.save`. `layout="accelerate"` writes
        the layout that Hugging Face Accelerate loads. With `asynchronous`, the method returns when
        everything has been copied to host memory, and the files are written in the background. See
        `wait_for_save` and docs/guide_checkpoint.md."""
        if layout not in (None, "accelerate"):
            raise UsageError(
                f"[save_state] layout={layout!r} is not supported. Use None (this package's layout) or "
                "'accelerate' (Hugging Face Accelerate's)"
            )
        if save_model_func_kwargs:
            _debug.warn(
                f"[save_state] {', '.join(save_model_func_kwargs)} has no effect here. Leave it out",
                stacklevel=3,
            )
        if layout is not None and asynchronous:
            raise UsageError(
                "[save_state] layout='accelerate' cannot be saved asynchronously. Leave out "
                "asynchronous=True or the layout"
            )
        if self._context.is_sharded and (layout is not None or not safe_serialization):
            raise UsageError(
                "[save_state] Sharded models cannot be saved with layout='accelerate' or "
                "safe_serialization=False. Leave these options out, or use save_model() or "
                "get_state_dict() for the full weights"
            )
        self.wait_for_save()
        folder = _checkpoints.folder_to_save(self._context, output_dir, layout)
        if RECORDER is not None:
            return folder  # `accelerate verify` leaves no files.
        _log.info(f"Saving current state to {folder}")
        try:
            if layout is None:
                with self._unprepared_schedulers():
                    _checkpoints.save(self._context, folder, safe_serialization, asynchronous)
                if not asynchronous:
                    self._log_saved(folder)
            else:
                _checkpoints.save_as_original(self._context, folder, safe_serialization)
        except BaseException:
            # Other processes may have used this number, so do not use it again.
            self._context.project.iteration += self._context.state.num_processes > 1
            raise
        self._context.project.iteration += 1
        self._mark("checkpoint")
        return folder

    def _log_saved(self, folder: Path) -> None:
        """Logs the file of each object, or the folder for an object without a file of its own."""
        for name in self._run.state.names():
            path = folder / self._context.python_files.weights.get(name, f"{name}.safetensors")
            kind = name.partition("_")[0]
            if kind in ("model", "optimizer", "scheduler"):
                log_saved(kind, path if path.exists() else folder)
        log_saved("generators", folder)

    @contextmanager
    def _unprepared_schedulers(self) -> Iterator[None]:
        """Inside the block, checkpoints include schedulers that were not prepared but drive a
        prepared optimizer. Such schedulers may be missing from a checkpoint or from a run."""
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
        """Blocks until asynchronous saves have finished. If a save failed, raises its error once,
        here or in the next `save_state`, `load_state` or `end_training`. A process also waits when
        it ends, but can then only print the error."""
        self._run.checkpoints.wait_for_save()

    def should_stop(self) -> bool:
        """Whether any process of the run, or the launcher, has received SIGTERM or SIGUSR1, which
        ask the run to end soon. Returns True on all processes at the same step. Collective.

        After the first call, these signals no longer end the process, unless the program handles
        them itself. Before the first call, a signal to the process ends it. The launcher holds back
        signals that it receives until that call, for up to half of `--grace_seconds`."""
        return self._run.should_stop()

    def load_state(
        self,
        input_dir: str | os.PathLike | None = None,
        load_kwargs: dict[str, Any] | None = None,
        *,
        allow_pickle: bool = False,
        restore_loaders: bool | None = None,
        **load_model_func_kwargs: Any,
    ) -> None:
        """Resumes from a checkpoint of this package or of Hugging Face Accelerate. First prepare
        and register the same objects. Call this method on all processes. It waits for saves in
        progress. It changes nothing unless every process can load the checkpoint. If one process
        cannot, all processes raise the same error.

        `input_dir` is a folder, or "latest" for the newest complete checkpoint in
        `project_dir/checkpoints`. With automatic naming, None also means the newest checkpoint. The
        next loop over a loader repeats the epoch of the save in the same order, from its first
        batch. To resume at the position of a running loop, call `skip_first_batches` or pass
        `restore_loaders=True`. By default (None), only loaders with `use_stateful_dataloader`
        resume there. `allow_pickle` loads objects that only a pickle can store. Pickles may run
        arbitrary code. Other arguments are passed to the models' `load_state_dict`."""
        # This process may have written its files before the main process has completed the
        # checkpoint.
        self._run.checkpoints.wait_for_saves_of_all()
        folder = _checkpoints.folder_to_load(self._context, input_dir)
        _log.info(f"Loading states from {folder}")
        # The device on which tensors are loaded before they are copied is not needed here.
        load_model_func_kwargs.pop("map_location", None)

        def find_layout() -> bool:
            if _C.is_checkpoint(str(folder)):
                return True
            if is_original_checkpoint(folder):
                return False
            raise UsageError(
                f"[load_state] {folder} is not a complete checkpoint, because it has neither "
                "checkpoint.json nor Hugging Face Accelerate's random_states_0.pkl. Pass the "
                "folder that save_state() returned"
            )

        if _checkpoints.together(self._context, find_layout):
            with self._unprepared_schedulers():
                _checkpoints.load_ours(
                    self._context,
                    folder,
                    allow_pickle,
                    restore_loaders,
                    load_kwargs or {},
                    load_model_func_kwargs,
                )
            log_loaded("scaler" in self._run.state.names())
        else:
            _checkpoints.load_original(
                self._context, folder, allow_pickle, load_kwargs or {}, load_model_func_kwargs
            )
        _checkpoints.go_on_counting(self._context, folder)


def log_saved_model(folder: Path, max_shard_size: int | str, is_safe: bool) -> None:
    weights, index = (
        (SAFE_WEIGHTS_NAME, SAFE_WEIGHTS_INDEX_NAME)
        if is_safe
        else (WEIGHTS_NAME, WEIGHTS_INDEX_NAME)
    )
    if (folder / index).exists():
        _log.info(
            f"The model is bigger than the maximum size per checkpoint ({max_shard_size}) and is "
            "split into checkpoint shards. You can find where each parameter has been saved in the "
            f"index located at {folder / index}."
        )
    else:
        _log.info(f"Model weights saved in {folder / weights}")
