# SPDX-License-Identifier: Apache-2.0
"""Checkpoints in Hugging Face Accelerate's layout (docs/guide_checkpoint.md).

`Accelerator.save_state(layout="accelerate")` writes this layout, and `load_state` uses it to read
folders without our manifest. It contains less than our layout: no position in an epoch, no
accumulated gradients, and no checksums to detect damage."""

from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from accelerate import _C
from accelerate._base import debug as _debug
from accelerate._placeholders import placeholders_for
from accelerate._state import files as _files
from accelerate._state import generators as _generators
from accelerate.errors import DataError, UsageError
from accelerate.logging import get_logger
from accelerate.state import PartialState
from accelerate.utils.constants import (
    MODEL_NAME,
    OPTIMIZER_NAME,
    RNG_STATE_NAME,
    SAFE_MODEL_NAME,
    SAMPLER_NAME,
    SCALER_NAME,
    SCHEDULER_NAME,
)
from accelerate.utils.other import load, save

# User code looks for the original's log lines, which come from loggers with these names.
_log = get_logger(__name__)
# The original's names for this module's generators.
_GENERATORS = {
    "torch": "torch_manual_seed",
    "python": "random_state",
    "numpy": "numpy_random_seed",
}
_SAVED = {
    "model": "Model weights",
    "optimizer": "Optimizer state",
    "scheduler": "Scheduler state",
    "scaler": "Gradient scaler state",
    "generators": "Random states",
}


def _numbered(name: str, index: int, ending: str) -> str:
    return f"{name}.{ending}" if index == 0 else f"{name}_{index}.{ending}"


def _custom_name(index: int) -> str:
    return f"custom_checkpoint_{index}.pkl"


def is_original_checkpoint(folder: str | os.PathLike) -> bool:
    """Whether the original could have written this folder."""
    return _C.is_original_checkpoint(os.fspath(folder))


def problem_with(
    folder: Path, num_models: int, num_optimizers: int, num_schedulers: int, num_custom: int
) -> str:
    """Returns why a run with these numbers of objects cannot load the folder, or an empty string if
    it can. The layout has no checksums, but files that `torch.save` writes contain some."""
    needed = [_custom_name(i) for i in range(num_custom)]
    needed += [_numbered(OPTIMIZER_NAME, i, "bin") for i in range(num_optimizers)]
    needed += [_numbered(SCHEDULER_NAME, i, "bin") for i in range(num_schedulers)]
    for i in range(num_models):
        names = _numbered(SAFE_MODEL_NAME, i, "safetensors"), _numbered(MODEL_NAME, i, "bin")
        needed.append(next((name for name in names if (folder / name).is_file()), names[0]))
    for name in needed:
        if not (folder / name).is_file():
            return f"{name} is missing"
    for path in sorted(folder.iterdir()):
        if path.suffix == ".safetensors" and path.is_file():
            try:
                _files.load_tensors(path)
            except Exception as error:
                return f"{path.name} is damaged ({str(error).splitlines()[0]})"
        elif path.suffix in (".bin", ".pkl") and path.is_file() and not _is_intact(path):
            return f"{path.name} is damaged"
    return ""


def _is_intact(path: Path) -> bool:
    """False if a file that `torch.save` wrote was truncated or changed. Plain pickles are not
    checked."""
    with open(path, "rb") as file:
        start = file.read(2)
    if start != b"PK":
        return bool(start)
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.testzip() is None
    except (zipfile.BadZipFile, EOFError, OSError):
        return False


def save_accelerator_state(
    output_dir: str | os.PathLike,
    model_states: list[dict],
    optimizers: list,
    schedulers: list,
    dataloaders: list,
    process_index: int,
    step: int,
    scaler: Any = None,
    save_on_each_node: bool = False,
    safe_serialization: bool = True,
) -> Path:
    """Writes the state to the folder. The main process writes common state, and each process writes
    its generators. Each file is written atomically. Processes do not wait for each other. Loaders
    have no file, because their order depends only on the epoch or on generators."""
    folder = Path(output_dir)

    def write(kind: str, value: Any, name: str, is_safe: bool = False) -> None:
        save(value, folder / name, save_on_each_node, is_safe)
        log_saved(kind, folder / name)

    for index, state in enumerate(model_states):
        if safe_serialization:
            write("model", state, _numbered(SAFE_MODEL_NAME, index, "safetensors"), True)
        else:
            write("model", state, _numbered(MODEL_NAME, index, "bin"))
    for index, optimizer in enumerate(optimizers):
        write("optimizer", optimizer.state_dict(), _numbered(OPTIMIZER_NAME, index, "bin"))
    for index, scheduler in enumerate(schedulers):
        write("scheduler", scheduler.state_dict(), _numbered(SCHEDULER_NAME, index, "bin"))
    if scaler is not None:
        write("scaler", scaler.state_dict(), SCALER_NAME)
    states = {_GENERATORS[kind]: state for kind, state in _generators.take().items()}
    device = PartialState().device
    if device.type != "cpu":
        module = torch.get_device_module(device.type)
        states[f"torch_{device.type}_manual_seed"] = module.get_rng_state_all()
    path = folder / f"{RNG_STATE_NAME}_{process_index}.pkl"
    _files.save_pickle({"step": step, **states}, path)
    log_saved("generators", path)
    return folder


def log_saved(kind: str, path: Path) -> None:
    _log.info(f"{_SAVED[kind]} saved in {path}")


def log_loaded(has_scaler: bool, has_generators: bool = True) -> None:
    """Logs one line for each kind of state."""
    for what in ("model weights", "optimizer states", "scheduler states"):
        _log.info(f"All {what} loaded successfully")
    _log.info("All dataloader sampler states loaded successfully")
    if has_scaler:
        _log.info("GradScaler state loaded successfully")
    if has_generators:
        _log.info("All random states loaded successfully")
    else:
        _log.info("Could not load random states")


def load_accelerator_state(
    input_dir: str | os.PathLike,
    models: list,
    optimizers: list,
    schedulers: list,
    dataloaders: list,
    process_index: int,
    scaler: Any = None,
    map_location: Any = None,
    load_kwargs: dict | None = None,
    **load_model_func_kwargs: Any,
) -> dict[str, Any]:
    """Loads a checkpoint that the original or `save_accelerator_state` has written. Reads
    everything before it changes anything. Reading pickles runs no code, unless `load_kwargs`
    request it. Returns the saved `step` if the checkpoint contains the generators of this
    process."""
    put = _read_accelerator_state(
        input_dir,
        models,
        optimizers,
        schedulers,
        process_index,
        scaler,
        map_location,
        load_kwargs,
        load_model_func_kwargs,
    )
    return put()


def _read_accelerator_state(
    input_dir: str | os.PathLike,
    models: list,
    optimizers: list,
    schedulers: list,
    process_index: int,
    scaler: Any,
    map_location: Any,
    load_kwargs: dict | None,
    model_kwargs: dict[str, Any],
) -> Callable[[], dict[str, Any]]:
    """The first half of `load_accelerator_state`: reads everything and returns a function that
    makes the changes."""
    folder = Path(input_dir)
    map_location = PartialState().device if map_location == "on_device" else map_location or "cpu"
    kwargs = {"map_location": map_location, **(load_kwargs or {})}

    def read(name: str, **others: Any) -> Any:
        return _read(folder / name, {**kwargs, **others})

    weights = [_read_weights(folder, index, kwargs) for index in range(len(models))]
    of_optimizers = [read(_numbered(OPTIMIZER_NAME, i, "bin")) for i in range(len(optimizers))]
    of_schedulers = [read(_numbered(SCHEDULER_NAME, i, "bin")) for i in range(len(schedulers))]
    of_scaler = None if scaler is None else read(SCALER_NAME)
    name = f"{RNG_STATE_NAME}_{process_index}.pkl"
    generators = read(name, map_location="cpu") if (folder / name).exists() else None

    def put() -> dict[str, Any]:
        for model, state in zip(models, weights):
            load_weights(model, state, model_kwargs)
        for optimizer, state in zip(optimizers, of_optimizers):
            optimizer.load_state_dict(state)
        for scheduler, state in zip(schedulers, of_schedulers):
            scheduler.load_state_dict(state)
        if scaler is not None:
            scaler.load_state_dict(of_scaler)
        for position in (SAMPLER_NAME, "dl_state_dict"):
            if (folder / f"{position}.bin").exists():
                _debug.warn(
                    f"[load_state] {folder / position}.bin stores the position of a DataLoader as "
                    "a Hugging Face Accelerate object, which this package cannot read. Call "
                    "skip_first_batches() instead",
                    stacklevel=4,
                )
        if generators is None:
            _debug.warn(
                f"[load_state] {folder} has no {name}. The random number generators of process "
                f"{process_index} keep their current state",
                stacklevel=4,
            )
            log_loaded(scaler is not None, has_generators=False)
            return {}
        _put_generators(generators)
        log_loaded(scaler is not None)
        return {"step": generators["step"]} if "step" in generators else {}

    return put


def _read(path: Path, kwargs: dict[str, Any]) -> Any:
    import pickle

    if not path.is_file():
        raise UsageError(
            f"[load_state] The checkpoint has no file {path}. Prepare the same objects as in the "
            "run that saved it"
        )
    try:
        return load(path, **kwargs)
    except pickle.UnpicklingError as error:
        raise DataError(
            f"[load_state] {path} contains objects other than tensors, numbers and containers, or is "
            f"damaged ({str(error).splitlines()[0]}). If you trust the file, pass "
            "load_kwargs={'weights_only': False}"
        ) from error


def _read_weights(folder: Path, index: int, kwargs: dict[str, Any]) -> dict[str, Any]:
    path = folder / _numbered(SAFE_MODEL_NAME, index, "safetensors")
    if path.is_file():
        return _files.load_tensors(path)
    return _read(folder / _numbered(MODEL_NAME, index, "bin"), kwargs)


def load_weights(model: torch.nn.Module, state: dict[str, Any], kwargs: dict[str, Any]) -> None:
    """Calls `load_state_dict` with the content of a file."""
    own = model.state_dict()
    # A file contains tied weights once, under the first name that its writer found.
    _, aliases = _files.without_aliases(own)
    for alias, name in aliases.items():
        if name in state:
            state.setdefault(alias, state[name])
        elif alias in state:
            state[name] = state[alias]
    model.load_state_dict(state, **kwargs)


def _put_generators(saved: dict[str, Any]) -> None:
    _generators.put({kind: saved[name] for kind, name in _GENERATORS.items() if name in saved})
    device = PartialState().device
    name = f"torch_{device.type}_manual_seed"
    if name not in saved:
        return
    module = torch.get_device_module(device.type)
    if len(saved[name]) == module.device_count():
        module.set_rng_state_all(saved[name])
    else:
        _debug.warn(
            f"[load_state] The checkpoint has random number generators for {len(saved[name])} "
            f"devices, but this machine has {module.device_count()}. The generators of these "
            "devices keep their current state",
            stacklevel=4,
        )


def custom_states(folder: str | os.PathLike) -> list[str]:
    """Returns the files of registered objects in a folder."""
    pattern = re.compile(r"custom_checkpoint_\d+\.pkl")
    return [name for name in os.listdir(folder) if pattern.fullmatch(name)]


def save_custom_state(
    obj: Any, path: str | os.PathLike, index: int = 0, save_on_each_node: bool = False
) -> None:
    """Writes `obj.state_dict()` to `custom_checkpoint_INDEX.pkl` in the folder."""
    save(obj.state_dict(), Path(path) / _custom_name(index), save_on_each_node)


def load_custom_state(
    obj: Any, path: str | os.PathLike, index: int = 0, *, allow_pickle: bool = True
) -> None:
    """Loads an object that `save_custom_state` has written. A pickle may run any code, so by
    default the folder must be trusted, as in the original. Without `allow_pickle`, the file may
    contain only tensors, numbers and containers."""
    obj.load_state_dict(_read_custom_state(path, index, allow_pickle))


def _read_custom_state(path: str | os.PathLike, index: int, allow_pickle: bool) -> Any:
    """Reads what `save_custom_state` has written."""
    file = Path(path) / _custom_name(index)
    return _read(file, {"map_location": "cpu", "weights_only": not allow_pickle})


__getattr__ = placeholders_for(__name__)
