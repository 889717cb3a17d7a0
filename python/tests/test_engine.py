# SPDX-License-Identifier: Apache-2.0
"""The callbacks of the engine from Python: a second strategy (tests/parallel/optimizer_sharder.h),
and the registry of state."""

from __future__ import annotations

import pytest
import ranks
import torch

from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import DataLoaderConfiguration


def test_another_strategy_trains_as_ddp(tmp_path):
    # The norm is summed in another order over slices: 1e-6 relative, and its effect on clipping.
    out = ranks.fork_ours("engine/train_as_ddp.py", tmp_path)
    assert "equal 0" in out and "equal 1" in out


def test_a_strategy_refuses_an_optimizer_with_state(tmp_path):
    out = ranks.fork_ours("engine/optimizer_with_state.py", tmp_path)
    assert "[prepare] The optimizer already has state for 'norm.weight'" in out


def make(fused: bool):
    AcceleratorState._reset_state(True)
    accelerator = Accelerator(
        cpu=True,
        gradient_accumulation_steps=3,
        dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True, data_seed=5),
    )
    model = torch.nn.Sequential(
        torch.nn.Linear(3, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 1)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05, fused=fused)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)
    return accelerator, model, optimizer, scheduler


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("saved_after", [1, 3, 5])
def test_the_state_of_a_run_resumes_bit_for_bit(fused, saved_after):
    batches = torch.randn(9, 4, 3, generator=torch.Generator().manual_seed(1))

    def run(parts, begin, end):
        accelerator, model, optimizer, scheduler = parts
        losses = []
        for batch in batches[begin:end]:
            with accelerator.accumulate(model):
                loss = (model(batch) - batch.sum(1, True)).square().mean()
                accelerator.backward(loss)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
                losses.append(loss.item())
        return losses

    def copied(state):
        return {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in state.items()}

    torch.manual_seed(2)
    whole = make(fused)
    run(whole, 0, saved_after)
    saved = copied(whole[0]._run.state.state_dict())
    expected = run(whole, saved_after, 9)
    torch.manual_seed(99)
    rest = make(fused)
    rest[0]._run.state.load_state_dict(saved)
    assert run(rest, saved_after, 9) == expected
    assert rest[3].get_last_lr() == whole[3].get_last_lr()
    for a, b in zip(whole[1].state_dict().values(), rest[1].state_dict().values()):
        assert torch.equal(a, b)


def test_a_loader_resumes_at_the_position_in_the_registry():
    def loader_of(accelerator):
        data = torch.arange(20.0)
        return accelerator.prepare(torch.utils.data.DataLoader(data, batch_size=2, shuffle=True))

    accelerator, *_ = make(False)
    expected = []
    for index, batch in enumerate(loader := loader_of(accelerator)):
        if index == 3:
            saved = accelerator._run.state.state_dict()
        if index >= 3:  # Without a backward, the current batch does not count.
            expected.append(batch.tolist())
    torch.manual_seed(123)
    again, *_ = make(False)
    loader = loader_of(again)
    again._run.state.load_state_dict(saved)
    assert [batch.tolist() for batch in loader] == expected


def test_the_registry_names_what_was_prepared_and_says_what_does_not_fit():
    accelerator, *_ = make(False)
    registry = accelerator._run.state
    names = registry.names()
    assert {"accumulation", "generator_cpu", "model", "engine", "optimizer", "scheduler"} <= set(
        names
    )
    state = registry.state_dict()
    state = {key: value for key, value in state.items() if not key.startswith("scheduler.")}
    with pytest.raises(ValueError, match="does not contain 'scheduler'"):
        registry.load_state_dict(state)


def test_an_object_that_gives_other_values_is_named():
    from accelerate import _C

    class Odd(_C.Stateful):
        def state_dict(self):
            return {"what": object()}

    accelerator, *_ = make(False)
    odd = Odd()
    accelerator._run.state.add("odd", odd)
    with pytest.raises(ValueError, match="'what' is of type object, expected a bool, int"):
        accelerator._run.state.state_dict()
