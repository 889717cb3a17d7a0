# SPDX-License-Identifier: Apache-2.0
"""Base class of libraries' forward hooks. Hooks that move weights between devices are not supported
(docs/guide_python.md)."""

from __future__ import annotations

from typing import Any

import torch

from accelerate._placeholders import placeholders_for

# Methods that the original replaces in a dispatched module.
_REPLACED = ("to", "cuda", "npu", "xpu", "mlu", "sdaa", "musa")


class ModelHook:
    """A hook around the forward of the module that it is attached to. With `no_grad`, the forward
    runs without gradients."""

    no_grad = False

    def init_hook(self, module: torch.nn.Module) -> torch.nn.Module:
        """Called when the hook is attached; returns the module."""
        return module

    def pre_forward(
        self, module: torch.nn.Module, *args: Any, **kwargs: Any
    ) -> tuple[tuple, dict[str, Any]]:
        """Returns the arguments of the forward."""
        return args, kwargs

    def post_forward(self, module: torch.nn.Module, output: Any) -> Any:
        """Returns the output of the module."""
        return output

    def detach_hook(self, module: torch.nn.Module) -> torch.nn.Module:
        """Called when the hook is detached; returns the module."""
        return module


def remove_hook_from_module(module: torch.nn.Module, recurse: bool = False) -> torch.nn.Module:
    """Detaches the hook of a module, and with `recurse` also the hooks of its submodules. Returns
    the module. A module without a hook is unchanged."""
    if hasattr(module, "_hf_hook"):
        module._hf_hook.detach_hook(module)
        del module._hf_hook
    if hasattr(module, "_old_forward"):
        # A traced module uses its class's forward.
        is_traced = "GraphModuleImpl" in str(type(module))
        (module.__class__ if is_traced else module).forward = module._old_forward
        del module._old_forward
    for name in _REPLACED:
        module.__dict__.pop(name, None)
    if recurse:
        for child in module.children():
            remove_hook_from_module(child, recurse)
    return module


__getattr__ = placeholders_for(__name__)
