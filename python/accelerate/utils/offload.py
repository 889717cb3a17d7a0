# SPDX-License-Identifier: Apache-2.0
"""Weights on disk. They are in a folder with an index and one file of raw elements per tensor, as
Hugging Face Accelerate writes it, or in safetensors files."""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from accelerate import _C
from accelerate._placeholders import placeholders_for
from accelerate._state import files as _files
from accelerate.errors import AccelerateError, DataError

_INDEX = "index.json"


def offload_weight(
    weight: torch.Tensor,
    weight_name: str,
    offload_folder: str | os.PathLike,
    index: dict[str, Any] | None = None,
) -> dict[str, Any] | None:
    """Writes the elements of a tensor to `{weight_name}.dat`, and its dtype and shape to `index`.
    Returns the index. If the disk is full, no partial file remains."""
    plain = weight.detach().cpu().resolve_conj().resolve_neg().contiguous()
    if index is not None:
        dtype = str(plain.dtype).removeprefix("torch.")
        index[weight_name] = {"dtype": dtype, "shape": list(plain.shape)}
    view: Any = b""
    if plain.nbytes > 0:
        view = (ctypes.c_char * plain.nbytes).from_address(plain.data_ptr())
    _write(os.path.join(offload_folder, f"{weight_name}.dat"), view)
    return index


def _write(path: str, content: Any) -> None:
    try:
        # These files are only needed while the model is in use.
        with _files.written_whole(path, sync=False) as temporary, open(temporary, "wb") as file:
            file.write(content)
    except OSError as error:
        raise AccelerateError(
            f"[offload] Cannot write '{path}': {error.strerror}. Free some space or choose a "
            "different offload folder"
        ) from error


def load_offloaded_weight(
    weight_file: str | os.PathLike, weight_info: Mapping[str, Any]
) -> torch.Tensor:
    """Reads a tensor that `offload_weight` wrote."""
    return _read(weight_file, weight_info)


def _read(path: str | os.PathLike, info: Mapping[str, Any]) -> torch.Tensor:
    if not os.path.exists(path):
        raise FileNotFoundError(
            f"[offload] '{os.fspath(path)}' does not exist. Offload the model again"
        )
    dtype = getattr(torch, str(info.get("dtype")), None)
    if not isinstance(dtype, torch.dtype) or not isinstance(info.get("shape"), (list, tuple)):
        raise DataError(
            f"[offload] The index describes '{os.fspath(path)}' as {dict(info)}, which is not a "
            "dtype and a shape. Offload the model again"
        )
    return _C.read_plain_tensor(os.fspath(path), list(info["shape"]), dtype)


def save_offload_index(index: dict[str, Any] | None, offload_folder: str | os.PathLike) -> None:
    """Adds the entries to the folder's index."""
    if not index:
        return
    path = os.path.join(offload_folder, _INDEX)
    entries = _read_index(path) if os.path.isfile(path) else {}
    entries.update(index)
    _write(path, json.dumps(entries, indent=2).encode())


def _read_index(path: str) -> dict[str, Any]:
    with open(path, encoding="utf-8") as file:
        try:
            index = json.load(file)
        except ValueError as error:
            raise DataError(
                f"[offload] '{path}' is not JSON: {error}. Offload the model again"
            ) from error
    if not isinstance(index, dict) or not all(isinstance(info, dict) for info in index.values()):
        raise DataError(
            f"[offload] '{path}' is not the index of an offload folder. Offload the model again"
        )
    return index


def offload_state_dict(save_dir: str | os.PathLike, state_dict: Mapping[str, torch.Tensor]) -> None:
    """Writes the tensors and their index to the folder."""
    os.makedirs(save_dir, exist_ok=True)
    index: dict[str, Any] = {}
    for name, tensor in state_dict.items():
        offload_weight(tensor, name, save_dir, index=index)
    save_offload_index(index, save_dir)


class PrefixedDataset(Mapping):
    """The entries of a mapping whose keys start with the prefix. Callers omit the prefix."""

    def __init__(self, dataset: Mapping, prefix: str):
        self.dataset = dataset
        self.prefix = prefix

    def __getitem__(self, key: str) -> Any:
        return self.dataset[f"{self.prefix}{key}"]

    def __iter__(self) -> Iterator[str]:
        return iter([key for key in self.dataset if key.startswith(self.prefix)])

    def __len__(self) -> int:
        return len(self.dataset)


class _OpenFiles:
    """Safetensors files that stay open, so that each header is read only once."""

    def __init__(self) -> None:
        self.files: dict[str, Any] = {}

    def __getitem__(self, path: str) -> Any:
        file = self.files.get(path)
        if file is None:
            if not os.path.exists(path):
                raise FileNotFoundError(
                    f"[offload] '{path}' does not exist. Keep the model's files while the model "
                    "is in use, or load the model again"
                )
            file = self.files[path] = _C.WeightsFile(path)
        return file

    def __reduce__(self) -> tuple[type, tuple]:
        return _OpenFiles, ()


class OffloadedWeightsLoader(Mapping):
    """Tensors by name. Contains those in `state_dict`, and those in `index`, which are read from
    disk on each access. The index contains the dtype and shape of each file in `save_folder`, or
    the `safetensors_file` and `weight_name` of a tensor. By default, it is the index in
    `save_folder`.

    Tensors from safetensors files are put on `device`."""

    def __init__(
        self,
        state_dict: dict[str, torch.Tensor] | None = None,
        save_folder: str | os.PathLike | None = None,
        index: Mapping[str, Any] | None = None,
        device: int | str | torch.device | None = None,
    ):
        if state_dict is None and save_folder is None and index is None:
            raise ValueError(
                "Need either a `state_dict`, a `save_folder` or an `index` containing offloaded "
                "weights."
            )
        if index is None and save_folder is not None:
            index = _read_index(os.path.join(save_folder, _INDEX))
        self.state_dict = {} if state_dict is None else state_dict
        self.save_folder = save_folder
        self.index = {} if index is None else index
        self.all_keys = [
            *self.state_dict,
            *(key for key in self.index if key not in self.state_dict),
        ]
        self.device = device
        self._files = _OpenFiles()

    def __getitem__(self, key: str) -> torch.Tensor:
        if key in self.state_dict:
            return self.state_dict[key]
        info = self.index[key]
        path = info.get("safetensors_file")
        if path is None:
            return _read(os.path.join(self.save_folder or "", f"{key}.dat"), info)
        tensor = self._files[os.fspath(path)].read(info.get("weight_name", key))
        dtype = getattr(torch, info["dtype"]) if "dtype" in info else tensor.dtype
        return tensor.to(device="cpu" if self.device is None else self.device, dtype=dtype)

    def __contains__(self, key: object) -> bool:
        return key in self.state_dict or key in self.index

    def __iter__(self) -> Iterator[str]:
        return iter(self.all_keys)

    def __len__(self) -> int:
        return len(self.all_keys)


def extract_submodules_state_dict(
    state_dict: Mapping[str, torch.Tensor], submodule_names: list[str]
) -> dict[str, torch.Tensor]:
    """Returns the entries of the state dict that belong to these submodules."""
    return {
        key: tensor
        for name in submodule_names
        for key, tensor in state_dict.items()
        if key == name or key.startswith(f"{name}.")
    }


__getattr__ = placeholders_for(__name__)
