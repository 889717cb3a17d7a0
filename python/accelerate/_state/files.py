# SPDX-License-Identifier: Apache-2.0
"""Writes files atomically."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from accelerate import _C
from accelerate.errors import AccelerateError


@contextmanager
def written_whole(path: str | os.PathLike, sync: bool = True) -> Iterator[str]:
    """Yields a temporary path next to `path`, which is renamed to `path` at the end of the block.
    If the block raises, the temporary file is removed. Without `sync`, the file may be lost in a
    power failure."""
    folder, name = os.path.split(os.path.abspath(path))
    handle, temporary = tempfile.mkstemp(prefix=f".{name}.", suffix=".tmp", dir=folder)
    try:
        os.close(handle)
        yield temporary
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)
        if sync:
            with open(temporary, "rb") as file:
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def save_pickle(value: Any, path: str | os.PathLike) -> None:
    """Like `torch.save`, but atomic. Raises `AccelerateError` if the disk is full."""
    with written_whole(path) as temporary:
        try:
            # If torch gets a name instead of a file, its error on a full disk is only "unexpected
            # pos".
            with open(temporary, "wb") as file:
                torch.save(value, file)
        except (OSError, RuntimeError) as error:
            cause: BaseException | None = error
            while cause is not None and not isinstance(cause, OSError):
                cause = cause.__context__
            if cause is None or cause.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise
            raise AccelerateError(
                f"[save] Cannot write '{os.fspath(path)}': {cause.strerror}. Free some space and "
                "try again"
            ) from error


def without_aliases(state: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns the entries without aliases, and the aliases. An alias is a tensor that is also
    listed under an earlier name. The second result maps the alias to this name. Tensors without
    elements share no memory."""
    first: dict[tuple, str] = {}
    kept: dict[str, Any] = {}
    aliases: dict[str, str] = {}
    for name, tensor in state.items():
        if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.strided:
            kept[name] = tensor
            continue
        marks = (tensor.is_conj(), tensor.is_neg())
        memory = (tensor.device, tensor.data_ptr(), tensor.dtype)
        key = (*memory, tensor.shape, tensor.stride(), *marks)
        if tensor.numel() > 0 and key in first:
            aliases[name] = first[key]
        else:
            first[key] = name
            kept[name] = tensor
    return kept, aliases


def save_tensors(state: dict[str, torch.Tensor], path: str | os.PathLike) -> None:
    """Writes a safetensors file as transformers does: tied weights are stored once, with their
    other names in the metadata."""
    tensors, aliases = without_aliases(state)
    _C.save_tensors(os.fspath(path), tensors, {"format": "pt", **aliases})


def load_tensors(path: str | os.PathLike) -> dict[str, torch.Tensor]:
    """Returns the content of a safetensors file, on the CPU."""
    return _C.load_tensors(os.fspath(path))
