# SPDX-License-Identifier: Apache-2.0
"""Saving and loading with an `Accelerator` (docs/guide_checkpoint.md); implemented in
`checkpoints`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch.utils.hooks import RemovableHandle

from accelerate import _C
from accelerate._base import debug as _debug
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
    """The part of an `Accelerator` that saves and resumes runs. `mark` shows that it has saved."""

    def __init__(self, context: RunContext, mark: Callable[[str], None]) -> None:
        self._context = context
        self._run = context.run
        self._mark = mark
        # Registered with the run, whose registry does not own it.
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
                self.keep_values("python_custom", obj.state_dict, obj.load_state_dict)
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
            # Other processes have used the number.
            self._context.project.iteration += self._context.state.num_processes > 1
            raise
        self._context.project.iteration += 1
        self._mark("checkpoint")
        return folder

    def _log_saved(self, folder: Path) -> None:
        """What has a file of its own, which state without tensors and shards have not."""
        for name in self._run.state.names():
            path = folder / self._context.python_files.weights.get(name, f"{name}.safetensors")
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
        here or in the next `save_state`, `load_state` or `end_training`. The end of a process also
        waits, but can only print the error."""
        self._run.checkpoints.wait_for_save()

    def should_stop(self) -> bool:
        """Whether the run was asked to end soon, by SIGTERM or SIGUSR1 to one of its processes or
        to the launcher; true on all processes at the same step. Collective. After the first call,
        the two signals do not end the process, unless the program handles them itself. Before the
        first call, a signal to the process ends it. A signal to the launcher is held back until the
        first call, for at most half of `--grace_seconds`."""
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
        """Resumes from a checkpoint of this package or of Hugging Face Accelerate; prepare and
        register the same objects before. Call it on all processes. It waits for saves in progress,
        and changes nothing unless every process can load: if one cannot, all of them raise the same
        error.

        `input_dir` is a folder; "latest" is the newest complete checkpoint in
        `project_dir/checkpoints`, as is None with automatic naming. The next loop over a loader
        runs the epoch of the save in its order, from its first batch: call `skip_first_batches`, or
        pass `restore_loaders=True` to resume at the position of a running loop. By default (None),
        only loaders with `use_stateful_dataloader` resume there. `allow_pickle` loads objects that
        only a pickle can store, which may run arbitrary code. Other arguments go to the models'
        `load_state_dict`."""
        # A process that has written its files may be ahead of the main process.
        self._run.checkpoints.wait_for_saves_of_all()
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
            "split in checkpoint shards. You can find where each parameters has been saved in the "
            f"index located at {folder / index}."
        )
    else:
        _log.info(f"Model weights saved in {folder / weights}")
