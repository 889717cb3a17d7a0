# SPDX-License-Identifier: Apache-2.0
"""Functions that libraries such as transformers' Trainer use to save and load sharded models. They
store unsharded weights and state in the original's files, so that any number of processes, and
either package, can resume from them. Call each function on all processes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from accelerate import _C
from accelerate._checkpoint.checkpoints import context_of_model
from accelerate._models.run_context import RunContext, context_of_run
from accelerate._placeholders import placeholders_for
from accelerate._state import files as _files
from accelerate.errors import UsageError
from accelerate.utils.constants import FSDP_MODEL_NAME, OPTIMIZER_NAME
from accelerate.utils.dataclasses import FullyShardedDataParallelPlugin
from accelerate.utils.modeling import is_peft_model
from accelerate.utils.operations import gather_object
from accelerate.utils.other import load

if TYPE_CHECKING:
    from accelerate.accelerator import Accelerator


def enable_fsdp_ram_efficient_loading() -> None:
    """Makes only one process of a run read the weights that transformers loads. `prepare`
    distributes them."""
    os.environ.setdefault("ACCELERATE_USE_FSDP", "True")
    os.environ["FSDP_CPU_RAM_EFFICIENT_LOADING"] = "True"


def disable_fsdp_ram_efficient_loading() -> None:
    os.environ["FSDP_CPU_RAM_EFFICIENT_LOADING"] = "False"


def _file(
    plugin: FullyShardedDataParallelPlugin,
    folder: str | os.PathLike,
    name: str,
    index: int,
) -> Path:
    if plugin.state_dict_type.name != "FULL_STATE_DICT":
        raise NotImplementedError(
            f"[FSDP] state_dict_type={plugin.state_dict_type.name} is not supported. Use "
            "FULL_STATE_DICT for one file, or save_state() for shards"
        )
    return Path(folder) / (f"{name}.bin" if index == 0 else f"{name}_{index}.bin")


def _adapter_names(model: Any) -> dict[str, str]:
    """Maps the names of the active adapter's tensors in PEFT's files to their names in the
    model."""
    from peft import get_peft_model_state_dict

    names = list(model.state_dict())
    # PEFT decides under which name each tensor is stored. Pass numbers instead of the tensors.
    numbers = {name: torch.tensor(number) for number, name in enumerate(names)}
    kept = get_peft_model_state_dict(
        model, state_dict=numbers, adapter_name=model.active_adapter, save_embedding_layers=False
    )
    return {name: names[int(number)] for name, number in kept.items()}


def save_fsdp_model(
    fsdp_plugin: FullyShardedDataParallelPlugin,
    accelerator: Accelerator,
    model: torch.nn.Module,
    output_dir: str | os.PathLike,
    model_index: int = 0,
    adapter_only: bool = False,
    use_dcp: bool = True,
) -> None:
    """Makes the main process write `pytorch_model_fsdp.bin`. With `adapter_only`, the file of a
    PEFT model contains only the parameters of the active adapter."""
    path = _file(fsdp_plugin, output_dir, FSDP_MODEL_NAME, model_index)
    state = accelerator.get_state_dict(model)
    if accelerator.is_main_process:
        own = accelerator.unwrap_model(model)
        if adapter_only and is_peft_model(own):
            # As in the original's files, version 2 uses the model's names.
            state = {
                kept if fsdp_plugin.fsdp_version == 1 else name: state[name]
                for kept, name in _adapter_names(own).items()
            }
        path.parent.mkdir(parents=True, exist_ok=True)
        _files.save_pickle(state, path)


def load_fsdp_model(
    fsdp_plugin: FullyShardedDataParallelPlugin,
    accelerator: Accelerator,
    model: torch.nn.Module,
    input_dir: str | os.PathLike,
    model_index: int = 0,
    adapter_only: bool = False,
    use_dcp: bool = True,
) -> None:
    """Makes each process read its shard of `pytorch_model_fsdp.bin`. With `adapter_only`, other
    parameters of a PEFT model are unchanged."""
    path = _file(fsdp_plugin, input_dir, FSDP_MODEL_NAME, model_index)
    of_run = context_of_run(accelerator)
    context = context_of_model(of_run, model)
    if context is None:
        raise UsageError("[FSDP] The model was not prepared. Pass the result of prepare()")
    registry = of_run.run.state
    own_name = registry.name_of(context)
    state = load(path, map_location="cpu", mmap=True)
    own = accelerator.unwrap_model(model)
    if adapter_only and is_peft_model(own):
        names = _adapter_names(own)
        loaded = {names.get(name, name): v for name, v in state.items()}
        state = {**registry.state_of(own_name), **loaded}
    registry.load_state_of(own_name, state)
    accelerator.wait_for_everyone()


def save_fsdp_optimizer(
    fsdp_plugin: FullyShardedDataParallelPlugin,
    accelerator: Accelerator,
    optimizer: torch.optim.Optimizer,
    model: torch.nn.Module,
    output_dir: str | os.PathLike,
    optimizer_index: int = 0,
    use_dcp: bool = True,
) -> None:
    """Makes the main process write `optimizer.bin`, which contains the state by parameter name."""
    path = _file(fsdp_plugin, output_dir, OPTIMIZER_NAME, optimizer_index)
    context = context_of_run(accelerator)
    own_state = context.run.state.state_of(_name_of(context, optimizer))
    names = _names_in(own_state)
    state: dict[str, dict[str, Any]] = {}
    for key in sorted(key for key in own_state if key.startswith("state.")):
        name, _, entry = key.removeprefix("state.").rpartition(".")
        value = own_state[key]
        if isinstance(value, _C.TensorSlice):
            value = _whole(value, accelerator.is_main_process)
        state.setdefault(name, {})[entry] = value
    if accelerator.is_main_process:
        groups = [
            {**group, "params": params} for group, params in zip(optimizer.param_groups, names)
        ]
        path.parent.mkdir(parents=True, exist_ok=True)
        _files.save_pickle({"state": state, "param_groups": groups}, path)


def load_fsdp_optimizer(
    fsdp_plugin: FullyShardedDataParallelPlugin,
    accelerator: Accelerator,
    optimizer: torch.optim.Optimizer,
    model: torch.nn.Module,
    input_dir: str | os.PathLike,
    optimizer_index: int = 0,
    adapter_only: bool = False,
    use_dcp: bool = True,
) -> None:
    """Makes each process read its shard of `optimizer.bin`."""
    path = _file(fsdp_plugin, input_dir, OPTIMIZER_NAME, optimizer_index)
    saved = load(path, map_location="cpu", mmap=True)
    context = context_of_run(accelerator)
    own = _name_of(context, optimizer)
    own_state = context.run.state.state_of(own)
    names = _names_in(own_state)
    if [group["params"] for group in saved["param_groups"]] != names:
        raise UsageError(
            f"[FSDP] {path} and the optimizer have different parameter groups. Create the same groups "
            "before loading"
        )
    loaded = {key: value for key, value in own_state.items() if not key.startswith("state.")}
    for name, entries in saved["state"].items():
        loaded.update({f"state.{name}.{entry}": value for entry, value in entries.items()})
    context.run.state.load_state_of(own, loaded)
    for group, given in zip(optimizer.param_groups, saved["param_groups"]):
        group.update({key: value for key, value in given.items() if key != "params"})
    accelerator.wait_for_everyone()


def _name_of(context: RunContext, optimizer: Any) -> str:
    """Returns the optimizer's name in the registry of the run, which numbers objects of the same
    kind."""
    known = [name for name in context.run.state.names() if name.startswith("optimizer")]
    for name, prepared in zip(known, context.optimizers):
        if optimizer in (prepared, prepared.optimizer):
            return name
    raise UsageError("[FSDP] The optimizer was not prepared. Pass the result of prepare()")


def _names_in(saved: dict[str, Any]) -> list[list[str]]:
    """Returns the parameter names per group. A group may be empty."""
    names: list[list[str]] = []
    while any(key.startswith(f"groups.{len(names)}.") for key in saved):
        prefix = f"groups.{len(names)}.parameters."
        numbers = sorted(int(key[len(prefix) :]) for key in saved if key.startswith(prefix))
        names.append([saved[f"{prefix}{number}"] for number in numbers])
    return names


def _whole(shard: _C.TensorSlice, keep: bool) -> torch.Tensor | None:
    """Gathers a slice (collective). Returns None on processes with `keep=False`."""
    slices = gather_object([(shard.pieces, shard.values.cpu())])
    return _C.join_slices(shard.whole, slices) if keep else None


__getattr__ = placeholders_for(__name__)
