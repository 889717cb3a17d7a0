# SPDX-License-Identifier: Apache-2.0
"""What libraries derive hooks of forwards from. Hooks that move weights between devices are not
there yet (docs/guide_python.md)."""

from __future__ import annotations

from typing import Any

import torch

from accelerate._placeholders import placeholders_for

# What the original replaces in a module that it dispatches.
_REPLACED = ("to", "cuda", "npu", "xpu", "mlu", "sdaa", "musa")


class ModelHook:
    """Called around the forward of a module that it is attached to; see each method. With `no_grad`
    the forward runs without gradients."""

    no_grad = False

    def init_hook(self, module: torch.nn.Module) -> torch.nn.Module:
        """The hook is attached; gives the module back."""
        return module

    def pre_forward(
        self, module: torch.nn.Module, *args: Any, **kwargs: Any
    ) -> tuple[tuple, dict[str, Any]]:
        """Gives the arguments of the forward."""
        return args, kwargs

    def post_forward(self, module: torch.nn.Module, output: Any) -> Any:
        """Gives what the module answers."""
        return output

    def detach_hook(self, module: torch.nn.Module) -> torch.nn.Module:
        """The hook is detached; gives the module back."""
        return module


def remove_hook_from_module(module: torch.nn.Module, recurse: bool = False) -> torch.nn.Module:
    """Detaches the hook of a module, and with `recurse` those of all modules inside; gives the
    module back. One without a hook stays as it is."""
    if hasattr(module, "_hf_hook"):
        module._hf_hook.detach_hook(module)
        del module._hf_hook
    if hasattr(module, "_old_forward"):
        # A traced module reads its class's.
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
