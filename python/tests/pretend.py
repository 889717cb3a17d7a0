# SPDX-License-Identifier: Apache-2.0
"""Importing it registers a simulated accelerator with torch (tests/device), as the package of a
hardware vendor would: the devices, their Python module and their backend for collectives."""

from __future__ import annotations

import types

import pretend_accelerator as devices
import torch
import torch.distributed as dist


torch.utils.rename_privateuse1_backend(devices.NAME)
torch._register_device_module(
    devices.NAME,
    types.SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: True,
        device_count=lambda: devices.NUM_DEVICES,
        current_device=torch.accelerator.current_device_index,
        _is_in_bad_fork=lambda: False,
        manual_seed_all=lambda seed: None,
    ),
)
dist.Backend.register_backend(devices.BACKEND, devices.make_backend, devices=[devices.NAME])
