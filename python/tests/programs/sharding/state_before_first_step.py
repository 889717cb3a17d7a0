# SPDX-License-Identifier: Apache-2.0
import torch
from accelerate import Accelerator
from accelerate.utils import FullyShardedDataParallelPlugin


def net():
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))


def train(model, optimizer, backward):
    for step in range(4):
        torch.manual_seed(step)
        backward(model(torch.randn(4, 8)).square().mean())
        optimizer.step()
        optimizer.zero_grad()


accelerator = Accelerator(fsdp_plugin=FullyShardedDataParallelPlugin(fsdp_version=2))
# One that stepped already is refused, and is nobody's afterwards.
model = net()
stepped = torch.optim.AdamW(model.parameters())
train(model, stepped, torch.Tensor.backward)
try:
    accelerator.prepare(model, stepped)
except RuntimeError as error:
    assert "has state for" in str(error), error
else:
    raise AssertionError("was taken")
assert accelerator._optimizers == []
# Adagrad makes its state before the first step: taken, and trains as without sharding.
expected = net()
train(
    expected,
    torch.optim.Adagrad(expected.parameters(), 0.1, initial_accumulator_value=0.2),
    torch.Tensor.backward,
)
model = net()
optimizer = torch.optim.Adagrad(model.parameters(), 0.1, initial_accumulator_value=0.2)
model, optimizer = accelerator.prepare(model, optimizer)
train(model, optimizer, accelerator.backward)
for name, value in accelerator.get_state_dict(model).items():
    # Both ranks have the same rows: a mean of two equal gradients.
    assert torch.equal(value, expected.state_dict()[name]), name
print("took", accelerator.process_index)
