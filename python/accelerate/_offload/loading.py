# SPDX-License-Identifier: Apache-2.0
"""Loads checkpoints tensor by tensor, so that a model never needs memory for a second copy."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from accelerate import _C
from accelerate import hooks as _hooks
from accelerate._offload import device_maps as _device_maps
from accelerate._offload.module_tensors import (
    as_dtype,
    find_tied_parameters,
    is_never_cast,
    retie_parameters,
    set_module_tensor_to_device,
)
from accelerate.errors import DataError
from accelerate.utils.constants import SAFE_WEIGHTS_NAME, WEIGHTS_NAME
from accelerate.utils.offload import load_offloaded_weight, offload_weight, save_offload_index

logger = logging.getLogger("accelerate.utils.modeling")

DeviceMap = dict[str, Any]


def has_offloaded_params(module: torch.nn.Module) -> bool:
    """Whether a hook loads the module's weights when it runs."""
    hook = getattr(module, "_hf_hook", None)
    return isinstance(hook, _hooks.AlignDevicesHook) and hook.offload


@contextmanager
def align_module_device(
    module: torch.nn.Module, execution_device: int | str | torch.device | None = None
) -> Iterator[None]:
    """Inside the block, the module's own parameters are on `execution_device`. Offloaded parameters
    are loaded, by default to the device that their hook runs on."""
    offloading = _hooks._offloading_hooks(module)
    if offloading:
        hook = offloading[0]
        runs_on = hook.execution_device
        if execution_device is not None:
            hook.execution_device = execution_device
        try:
            hook.pre_forward(module)
            yield
        finally:
            hook.post_forward(module, None)
            hook.execution_device = runs_on
        return
    devices = {}
    if execution_device is not None:
        devices = {name: p.device for name, p in module.named_parameters(recurse=False)}
    try:
        for name in devices:
            set_module_tensor_to_device(module, name, execution_device)
        yield
    finally:
        for name, device in devices.items():
            set_module_tensor_to_device(module, name, device)


def get_state_dict_offloaded_model(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Returns the state dict of a dispatched model on the CPU. Loads one module at a time."""
    state: dict[str, torch.Tensor] = {}
    empty: set[str] = set()
    for prefix, module in model.named_modules():
        # Modules without such a hook are copied from their device. Tensors without values belong to
        # an outer module.
        device = "cpu" if _hooks._offloading_hooks(module) else None
        try:
            with align_module_device(module, device):
                tensors = module.state_dict(prefix=f"{prefix}." if prefix else "")
                for name, tensor in tensors.items():
                    if tensor.device.type == "meta":
                        empty.add(name)
                    else:
                        state[name] = tensor.to("cpu")
        except MemoryError:
            raise MemoryError(
                "Offloaded module must fit in CPU memory to call save_model!"
            ) from None
    empty.difference_update(state)
    if empty:
        logger.warning(
            f"The following tensors were not saved because they were still on meta device: {empty}"
        )
    return state


def get_state_dict_from_offload(
    module: torch.nn.Module,
    module_name: str,
    state_dict: dict[str, Any],
    device_to_put_offload: int | str | torch.device | None = "cpu",
) -> dict[str, Any]:
    """Replaces the entries of `state_dict` that belong to the module with the module's tensors.
    `module_name` is the full name of one of the module's own tensors, e.g. `layers.0.weight`."""
    if not has_offloaded_params(module):
        device_to_put_offload = None
    root = module_name.rpartition(".")[0]
    with align_module_device(module, device_to_put_offload):
        for name, tensor in module.state_dict().items():
            if f"{root}.{name}" in state_dict:
                state_dict[f"{root}.{name}"] = tensor
    return state_dict


# --- files --------------------------------------------------------------------------------------


def _weights_file(path: str) -> Any:
    """Opens a safetensors file and checks its metadata, which must say that it contains torch's
    tensors."""
    if not os.path.exists(path):
        raise FileNotFoundError(
            f"[load_checkpoint] '{path}' does not exist. Download or copy the whole checkpoint"
        )
    file = _C.WeightsFile(path)
    metadata = file.metadata()
    if not metadata:
        logger.warning(
            f"The safetensors archive passed at {path} does not contain metadata. Make sure to "
            "save your model with the `save_pretrained` method. Defaulting to 'pt' metadata."
        )
    elif metadata.get("format") not in ("pt", "tf", "flax"):
        raise OSError(
            f"The safetensors archive passed at {path} does not contain the valid metadata. Make "
            "sure you save your model with the `save_pretrained` method."
        )
    elif metadata["format"] != "pt":
        raise ValueError(
            f"The checkpoint passed was saved with {metadata['format']}, we need a the pt format."
        )
    return file


def _pickled(path: str) -> dict[str, torch.Tensor]:
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except (RuntimeError, EOFError) as error:
        raise DataError(
            f"[load_checkpoint] '{path}' is damaged: {error}. Download or copy it again"
        ) from error


def _tensors_in(path: str) -> Iterator[tuple[str, torch.Tensor]]:
    if not path.endswith(".safetensors"):
        yield from _pickled(path).items()
        return
    file = _weights_file(path)
    for name in file.names():
        yield name, file.read(name)


def load_state_dict(
    checkpoint_file: str | os.PathLike, device_map: DeviceMap | None = None
) -> dict[str, torch.Tensor]:
    """Returns the tensors of a safetensors file, or of a `torch.save` file on the CPU. `device_map`
    maps the names of modules to the devices of their tensors. Other tensors stay on the CPU."""
    path = os.fspath(checkpoint_file)
    if not path.endswith(".safetensors"):
        return _pickled(path)
    tensors = {}
    is_of_one = device_map is not None and len(set(device_map.values())) == 1
    for name, tensor in _tensors_in(path):
        tensors[name] = tensor
        for module, device in (device_map or {}).items():
            if is_of_one or name == module or name.startswith(f"{module}."):
                tensors[name] = tensor if device == "disk" else tensor.to(device)
    return tensors


def _files_of(checkpoint: str) -> list[str]:
    if os.path.isfile(checkpoint):
        return _shards(checkpoint) if checkpoint.endswith(".json") else [checkpoint]
    if not os.path.isdir(checkpoint):
        raise ValueError(
            "`checkpoint` should be the path to a file containing a whole state dict, or the "
            "index of a sharded checkpoint, or a folder containing a sharded checkpoint or the "
            f"whole state dict, but got {checkpoint}."
        )
    for name in (WEIGHTS_NAME, SAFE_WEIGHTS_NAME):
        if os.path.exists(os.path.join(checkpoint, name)):
            return [os.path.join(checkpoint, name)]
    indices = [name for name in os.listdir(checkpoint) if name.endswith(".index.json")]
    if not indices:
        raise ValueError(
            f"{checkpoint} is not a folder containing a `.index.json` file or a {WEIGHTS_NAME} or "
            f"a {SAFE_WEIGHTS_NAME} file"
        )
    if len(indices) > 1:
        raise ValueError(
            f"{checkpoint} containing more than one `.index.json` file, delete the irrelevant ones."
        )
    return _shards(os.path.join(checkpoint, indices[0]))


def _shards(index_file: str) -> list[str]:
    with open(index_file, encoding="utf-8") as file:
        try:
            index = json.load(file)
        except ValueError as error:
            raise DataError(
                f"[load_checkpoint] '{index_file}' is not JSON: {error}. Download or copy it again"
            ) from error
    names = index.get("weight_map", index) if isinstance(index, dict) else None
    if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
        raise DataError(
            f"[load_checkpoint] '{index_file}' does not map tensors to files. Download or copy it "
            "again"
        )
    folder = os.path.dirname(index_file)
    paths = [os.path.join(folder, name) for name in sorted(set(names.values()))]
    missing = [path for path in paths if not os.path.exists(path)]
    if missing:
        raise FileNotFoundError(
            f"[load_checkpoint] '{index_file}' lists '{missing[0]}', which does not exist "
            f"({len(missing)} of {len(paths)} files are missing). Download or copy the whole "
            "checkpoint"
        )
    return paths


# --- loading ------------------------------------------------------------------------------------


def load_checkpoint_in_model(
    model: torch.nn.Module,
    checkpoint: str | os.PathLike,
    device_map: DeviceMap | None = None,
    offload_folder: str | os.PathLike | None = None,
    dtype: str | torch.dtype | None = None,
    offload_state_dict: bool = False,
    offload_buffers: bool = False,
    keep_in_fp32_modules: list[str] | None = None,
    offload_8bit_bnb: bool = False,
    strict: bool = False,
    full_state_dict: bool = True,
    broadcast_from_rank0: bool = False,
) -> None:
    """Loads a checkpoint into the model. Each tensor is loaded directly onto its device in
    `device_map`. Tensors for "disk" are written to `offload_folder`. Afterwards, call
    `dispatch_model`.

    `checkpoint` is a safetensors or `torch.save` file, an index of several files, or a folder with
    one of these. Floating-point tensors are converted to `dtype`. If it is fp16, those of
    `keep_in_fp32_modules` stay in fp32. Tensors that the model does not have raise an error with
    `strict`, and are otherwise only reported. Without a device map, `full_state_dict` and
    `broadcast_from_rank0` are passed to torch (`StateDictOptions`).

    Because tensors are read one by one, `offload_state_dict` is not needed and has no effect."""
    if offload_8bit_bnb:
        raise NotImplementedError(
            "[load_checkpoint_in_model] Weights cannot be quantized while they are offloaded. "
            "Pass offload_8bit_bnb=False"
        )
    tied = find_tied_parameters(model)
    _device_maps.warn_if_untied(model, tied)
    if device_map is not None:
        _device_maps.check_tied_parameters_on_same_device(tied, device_map)
        if "disk" in device_map.values():
            if offload_folder is None:
                raise ValueError(
                    "At least one of the model submodule will be offloaded to disk, please pass "
                    "along an `offload_folder`."
                )
            os.makedirs(offload_folder, exist_ok=True)
    files = _files_of(os.fspath(checkpoint))
    dtype = as_dtype(dtype)
    names = set(model.state_dict())
    if device_map is None:
        loaded = _load_in_place(model, files, full_state_dict, broadcast_from_rank0)
        if strict:
            _refuse_differences(model, names - loaded, loaded - names)
    else:
        placer = _Placer(model, device_map, offload_folder, dtype, offload_buffers)
        loaded = set()
        for path in files:
            for name, tensor in _tensors_in(path):
                loaded.add(name)
                if name in names:
                    kept = _is_kept(name, keep_in_fp32_modules) and dtype == torch.float16
                    placer.put(name, tensor, torch.float32 if kept else dtype)
                elif strict:
                    _refuse_differences(model, set(), {name})
        placer.finish()
    unexpected = loaded - names
    if unexpected:
        logger.warning(
            f"Some weights of the model checkpoint at {checkpoint} were not used when "
            f"initializing {type(model).__name__}: {sorted(unexpected)}. This may or may not be "
            "an issue - make sure that the checkpoint does not have unnecessary parameters, or "
            "that the model definition correctly corresponds to the checkpoint."
        )
    retie_parameters(model, tied)


def _refuse_differences(
    model: torch.nn.Module, missing: Iterable[str], unexpected: Iterable[str]
) -> None:
    problems = [
        f"{kind} key(s) in state_dict: {', '.join(sorted(names))}."
        for kind, names in (("Missing", missing), ("Unexpected", unexpected))
        if names
    ]
    if problems:
        raise RuntimeError(
            f"Error(s) in loading state_dict for {type(model).__name__}:\n\t"
            + "\n\t".join(problems)
        )


def _is_kept(name: str, modules: list[str] | None) -> bool:
    return any(key == name or f"{key}." in name for key in modules or ())


def _load_in_place(
    model: torch.nn.Module, files: list[str], full_state_dict: bool, broadcast_from_rank0: bool
) -> set[str]:
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

    options = StateDictOptions(
        full_state_dict=full_state_dict, strict=False, broadcast_from_rank0=broadcast_from_rank0
    )
    loaded: set[str] = set()
    reads = not broadcast_from_rank0 or torch.distributed.get_rank() == 0
    devices = {tensor.device for tensor in model.state_dict().values()} - {torch.device("meta")}
    for path in files:
        state = dict(_tensors_in(path)) if reads else {}
        loaded.update(state)
        if len(devices) > 1:
            model.load_state_dict(state, strict=False)
        else:
            set_model_state_dict(model, state, options=options)
    return loaded


class _Placer:
    """Puts the tensors of a checkpoint on the devices of the device map."""

    def __init__(
        self,
        model: torch.nn.Module,
        device_map: DeviceMap,
        offload_folder: str | os.PathLike | None,
        dtype: torch.dtype | None,
        offload_buffers: bool,
    ):
        self.model = model
        self.device_map = device_map
        self.folder = offload_folder
        self.stays = set() if offload_buffers else {name for name, _ in model.named_buffers()}
        self.index: dict[str, Any] = {}

    def put(self, name: str, tensor: torch.Tensor, dtype: torch.dtype | None) -> None:
        device = _device_maps.device_of(name, self.device_map)
        if device != "disk":
            set_module_tensor_to_device(self.model, name, device, value=tensor, dtype=dtype)
        elif name not in self.stays:
            if dtype is not None and not is_never_cast(tensor.dtype):
                tensor = tensor.to(dtype)
            set_module_tensor_to_device(self.model, name, "meta", dtype=tensor.dtype)
            assert self.folder is not None
            offload_weight(tensor, name, self.folder, index=self.index)

    def finish(self) -> None:
        if self.folder is not None:
            save_offload_index(self.index, self.folder)


def load_offloaded_weights(
    model: torch.nn.Module, index: dict[str, Any] | None, offload_folder: str | os.PathLike
) -> None:
    """Loads the weights that `index` describes from the folder into the model, on the CPU."""
    for name, info in (index or {}).items():
        path = os.path.join(offload_folder, f"{name}.dat")
        set_module_tensor_to_device(model, name, "cpu", value=load_offloaded_weight(path, info))
