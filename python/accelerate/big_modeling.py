# SPDX-License-Identifier: Apache-2.0
"""Creates modules on a given device, or without memory for their weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from accelerate._placeholders import placeholders_for
from accelerate.utils.environment import parse_flag_from_env
from accelerate.utils.modeling import check_device_map as check_device_map


@contextmanager
def init_empty_weights(include_buffers: bool | None = None) -> Iterator[None]:
    """Modules created inside have parameters without memory (on the meta device). With
    `include_buffers` this also applies to buffers. The default is the variable
    ACCELERATE_INIT_INCLUDE_BUFFERS."""
    with init_on_device(torch.device("meta"), include_buffers):
        yield


@contextmanager
def init_on_device(device: torch.device, include_buffers: bool | None = None) -> Iterator[None]:
    """Modules created inside have their parameters on the device. With `include_buffers`, this
    applies to every new tensor."""
    if include_buffers is None:
        include_buffers = parse_flag_from_env("ACCELERATE_INIT_INCLUDE_BUFFERS")
    if include_buffers:
        with device:
            yield
        return
    # Inner blocks and libraries may also have replaced this method. Each restores the one it found.
    register = torch.nn.Module.register_parameter

    def register_on_device(
        module: torch.nn.Module, name: str, param: torch.nn.Parameter | None
    ) -> None:
        register(module, name, param)
        if param is not None:
            module._parameters[name] = _on(device, module._parameters[name])

    torch.nn.Module.register_parameter = register_on_device
    try:
        yield
    finally:
        torch.nn.Module.register_parameter = register


def _on(device: torch.device, parameter: torch.nn.Parameter) -> torch.nn.Parameter:
    attributes = dict(vars(parameter))
    is_initialized = attributes.pop("_is_hf_initialized", None)
    # Subclasses of Parameter take their attributes as arguments.
    moved = type(parameter)(
        parameter.to(device), requires_grad=parameter.requires_grad, **attributes
    )
    if is_initialized is not None:
        moved._is_hf_initialized = is_initialized
    return moved


__getattr__ = placeholders_for(__name__)
