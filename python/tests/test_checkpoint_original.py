# SPDX-License-Identifier: Apache-2.0
"""Hugging Face Accelerate's checkpoints load here, and ours in its layout load there."""

from __future__ import annotations

import json

import pytest
import ranks
import tiers

# `told`: how many steps, where to save and how, what to load.
TRAIN = """
import json, random, sys
import numpy, torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed
told = json.loads(sys.argv[1])
begin = told["begin"]
set_seed(5)
accelerator = Accelerator(
    cpu=True, gradient_accumulation_steps=2,
    dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True, data_seed=3),
)
class Counter:
    seen = 0
    def state_dict(self): return {"seen": self.seen}
    def load_state_dict(self, state): self.seen = state["seen"]
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.one = torch.nn.Linear(4, 4)
        self.two = torch.nn.Linear(4, 4)
        self.two.weight = self.one.weight
        self.drop = torch.nn.Dropout(0.3)
        self.last = torch.nn.Linear(4, 1)
    def forward(self, x):
        return self.last(self.drop(torch.tanh(self.two(self.one(x)))))
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.7)
x = torch.arange(160.0).reshape(40, 4) / 100
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, x.sum(1)), 2, shuffle=True)
model, optimizer, scheduler, loader = accelerator.prepare(model, optimizer, scheduler, loader)
counter = Counter()
accelerator.register_for_checkpointing(counter)
losses = []
if begin:
    accelerator.load_state(told["load"])
    assert counter.seen == begin
    loader = accelerator.skip_first_batches(loader, begin)
for number, (x, y) in enumerate(loader, start=begin + 1):
    with accelerator.accumulate(model):
        loss = (model(x).squeeze(1) - y).square().mean()
        accelerator.backward(loss)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    losses.append(loss.item().hex())
    counter.seen = number
    if number == told["at"]:
        accelerator.save_state(told["save"], **told["how"])
    if number == 9:
        break
with open(f"answer{accelerator.process_index}", "w") as file:
    json.dump([losses, random.random(), float(numpy.random.rand()), torch.rand(1).item()], file)
"""


def train(is_ours, folder, num_processes, begin=0, at=0, load="", save="", **how):
    told = {"begin": begin, "at": at, "load": load, "save": save, "how": how}
    fork = ranks.fork_ours if is_ours else ranks.fork_original
    fork(TRAIN, folder, json.dumps(told), num_ranks=num_processes)
    answers = [folder / f"answer{rank}" for rank in range(num_processes)]
    found = [json.loads(answer.read_text()) for answer in answers]
    for answer in answers:
        answer.unlink()
    return found


@pytest.mark.parametrize("num_processes", tiers.cases([1, 2], small=[2]))
def test_a_checkpoint_of_the_original_goes_on_here_and_ours_goes_on_there(tmp_path, num_processes):
    theirs = train(False, tmp_path, num_processes, at=4, save="theirs")
    assert not (tmp_path / "theirs/checkpoint.json").exists()
    # A new loop draws from generators, so resumed runs are compared with resumed runs there.
    rest = train(False, tmp_path, num_processes, begin=4, load="theirs")
    assert train(True, tmp_path, num_processes, begin=4, load="theirs") == rest
    ours = train(True, tmp_path, num_processes, at=4, save="ours", layout="accelerate")
    assert ours == theirs
    names = {path.name for path in (tmp_path / "ours").iterdir()}
    assert names == {path.name for path in (tmp_path / "theirs").iterdir()}
    assert train(False, tmp_path, num_processes, begin=4, load="ours") == rest
    assert train(True, tmp_path, num_processes, begin=4, load="ours") == rest


def test_weights_of_the_original_as_pickles_load(tmp_path):
    train(False, tmp_path, 1, at=4, save="theirs", safe_serialization=False)
    assert (tmp_path / "theirs/pytorch_model.bin").exists()
    rest = train(False, tmp_path, 1, begin=4, load="theirs")
    assert train(True, tmp_path, 1, begin=4, load="theirs") == rest
    train(True, tmp_path, 1, at=4, save="ours", layout="accelerate", safe_serialization=False)
    assert train(False, tmp_path, 1, begin=4, load="ours") == rest


TRANSFORMERS = """
import os
os.environ["HF_HUB_OFFLINE"] = "1"
import torch
from accelerate import Accelerator
from transformers import GPT2Config, GPT2LMHeadModel
torch.manual_seed(1)
config = GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=2, n_head=2)
accelerator = Accelerator(cpu=True)
model = GPT2LMHeadModel(config)
model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.01))
ids = torch.arange(16).reshape(2, 8)
def step():
    loss = model(input_ids=ids, labels=ids).loss
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()
step()
accelerator.save_state("x")
accelerator.save_model(model, "y", max_shard_size="10KB")
expected = step()
for folder in ("x", "y"):
    config.save_pretrained(folder)
    again, info = GPT2LMHeadModel.from_pretrained(folder, output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
    again.train()
    assert again.lm_head.weight is again.transformer.wte.weight
    accelerator.load_state("x")
    for name, value in model.state_dict().items():
        assert torch.equal(value, again.state_dict()[name]), name
assert step() == expected
print("equal")
"""


def test_a_model_of_transformers_with_tied_weights_goes_on_and_is_read_by_it(tmp_path):
    pytest.importorskip("transformers")
    assert "equal" in ranks.fork_ours(TRANSFORMERS, tmp_path, num_ranks=1)
