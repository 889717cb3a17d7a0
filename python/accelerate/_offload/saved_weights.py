# SPDX-License-Identifier: Apache-2.0
"""Autograd saves the weights of a forward pass for the backward pass. If weights were loaded only
for the forward pass, this module saves instead how to load them again. The backward pass of a large
model then does not need memory for all its weights at once."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

Load = Callable[[], torch.Tensor]

# Currently loaded weights, by the address of their memory.
_loaded: dict[int, tuple[weakref.ref[torch.Tensor], Load]] = {}
# The hooks of this module that are active in this thread.
_active = threading.local()
_PLAIN = (torch.Tensor, torch.nn.Parameter)


def _address(tensor: torch.Tensor) -> int:
    try:
        return tensor.untyped_storage().data_ptr()
    except (NotImplementedError, RuntimeError):  # sparse tensors, and subclasses without memory
        return 0


def remember(weight: torch.Tensor, load: Load) -> int:
    """From now on, the backward pass calls `load` to load the weight again. Returns a key for
    `forget`."""
    address = _address(weight)
    if address != 0:
        _loaded[address] = (weakref.ref(weight), load)
    return address


def _load_of(tensor: torch.Tensor) -> Load | None:
    address = _address(tensor) if type(tensor) in _PLAIN else 0
    weight, load = _loaded.get(address, (None, None))
    loaded = None if weight is None else weight()
    # The weight may no longer exist, and its memory may belong to another tensor.
    if loaded is None or loaded.dtype != tensor.dtype or _address(loaded) != address:
        return None
    return load


def forget(key: int) -> None:
    """Forgets the weight, because its memory may now be used for something else."""
    _loaded.pop(key, None)


class _Weight:
    """A view of a weight, and how to load the weight again."""

    def __init__(self, tensor: torch.Tensor, load: Load):
        self.view = (tensor.size(), tensor.stride(), tensor.storage_offset())
        self.load = load

    def restored(self) -> torch.Tensor:
        return self.load().as_strided(*self.view)


@contextmanager
def kept_out_of_graph() -> Iterator[None]:
    """Inside the block, forward passes do not keep loaded weights for the backward pass. Other
    hooks for saved tensors, such as those of activation checkpointing, receive all other
    tensors."""
    if not torch.is_grad_enabled():
        yield
        return
    outer = torch._C._autograd._top_saved_tensors_default_hooks(True)
    if outer is not None and outer[0] is getattr(_active, "pack", None):
        yield  # An outer module has already started the block.
        return

    def pack(tensor: torch.Tensor) -> Any:
        load = _load_of(tensor)
        if load is not None:
            return _Weight(tensor, load)
        return tensor if outer is None else outer[0](tensor)

    def unpack(packed: Any) -> torch.Tensor:
        if isinstance(packed, _Weight):
            return packed.restored()
        return packed if outer is None else outer[1](packed)

    before = getattr(_active, "pack", None)
    _active.pack = pack
    try:
        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            yield
    finally:
        _active.pack = before
