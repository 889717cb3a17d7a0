# SPDX-License-Identifier: Apache-2.0
import json
import sys

import torch
from accelerate import Accelerator
from accelerate.utils import FullyShardedDataParallelPlugin

import pretend

where = sys.argv[1]
plugin = FullyShardedDataParallelPlugin(
    fsdp_version=2, auto_wrap_policy="SIZE_BASED_WRAP", min_num_params=1000, ignored_modules="head"
)
accelerator = Accelerator(cpu=where == "cpu", fsdp_plugin=plugin)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(64, 64) for _ in range(16))
        self.head = torch.nn.Linear(64, 3)
        self.register_buffer("scale", torch.full((64,), 0.5))

    def forward(self, x):
        for layer in self.layers:
            x = x + torch.tanh(layer(x * self.scale))
        return self.head(x)


torch.manual_seed(11 + accelerator.process_index)  # The main process's weights count.
model = Net()
num_bytes = sum(parameter.nbytes for parameter in model.parameters())
optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
before = pretend.devices.num_bytes()
pretend.devices.restart_peak()
model, optimizer = accelerator.prepare(model, optimizer)
peak = pretend.devices.peak_bytes() - before
assert all(parameter.device == accelerator.device for parameter in model.parameters())
assert model.scale.device == accelerator.device
torch.manual_seed(3 + accelerator.process_index)
losses = []
for step in range(3):
    x = torch.randn(4, 64).to(accelerator.device)
    loss = model(x).square().mean()
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
state = {name: value.tolist() for name, value in accelerator.get_state_dict(model).items()}
with open(f"answer_{where}_{accelerator.process_index}", "w") as file:
    json.dump({"numbers": [losses, state], "peak": peak / num_bytes}, file)
accelerator.end_training()
