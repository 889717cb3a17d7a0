# SPDX-License-Identifier: Apache-2.0
import own_engine
import torch
from accelerate.utils.dataclasses import EngineKwargs
from own_strategy import train

_, expected, _, expected_norms = train([])
accelerator, model, optimizer, norms = train([EngineKwargs(own_engine.optimizer_sharder())])
for ours, theirs in zip(norms, expected_norms, strict=True):
    assert abs(ours - theirs) <= 1e-6 * theirs, (ours, theirs)
for a, b in zip(model.parameters(), expected.parameters(), strict=True):
    assert torch.allclose(a, b, rtol=1e-5, atol=1e-6), a - b
# Each process trains its half of every parameter.
held = [p.numel() for group in optimizer.param_groups for p in group["params"]]
assert held == [
    -(-p.numel() // 2) if accelerator.process_index == 0 else p.numel() // 2
    for p in model.parameters()
], held
calls = own_engine.calls()
for seam, count in {
    "before_forward": 6,
    "after_forward": 6,
    "outputs": 6,
    "before_backward": 6,
    "after_backward": 6,
    "before_step": 3,
    "after_step": 3,
    "zero_gradients": 3,
}.items():
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
