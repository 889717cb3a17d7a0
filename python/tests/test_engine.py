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

TRAIN = """
    import torch
    from accelerate import Accelerator
    from accelerate.utils.dataclasses import EngineKwargs
    import own_engine

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = torch.nn.BatchNorm1d(5)
            self.first = torch.nn.Linear(5, 7)
            self.second = torch.nn.Linear(7, 1)
            self.fails = False

        def forward(self, x):
            if self.fails:
                raise ValueError("no forward today")
            return self.second(torch.tanh(self.first(self.norm(x))))

    def train(handlers):
        accelerator = Accelerator(gradient_accumulation_steps=2, kwargs_handlers=handlers)
        torch.manual_seed(3)
        model = Net()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
        optimizer, prepared = accelerator.prepare(optimizer, model)
        generator = torch.Generator().manual_seed(17 + accelerator.process_index)
        norms = []
        for step in range(6):
            with accelerator.accumulate(prepared):
                loss = prepared(torch.randn(4, 5, generator=generator)).square().mean()
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    norms.append(accelerator.clip_grad_norm_(prepared.parameters(), 0.5).item())
                optimizer.step()
                optimizer.zero_grad(set_to_none=step % 4 != 3)
        return accelerator, prepared, optimizer, norms
"""


def test_another_strategy_trains_as_ddp(tmp_path):
    # The norm is summed in another order over slices: 1e-6 relative, and its effect on clipping.
    script = TRAIN + """
    _, expected, _, expected_norms = train([])
    accelerator, model, optimizer, norms = train([EngineKwargs(own_engine.optimizer_sharder())])
    for ours, theirs in zip(norms, expected_norms, strict=True):
        assert abs(ours - theirs) <= 1e-6 * theirs, (ours, theirs)
    for a, b in zip(model.parameters(), expected.parameters(), strict=True):
        assert torch.allclose(a, b, rtol=1e-5, atol=1e-6), a - b
    # Each process trains its half of every parameter.
    held = [p.numel() for group in optimizer.param_groups for p in group["params"]]
    assert held == [-(-p.numel() // 2) if accelerator.process_index == 0 else p.numel() // 2
                    for p in model.parameters()], held
    calls = own_engine.calls()
    for seam, count in {"before_forward": 6, "after_forward": 6, "outputs": 6,
                        "before_backward": 6, "after_backward": 6, "before_step": 3,
                        "after_step": 3, "zero_gradients": 3}.items():
        assert calls[seam] == count, (seam, calls)
    model.fails = True
    try:
        model(torch.zeros(4, 5))
    except ValueError:
        pass
    assert own_engine.calls()["abandon_forward"] == 1
    model.fails = False
    loss = model(torch.ones(4, 5)).sum()
    loss.register_hook(lambda gradient: 1 / 0)
    try:
        accelerator.backward(loss)
    except ZeroDivisionError:
        pass
    assert own_engine.calls()["abandon_backward"] == 1
    state = accelerator._run.state.state_dict()
    part = state["optimizer.state.first.weight.exp_avg"]
    held = (([0, 0], [7, 5], 0, 18), ([0, 0], [7, 5], 18, 17))[accelerator.process_index]
    assert part.whole == [7, 5] and [piece.__getstate__() for piece in part.pieces] == [held]
    assert part.values.numel() == 18 - accelerator.process_index
    assert state["engine.num_steps"] == 3
    print("equal", accelerator.process_index)
    """
    out = ranks.fork_ours(script, tmp_path)
    assert "equal 0" in out and "equal 1" in out


def test_a_strategy_refuses_an_optimizer_with_state(tmp_path):
    script = TRAIN + """
    accelerator = Accelerator(kwargs_handlers=[EngineKwargs(own_engine.optimizer_sharder())])
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(4, 5)).sum().backward()
    optimizer.step()
    try:
        accelerator.prepare(model, optimizer)
    except ValueError as error:
        print(error)
    """
    out = ranks.fork_ours(script, tmp_path)
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
def test_the_state_of_a_run_goes_on_bit_for_bit(fused, saved_after):
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


def test_a_loader_goes_on_where_the_registry_says():
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
    assert {"accumulation", "generator_cpu", "model", "engine", "optimizer", "scheduler"} <= set(names)
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
    with pytest.raises(ValueError, match="'what' is a object, expected a bool, int"):
        accelerator._run.state.state_dict()
