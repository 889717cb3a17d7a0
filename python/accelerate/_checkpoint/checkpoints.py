# SPDX-License-Identifier: Apache-2.0
"""The files that Python adds to a checkpoint (docs/guide_checkpoint.md). C++ writes the folder, its
manifest and the state of all objects (`checkpoint/checkpoint_folder.h`). This module handles
everything that only Python can read or write: hooks, weights as returned by the module's
`state_dict`, and pickles. In the manifest, these files belong to an extra object, `PYTHON_FILES`."""

from __future__ import annotations

import json
import os
import pickle
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch

from accelerate import _C, checkpointing
from accelerate._base import debug as _debug
from accelerate._models.prepared_module import context_of, parameter_set
from accelerate._models.run_context import PYTHON_FILES, RunContext
from accelerate._state import files as _files
from accelerate._state.values import ObjectState, OnlyPickled
from accelerate.errors import AccelerateError, UsageError, in_one_line
from accelerate.logging import get_logger
from accelerate.utils import operations
from accelerate.utils.constants import (
    MODEL_NAME,
    RNG_STATE_NAME,
    SAFE_MODEL_NAME,
    WEIGHTS_INDEX_NAME,
    WEIGHTS_NAME,
    WEIGHTS_PATTERN_NAME,
)
from accelerate.utils.other import load

_Result = TypeVar("_Result")


# --- which folder -----------------------------------------------------------------------------


def folder_of_all(context: RunContext) -> Path:
    """Returns the folder of automatically named checkpoints."""
    if context.project.project_dir is None:
        raise UsageError(
            "[Accelerator] Automatic checkpoint naming needs a project_dir. Pass it to "
            "Accelerator or ProjectConfiguration"
        )
    return Path(context.project.project_dir) / "checkpoints"


def folder_to_save(context: RunContext, output_dir: Any, layout: str | None) -> Path:
    project = context.project
    if not project.automatic_checkpoint_naming:
        if output_dir is None:
            raise UsageError(
                "[save_state] No output_dir was passed. Pass a folder, or pass "
                "ProjectConfiguration(automatic_checkpoint_naming=True) to Accelerator"
            )
        return Path(os.path.expanduser(output_dir))
    if layout is None and not context.is_writer:
        project.iteration = _number_of_main_process(context)
    folder = Path(_C.numbered_checkpoint(str(folder_of_all(context)), project.iteration))
    is_taken = _is_taken(context, folder, layout)
    if context.is_sharded:  # All processes save together, but machines may have separate disks.
        is_taken = any(operations.gather_object([is_taken]))
    if is_taken:
        raise UsageError(
            f"[save_state] {folder} already exists. Set "
            "accelerator.project_configuration.iteration to the next free number"
        )
    return folder


def _number_of_main_process(context: RunContext) -> int:
    """Returns the number that the main process uses for this save. The main process may have saved
    alone, so its counter may be ahead of ours. This function reads the main process's files instead
    of communicating, because saving must not wait for other processes."""
    first = context.project.iteration
    parent = folder_of_all(context)
    run = context.run
    moment = run.state.state_of("progress")["num_backwards"]
    moments = _C.moments_of_job(str(parent), run.checkpoints.job, first)
    same = [number for number in moments if number >= first and moments[number] == moment]
    before = [number for number in moments if moments[number] < moment]
    return min(same) if same else max([first, *(number + 1 for number in before)])


def _is_taken(context: RunContext, folder: Path, layout: str | None) -> bool:
    """Whether the folder belongs to a different save. The main process may already have created it
    for this one."""
    if not folder.exists():
        return False
    if layout is not None:
        own = folder / f"{RNG_STATE_NAME}_{context.state.process_index}.pkl"
        return own.exists() or _C.is_checkpoint(str(folder))
    if context.is_writer or not _C.is_checkpoint(str(folder)):
        return True
    try:
        found = _C.CheckpointReader(str(folder))
    except AccelerateError:
        return True
    run = context.run
    moment = run.state.state_of("progress")["num_backwards"]
    return (found.job, found.moment) != (run.checkpoints.job, moment)


def folder_to_leave(context: RunContext) -> Path | None:
    """Returns the folder for `save_and_leave` without an argument, or None if `save_state` chooses
    it."""
    if context.project.automatic_checkpoint_naming:
        return None
    parent = folder_of_all(context)
    number = _C.next_checkpoint_number(str(parent))
    folder = Path(_C.numbered_checkpoint(str(parent), number))
    # Wait until all processes have chosen the number, before one of them creates the folder.
    context.state.wait_for_everyone()
    return folder


def together(context: RunContext, work: Callable[[], _Result]) -> _Result:
    """Returns the result of `work`. If `work` fails on one process, all processes raise. Errors of
    this package have the same text on all processes."""
    if context.state.num_processes == 1:
        return work()
    try:
        result = work()
    except Exception as problem:
        is_ours = isinstance(problem, AccelerateError)
        text = str(problem) if is_ours else in_one_line(problem)
        try:
            context.run.checkpoints.fail_load_together(type(problem).__name__, text)
        except AccelerateError as error:
            if is_ours and str(error) != text:
                raise error from problem
        raise
    context.run.checkpoints.fail_load_together("", "")
    return result


def folder_to_load(context: RunContext, input_dir: Any) -> Path:
    """Returns the folder to load, which is the same on all processes. If the search fails on one
    process, all processes raise."""

    def named() -> Path | None:
        if input_dir is not None and (input_dir != "latest" or os.path.isdir("latest")):
            return _named_folder(Path(os.path.expanduser(input_dir)))
        if input_dir is None and not context.project.automatic_checkpoint_naming:
            raise UsageError(
                "[load_state] No input_dir was passed. Pass a folder or 'latest', or pass "
                "ProjectConfiguration(automatic_checkpoint_naming=True) to Accelerator"
            )
        folder_of_all(context)
        return None

    folder = together(context, named)
    if folder is not None:
        return folder
    parent = folder_of_all(context)
    latest, said = context.run.checkpoints.latest_intact_on_all_ranks(str(parent))
    for line in said:
        _debug.warn(line, stacklevel=4)
    if latest is not None:
        return Path(latest)

    def original() -> Path:
        numbered = map(Path, _C.numbered_checkpoints(str(parent)))
        found = [path for path in numbered if checkpointing.is_original_checkpoint(path)]
        if not found:
            raise UsageError(
                f"[load_state] No complete checkpoint in {parent}. Check project_dir, or save a "
                "checkpoint first"
            )
        # Load hooks may load any model, so the number of models is not checked.
        num_models = 0 if context.load_hooks else len(context.models)
        skipped = []
        for path in reversed(found):
            problem = checkpointing.problem_with(
                path,
                num_models,
                len(context.optimizers),
                len(context.schedulers),
                len(context.custom_objects),
            )
            if not problem:
                for line in skipped:
                    _debug.warn(line, stacklevel=5)
                return path
            skipped.append(f"[load_state] Skipping {path}: {problem}")
        return found[-1]  # Loading this folder raises an error with advice.

    chosen = together(context, original)
    # A file may be damaged on only one machine.
    return min(operations.gather_object([chosen]), key=lambda path: _C.checkpoint_number(str(path)))


def _named_folder(folder: Path) -> Path:
    if not folder.is_dir():
        raise UsageError(_C.describe_missing_checkpoint(str(folder), _is_any_checkpoint))
    if not os.access(folder, os.R_OK | os.X_OK):
        raise UsageError(
            f"[load_state] No permission to read {folder}. Change its permissions, or load another "
            "checkpoint"
        )
    return folder


def _is_any_checkpoint(folder: str) -> bool:
    return _C.is_checkpoint(folder) or checkpointing.is_original_checkpoint(Path(folder))


def go_on_counting(context: RunContext, loaded: Path) -> None:
    """Makes the next automatic number follow the existing numbers."""
    project = context.project
    if project.automatic_checkpoint_naming:
        parent = folder_of_all(context)
        if loaded.parent.resolve() == parent.resolve():
            project.iteration = max(project.iteration, _C.next_checkpoint_number(str(parent)))


def limit_of(context: RunContext) -> int | None:
    """Returns how many automatically named checkpoints to keep, or None to keep all."""
    project = context.project
    if not project.automatic_checkpoint_naming or project.total_limit is None:
        return None
    return max(project.total_limit, 1)


# --- this package's layout --------------------------------------------------------------------


def save(context: RunContext, folder: Path, safe_serialization: bool, asynchronous: bool) -> None:
    def write_extra(stage: str) -> tuple[set[str], set[str]]:
        return _write_python_files(context, Path(stage), safe_serialization)

    context.run.checkpoints.save_state(
        str(folder), write_extra, asynchronous, limit_of(context), context.is_sharded
    )


def _write_python_files(
    context: RunContext, stage: Path, safe_serialization: bool
) -> tuple[set[str], set[str]]:
    """Writes Python's files. Returns the names of the objects that C++ skips, and the names of the
    files."""
    weights = _call_save_hooks(context, stage)
    writes = context.is_writer
    python_files = context.python_files
    python_files.weights, python_files.pickles = {}, {}
    left_out = _names_left_out(context)
    for index, (name, model) in enumerate(_named_models(context)):
        state = weights[index]
        if state is None:
            left_out.add(name)
            continue
        if safe_serialization and _is_named_tensors(model, state):
            continue
        left_out.add(name)
        is_safe = safe_serialization and all(isinstance(v, torch.Tensor) for v in state.values())
        file = name.replace("model", MODEL_NAME, 1) + ".bin"
        if is_safe:
            file = name.replace("model", SAFE_MODEL_NAME, 1) + ".safetensors"
        if writes:
            (_files.save_tensors if is_safe else _files.save_pickle)(state, stage / file)
            python_files.weights[name] = file
    for kept in context.states + context.custom_states:
        if kept.name in left_out:
            continue
        try:
            kept.state_dict()
        except OnlyPickled as reason:
            left_out.add(kept.name)
            if writes:
                path = stage / f"{kept.name}.pkl"
                _save_pickled(kept, path, reason)
                python_files.pickles[kept.name] = path.name
                _warn_of_code(kept, path, reason)
    return left_out, {*python_files.weights.values(), *python_files.pickles.values()}


def _names_left_out(context: RunContext) -> set[str]:
    """Returns the names of objects that are not part of the current checkpoint."""
    kinds = context.kinds_left_out
    return {name for name in context.run.state.names() if name.startswith(kinds)}


def _call_save_hooks(context: RunContext, stage: Path) -> list[dict[str, Any] | None]:
    """Returns the weights of each model, or None for models that a hook removed."""
    given = [model.state_dict() for model in context.models]
    # Hooks may change both lists.
    weights, models = list(given), list(context.models)
    for hook in list(context.save_hooks.values()):
        hook(models, weights, str(stage))
    foreign = [state for state in weights if not any(state is own for own in given)]
    if foreign:
        raise UsageError(
            f"[save_state] A pre-hook added {len(foreign)} new dictionaries to the list of "
            "weights. A pre-hook may only remove entries. Write other weights to the folder that "
            "the hook receives"
        )
    return [own if any(own is state for state in weights) else None for own in given]


def _named_models(context: RunContext) -> list[tuple[str, torch.nn.Module]]:
    registry = context.run.state
    return [
        (registry.name_of(context_of(prepared)), model)
        for model, prepared in zip(context.models, context.prepared_models)
    ]


def context_of_model(context: RunContext, model: Any) -> _C.ModelContext | None:
    """Returns the context of a model. Also accepts the original module that was prepared."""
    for module, prepared in zip(context.models, context.prepared_models):
        if module is model:
            return context_of(prepared)
    return context_of(model)


def names_of_plain_state(model: torch.nn.Module) -> list[str] | None:
    """Returns the names in the module's `state_dict`, in order. Returns None if C++ cannot write
    it."""
    state = model.state_dict()
    return list(state) if _is_named_tensors(model, state) else None


def _is_named_tensors(model: torch.nn.Module, state: dict[str, Any]) -> bool:
    """Whether the module's `state_dict` contains exactly its parameters and buffers, so that C++
    can write it. Module hooks and extra state may change its content."""
    known = parameter_set(model)
    tensors = dict(zip(known.names, known.parameters)) | dict(
        zip(known.buffer_names, known.buffers)
    )
    for name in known.transient_buffers:
        tensors.pop(name, None)
    for alias, name in known.tied.items():
        if alias in state and name in tensors:
            tensors[alias] = tensors[name]

    def is_same(value: Any, tensor: torch.Tensor) -> bool:
        if not isinstance(value, torch.Tensor) or value.layout != tensor.layout:
            return False
        if value.layout != torch.strided:
            return True  # C++ rejects this value and names the tensor.
        return _memory_of(value) == _memory_of(tensor)

    return state.keys() == tensors.keys() and all(
        is_same(value, tensors[name]) for name, value in state.items()
    )


def _memory_of(tensor: torch.Tensor) -> tuple[int, int, torch.Size]:
    """Identifies a tensor's memory by its storage, because the memory of a sharded parameter is
    detached while no operator reads it."""
    return tensor.untyped_storage()._cdata, tensor.storage_offset(), tensor.shape


def whole_state(model: torch.nn.Module, context: _C.ModelContext, keep: bool) -> dict[str, Any]:
    """Returns the module's `state_dict`. For parameters that are sharded or have reduced precision,
    it contains the trained values. Returns an empty dictionary if `keep` is False. Collective if
    parameters are sharded."""
    parameters = dict(model.named_parameters()).values()
    values = context.whole_parameters(keep)
    if not keep:
        return {}
    wholes = {_memory_of(known): value for known, value in zip(parameters, values)}
    spread = {memory[0] for memory in wholes}
    state = model.state_dict()
    for name, value in state.items():
        if isinstance(value, torch.Tensor) and value.layout == torch.strided:
            memory = _memory_of(value)
            if memory in wholes:
                state[name] = wholes[memory]
            elif memory[0] in spread:
                raise UsageError(
                    f"[get_state_dict] '{name}' is a view into a parameter that is sharded or has "
                    "fp32 master weights. Remove the state_dict hook that slices it"
                )
    return state


def _save_pickled(kept: ObjectState, path: Path, reason: OnlyPickled) -> None:
    try:
        _files.save_pickle(kept.value(), path)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise UsageError(
            f"[save_state] The state of '{kept.name}' cannot be saved as values ({reason}) or as a "
            f"pickle ({error}). Return only tensors, numbers and containers from its state_dict()"
        ) from error


def _warn_of_code(kept: ObjectState, path: Path, reason: OnlyPickled) -> None:
    """Warns at saving time that loading this object needs `allow_pickle=True`."""
    try:
        load(path, map_location="cpu")
    except pickle.UnpicklingError:
        _debug.warn(
            f"[save_state] '{kept.name}' is saved as a pickle ({reason}). Load it with "
            "load_state(..., allow_pickle=True), or return only tensors, numbers and containers from its "
            "state_dict()",
            stacklevel=7,
        )


def _read_pickle(path: Path, name: str, allow_pickle: bool, load_kwargs: dict[str, Any]) -> Any:
    how = {"map_location": "cpu", "weights_only": not allow_pickle, **load_kwargs}
    try:
        return load(path, **how)
    except pickle.UnpicklingError as error:
        raise UsageError(
            f"[load_state] {path} stores the state of '{name}' as a pickle, and loading a pickle "
            "can run arbitrary code. If you trust the file, pass allow_pickle=True"
        ) from error


def load_ours(
    context: RunContext,
    folder: Path,
    allow_pickle: bool,
    restore_loaders: bool | None,
    load_kwargs: dict[str, Any],
    model_kwargs: dict[str, Any],
) -> None:
    if model_kwargs and context.is_sharded:
        raise UsageError(
            f"[load_state] {', '.join(model_kwargs)} has no effect on sharded models, because "
            "their load_state_dict is not called. Leave it out"
        )
    without, loads = together(
        context,
        lambda: _read_python_files(
            context, folder, allow_pickle, restore_loaders, load_kwargs, model_kwargs
        ),
    )
    loaders = [loader for loader in context.loaders if hasattr(loader, "_state_name")]
    for loader in loaders:
        is_asked = loader.use_stateful_dataloader if restore_loaders is None else restore_loaders
        loader._resumes_on_load = is_asked
    for line in context.run.checkpoints.load_state(str(folder), without):
        warnings.warn(line, stacklevel=4)
    together(context, lambda: [run() for run in loads])
    context.step = _num_accumulated(context)
    positions = [(loader._state_name, loader._restored_to()) for loader in loaders]
    lines = [f"{name} {position}" for name, position in positions if position]
    if lines:
        get_logger("accelerate.accelerator").info(f"[load_state] {'; '.join(lines)}")


def _read_python_files(
    context: RunContext,
    folder: Path,
    allow_pickle: bool,
    restore_loaders: bool | None,
    load_kwargs: dict[str, Any],
    model_kwargs: dict[str, Any],
) -> tuple[set[str], list[Callable[[], Any]]]:
    """Returns the names of the objects that C++ does not load, and functions that load the objects
    whose files Python reads."""
    listed = _SavedFiles(folder)
    models = _call_load_hooks(context, folder)
    without = _names_left_out(context)
    if restore_loaders is False:
        saved = listed.loaders_of(context.state.process_index)
        without |= saved - set(context.run.state.names())
    loads: list[Callable[[], Any]] = []
    for name, model in _named_models(context):
        if not any(model is left for left in models):
            without.add(name)
        elif name in listed.weights or model_kwargs:
            without.add(name)
            state = _read_weights(listed.path_of(name))
            loads.append(_loader_of_weights(model, state, model_kwargs))
    for kept in context.states + context.custom_states:
        if kept.name in listed.pickles:
            without.add(kept.name)
            value = _read_pickle(listed.path_of(kept.name), kept.name, allow_pickle, load_kwargs)
            loads.append(lambda kept=kept, value=value: kept.put(value))
    return without, loads


class _SavedFiles:
    """The Python files that a checkpoint's manifest lists, and their folder."""

    def __init__(self, folder: Path) -> None:
        self._reader = _C.CheckpointReader(str(folder))
        self.weights: dict[str, str] = {}
        self.pickles: dict[str, str] = {}
        # A checkpoint of a C++ run has no such files.
        for name, file in self._reader.texts_of(PYTHON_FILES).items():
            kind, _, owner = name.removesuffix(".file").partition(".")
            (self.weights if kind == "weights" else self.pickles)[owner] = file

    def loaders_of(self, rank: int) -> set[str]:
        """Returns the names of the loaders whose state is in the checkpoint."""
        names = self._reader.objects(rank)
        return {name for name in names if name.startswith(("loader", "python_loader"))}

    def path_of(self, name: str) -> Path:
        """Returns the file of an object. Raises `DataError` if the file was changed after
        saving."""
        file = self.weights.get(name) or self.pickles.get(name) or f"{name}.safetensors"
        return Path(self._reader.verified(file))


def _call_load_hooks(context: RunContext, folder: Path) -> list[torch.nn.Module]:
    """Calls the load hooks. Returns the models that no hook has loaded."""
    models = list(context.models)
    for hook in list(context.load_hooks.values()):
        hook(models, str(folder))
    return models


def _read_weights(path: Path) -> dict[str, Any]:
    if path.suffix == ".safetensors":
        return _files.load_tensors(path)
    return load(path, map_location="cpu")


def _loader_of_weights(
    model: torch.nn.Module, state: dict[str, Any], kwargs: dict[str, Any]
) -> Callable[[], Any]:
    return lambda: checkpointing.load_weights(model, state, kwargs)


# --- models alone -----------------------------------------------------------------------------


def save_model(
    state: dict[str, Any], folder: Path, max_shard_size: int | str, safe_serialization: bool
) -> None:
    if any(isinstance(v, torch.Tensor) and v.is_meta for v in state.values()):
        raise UsageError(
            "[save_model] The model has parameters on the meta device, which have no values. Load "
            "its weights first"
        )
    if folder.is_file():
        raise UsageError(f"[save_model] {folder} is a file. Pass a folder")
    max_bytes = _C.parse_size(str(max_shard_size))
    if safe_serialization:
        tensors, aliases = _files.without_aliases(state)
        _C.save_sharded(str(folder), tensors, max_bytes, {"format": "pt", **aliases})
        return
    folder.mkdir(parents=True, exist_ok=True)
    sizes = {name: value.nbytes for name, value in state.items()}
    shards = _C.split_into_shards(sizes, max_bytes)
    names = [WEIGHTS_NAME]
    if len(shards) > 1:
        names = [
            WEIGHTS_PATTERN_NAME.format(suffix=f"-{i + 1:05d}-of-{len(shards):05d}")
            for i in range(len(shards))
        ]
    for name, shard in zip(names, shards):
        _files.save_pickle({key: state[key] for key in shard}, folder / name)
    index = folder / WEIGHTS_INDEX_NAME
    if len(shards) > 1:
        where = {key: name for name, shard in zip(names, shards) for key in shard}
        content = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": where}
        with _files.written_whole(index) as path:
            Path(path).write_text(json.dumps(content, indent=2, sort_keys=True) + "\n")
    else:
        index.unlink(missing_ok=True)
    # Remove files of an earlier save only after the new ones are complete.
    pattern = re.compile(rf"{MODEL_NAME}(-\d{{5}}-of-\d{{5}})?\.bin")
    for path in folder.iterdir():
        if pattern.fullmatch(path.name) and path.name not in names:
            path.unlink()


# --- Hugging Face's layout --------------------------------------------------------------------


def save_as_original(context: RunContext, folder: Path, safe_serialization: bool) -> None:
    if context.has_own_engine:
        raise UsageError(
            "[save_state] layout='accelerate' cannot store the shards of a custom engine. Save "
            "without a layout"
        )
    folder.mkdir(parents=True, exist_ok=True)
    weights = [state for state in _call_save_hooks(context, folder) if state is not None]
    step = _num_accumulated(context)
    if step > 0:
        warnings.warn(
            f"[save_state] layout='accelerate' cannot store the gradients of the {step} micro-batches "
            "accumulated so far. Save when accelerator.sync_gradients is True",
            stacklevel=4,
        )
    on_each_node = context.saves_on_each_node
    checkpointing.save_accelerator_state(
        folder,
        weights,
        context.optimizers,
        context.schedulers,
        context.loaders,
        context.state.process_index,
        step,
        _scaler_of(context),
        on_each_node,
        safe_serialization,
    )
    for index, kept in enumerate(context.custom_objects):
        checkpointing.save_custom_state(kept, folder, index, on_each_node)
    limit = limit_of(context)
    if limit is not None and context.is_writer:
        _C.rotate_checkpoints(str(folder.parent), limit)


def load_original(
    context: RunContext,
    folder: Path,
    allow_pickle: bool,
    load_kwargs: dict[str, Any],
    model_kwargs: dict[str, Any],
) -> None:
    if context.is_sharded:
        raise UsageError(
            f"[load_state] {folder} has Hugging Face Accelerate's layout, which cannot be loaded "
            "into sharded models. Load the checkpoint once without sharding, and save it again "
            "with save_state()"
        )
    put = together(
        context,
        lambda: _read_original(context, folder, allow_pickle, load_kwargs, model_kwargs),
    )
    found = together(context, put)
    registry = context.run.state
    registry.load_state_of("accumulation", {"num_windows": 0})
    for optimizer in context.optimizers:
        optimizer.zero_grad()
    for name in registry.names():
        # Clear the error feedback of gradient compression, because it belongs to other steps.
        if name.startswith("engine") and "iteration" in registry.state_of(name):
            registry.load_state_of(name, {})
    context.step = found.get("step", 0)
    num_lost = context.step % context.run.num_accumulation_steps
    if num_lost > 0:
        warnings.warn(
            f"[load_state] {folder} was saved after {num_lost} accumulated micro-batches but does not "
            "contain their gradients. Accumulation starts again from zero",
            stacklevel=4,
        )


def _read_original(
    context: RunContext,
    folder: Path,
    allow_pickle: bool,
    load_kwargs: dict[str, Any],
    model_kwargs: dict[str, Any],
) -> Callable[[], dict[str, Any]]:
    """Reads all files and returns a function that loads them."""
    files = checkpointing.custom_states(folder)
    objects = context.custom_objects
    if len(files) != len(objects):
        raise UsageError(
            f"[load_state] {folder} contains {len(files)} registered objects "
            f"(custom_checkpoint_N.pkl), but {len(objects)} are registered. Register the same objects "
            "with register_for_checkpointing()"
        )
    put = checkpointing._read_accelerator_state(
        folder,
        _call_load_hooks(context, folder),
        context.optimizers,
        context.schedulers,
        context.state.process_index,
        _scaler_of(context),
        None,
        load_kwargs,
        model_kwargs,
    )
    values = [
        checkpointing._read_custom_state(folder, i, allow_pickle) for i in range(len(objects))
    ]

    def put_all() -> dict[str, Any]:
        found = put()
        for kept, value in zip(objects, values):
            kept.load_state_dict(value)
        return found

    return put_all


class _Scaler:
    """Adds torch's `state_dict` and `load_state_dict` to the run's scaler."""

    def __init__(self, registry: _C.StateRegistry) -> None:
        self._registry = registry

    def state_dict(self) -> dict[str, Any]:
        return self._registry.state_of("scaler")

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._registry.load_state_of("scaler", state)


def _scaler_of(context: RunContext) -> _Scaler | None:
    registry = context.run.state
    return _Scaler(registry) if "scaler" in registry.names() else None


def _num_accumulated(context: RunContext) -> int:
    """Returns the number of micro-batches since the last update of the weights."""
    state = context.run.state.state_of("accumulation")
    return max([n for key, n in state.items() if key.endswith(".num_begun")], default=0)
