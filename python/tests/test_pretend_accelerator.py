# SPDX-License-Identifier: Apache-2.0
"""A kind of accelerator that the package does not know trains bit-identically to the CPU: its
kernels are the CPU's, with the same values in the same order."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from ranks import check, fork_ours, run
from tiers import cases

ALONE = [sys.executable]
LAUNCH = ["accelerate", "launch", "--num_processes", "2"]
TRAIN = """
import json, sys
import torch
import pretend
from accelerate import Accelerator

where, precision, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
accelerator = Accelerator(
    cpu=where == "cpu", mixed_precision=precision, gradient_accumulation_steps=steps
)
torch.manual_seed(11)
data = torch.utils.data.TensorDataset(torch.randn(48, 5), torch.randn(48, 3))
loader = torch.utils.data.DataLoader(data, batch_size=4, shuffle=True)
model = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
loader, model, optimizer = accelerator.prepare(loader, model, optimizer)
losses = []
for inputs, targets in loader:
    assert inputs.device == accelerator.device
    with accelerator.accumulate(model):
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    losses.append(accelerator.reduce(loss.detach(), "mean").item())
weights = [weight.tolist() for weight in model.parameters()]
with open(f"answer_{where}_{accelerator.process_index}", "w") as file:
    json.dump(
        {
            "numbers": [losses, weights],
            "device": str(accelerator.device),
            "type": accelerator.distributed_type.value,
            "kernels": pretend.devices.num_kernels(),
            "collectives": pretend.devices.num_collectives(),
        },
        file,
    )
accelerator.end_training()
"""
# Precision, and micro-batches per update.
SETTINGS = cases(
    [("no", "1"), ("bf16", "1"), ("no", "3"), ("bf16", "3")], small=[("no", "1"), ("bf16", "3")]
)


def answers(folder: Path, where: str) -> list[dict]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob(f"answer_{where}_*"))]


def trained(starter: list[str], folder: Path, *settings: str) -> list[dict]:
    variables = {"PYTHONPATH": ":".join([*sys.path, str(Path(__file__).parent)])}
    check(run(starter, folder, TRAIN, "pretend", *settings, **variables))
    return answers(folder, "pretend")


def trained_on_cpu(num_processes: int, folder: Path, *settings: str) -> list[dict]:
    fork_ours(TRAIN, folder, "cpu", *settings, num_ranks=num_processes)
    return answers(folder, "cpu")


@pytest.mark.parametrize("settings", SETTINGS)
def test_one_process_trains_as_on_the_cpu(settings: tuple[str, str], tmp_path: Path) -> None:
    [expected] = trained_on_cpu(1, tmp_path, *settings)
    [found] = trained(ALONE, tmp_path, *settings)
    assert found["numbers"] == expected["numbers"]
    assert (expected["device"], expected["type"], expected["kernels"]) == ("cpu", "NO", 0)
    assert (found["device"], found["type"]) == ("pretend:0", "NO")
    assert found["kernels"] > 0


@pytest.mark.parametrize("settings", SETTINGS)
def test_two_processes_train_as_on_the_cpu(settings: tuple[str, str], tmp_path: Path) -> None:
    expected = trained_on_cpu(2, tmp_path, *settings)
    found = trained(LAUNCH, tmp_path, *settings)
    assert [rank["numbers"] for rank in found] == [rank["numbers"] for rank in expected]
    assert [rank["device"] for rank in found] == ["pretend:0", "pretend:1"]
    assert {rank["type"] for rank in expected} == {"MULTI_CPU"}
    # The name that the row of the devices gives.
    assert {rank["type"] for rank in found} == {"MULTI_NPU"}
    assert all(rank["collectives"] > 0 for rank in found)
    assert all(rank["collectives"] == 0 for rank in expected)


SHARDED = """
import json, sys
import torch
import pretend
from accelerate import Accelerator
from accelerate.utils import FullyShardedDataParallelPlugin

where = sys.argv[1]
plugin = FullyShardedDataParallelPlugin(
    fsdp_version=2, auto_wrap_policy="SIZE_BASED_WRAP", min_num_params=1000,
    ignored_modules="head")
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
"""


def test_a_model_that_is_cut_comes_to_its_device_in_parts(tmp_path: Path) -> None:
    fork_ours(SHARDED, tmp_path, "cpu", num_ranks=2)
    variables = {"PYTHONPATH": ":".join([*sys.path, str(Path(__file__).parent)])}
    check(run(LAUNCH, tmp_path, SHARDED, "pretend", **variables))
    expected, found = answers(tmp_path, "cpu"), answers(tmp_path, "pretend")
    assert len(found) == 2
    assert [rank["numbers"] for rank in found] == [rank["numbers"] for rank in expected]
    # Half of it, one of 16 units, and buffers.
    assert all(0.5 < rank["peak"] < 0.7 for rank in found), found
