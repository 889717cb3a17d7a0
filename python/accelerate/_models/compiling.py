# SPDX-License-Identifier: Apache-2.0
"""Compiles a prepared module as `dynamo_plugin` requests."""

from __future__ import annotations

from typing import Any

import torch

from accelerate._models.prepared_module import is_compiled_module
from accelerate.utils.other import compile_regions


def compiled(prepared: torch.nn.Module, plugin: Any, evaluation_mode: bool) -> torch.nn.Module:
    """Compiles the module as the plugin requests, but only once."""
    if is_compiled_module(prepared) or prepared._compiled_call_impl is not None:
        return prepared
    kwargs = plugin.to_kwargs()
    if plugin.use_regional_compilation:
        return compile_regions(prepared, **kwargs)
    if not evaluation_mode:
        return torch.compile(prepared, **kwargs)
    # Compile in place, so that `prepare` recognises the module if it is trained later.
    prepared.compile(**kwargs)
    return prepared
