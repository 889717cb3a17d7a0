# SPDX-License-Identifier: Apache-2.0
"""Captured steps compared with eager steps."""

from __future__ import annotations

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


@pytest.fixture(autouse=True)
def fresh_state():
    """Each test chooses its device."""
    AcceleratorState._reset_state(True)
    yield
    AcceleratorState._reset_state(True)


def train(captured: bool, steps: int = 14, inside=lambda: None, **options):
    torch.manual_seed(3)
    accelerator = Accelerator(**options)
    net = torch.nn.Sequential(
        torch.nn.Linear(16, 32),
        torch.nn.LayerNorm(32),
        torch.nn.Dropout(0.2),
        torch.nn.Linear(32, 1),
    )
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.02)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.5)
    net, optimizer, scheduler = accelerator.prepare(net, optimizer, scheduler)

    def function(batch, scale):
        loss = scale * torch.nn.functional.mse_loss(net(batch["x"]), batch["y"])
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        inside()
        return {"loss": loss, "scale": scale}

    step = accelerator.capture(function)
    losses = []
    for i in range(steps):
        generator = torch.Generator().manual_seed(i)
        x = torch.randn(6, 16, generator=generator).to(accelerator.device)
        batch = {"x": x, "y": x.sum(1, keepdim=True)}
        with accelerator.accumulate(net):
            result = (step if captured else function)(batch, 2.0)
            scheduler.step()
        assert result["scale"] == 2.0
        losses.append(result["loss"].item())
    rate = float(optimizer.param_groups[0]["lr"])
    return losses, rate, step


def test_runs_the_function_on_the_cpu_and_says_so(capfd):
    expected, rate, _ = train(False, cpu=True)
    capfd.readouterr()
    losses, same_rate, step = train(True, cpu=True)
    assert losses == expected and rate == same_rate
    said = "[capture] The step is not recorded: cpu has no device graphs. Use a GPU"
    assert said in capfd.readouterr().err
    assert step.num_replays == step.num_graphs == 0
    assert step.__name__ == "function"


@needs_gpu
@pytest.mark.parametrize(
    "options", [{}, {"mixed_precision": "bf16"}, {"gradient_accumulation_steps": 3}]
)
def test_agrees_with_the_same_steps_uncaptured(options):
    expected, rate, _ = train(False, steps=24, **options)
    losses, same_rate, step = train(True, steps=24, **options)
    assert step.refusal == "" and step.num_replays > 10
    assert rate == pytest.approx(same_rate)
    # bf16 has 8 bits; otherwise learning rates are device floats instead of doubles.
    assert losses == pytest.approx(expected, rel=5e-2 if "mixed_precision" in options else 1e-3)


@needs_gpu
def test_refuses_a_function_that_waits(capfd):
    def wait():
        torch.ones((), device="cuda").item()

    expected, _, _ = train(False, inside=wait)
    losses, _, step = train(True, inside=wait)
    assert step.num_replays == 0 and step.refusal
    assert "[capture] " in capfd.readouterr().err
    assert losses == pytest.approx(expected, rel=1e-3)


@needs_gpu
def test_refuses_optimizers_of_the_host(capfd):
    accelerator = Accelerator()
    net = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    accelerator.prepare(net, optimizer)
    assert "SGD has no option `capturable`" in accelerator.capture(lambda x: x).refusal
