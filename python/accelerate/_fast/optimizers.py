# SPDX-License-Identifier: Apache-2.0
"""Torch's fused optimizers, which update all parameters with a few kernels."""

from __future__ import annotations

from typing import Any

import torch

_KINDS = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD)


def use_fused_kernels(optimizer: torch.optim.Optimizer) -> bool:
    """Switches an optimizer of torch to its fused implementation, unless the caller has chosen an
    implementation. Returns whether it was switched. The state keeps its format."""
    groups: list[dict[str, Any]] = optimizer.param_groups
    if type(optimizer) not in _KINDS or not all(_can_be_fused(group) for group in groups):
        return False
    for group in groups:
        group["fused"] = True
    # Groups that are added later, and the scaler of fp16, read these.
    optimizer.defaults["fused"] = True
    optimizer._step_supports_amp_scaling = True  # type: ignore[attr-defined]
    for parameter, state in optimizer.state.items():
        # The fused kernels read the number of steps from the device.
        if isinstance(state.get("step"), torch.Tensor):
            state["step"] = state["step"].to(parameter.device, torch.float32)
    return True


def _can_be_fused(group: dict[str, Any]) -> bool:
    is_chosen = any(group.get(name) for name in ("capturable", "differentiable"))
    is_chosen = is_chosen or group.get("foreach") is not None or group.get("fused") is not None
    return not is_chosen and all(
        p.is_cuda and p.is_floating_point() and p.layout == torch.strided for p in group["params"]
    )
