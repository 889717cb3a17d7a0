# SPDX-License-Identifier: Apache-2.0
"""Helpers for tests that resume from another run's checkpoint."""

from __future__ import annotations

import pytest
import torch

from accelerate import Accelerator
from accelerate.state import AcceleratorState


class Kept:
    """An object to register, with one value."""

    def __init__(self, value):
        self.value = value

    def state_dict(self):
        return {"value": self.value}

    def load_state_dict(self, state):
        self.value = state["value"]


@pytest.fixture
def make(tmp_path, monkeypatch):
    """A new run with a model and its optimizer."""
    monkeypatch.chdir(tmp_path)

    def make(model=None, **kwargs):
        AcceleratorState._reset_state(True)
        accelerator = Accelerator(cpu=True, **kwargs)
        model = torch.nn.Linear(3, 2) if model is None else model
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        model, optimizer = accelerator.prepare(model, optimizer)
        return accelerator, model, optimizer

    return make
