# SPDX-License-Identifier: Apache-2.0
"""A run that is stopped and gone on with in new processes equals one that was not, bit for bit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import ranks
import tiers

# 3 epochs of 10 batches over all processes. Run whole it saves after each step that it is told;
# else it goes on from one of these.
TRAIN = """
import hashlib, json, random, sys
import numpy, torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, Dataset

told = json.loads(sys.argv[1])
begin = told.get("resume", 0)
set_seed(99 if begin else 7, device_specific=True)


class Data(Dataset):
    def __len__(self):
        return 30

    def __getitem__(self, index):
        x = torch.arange(4) * 0.1 + index * 0.05
        if told["workers"] == 0:  # workers have generators of their own
            x = x + 0.1 * torch.rand(4) + 0.1 * random.random() + 0.1 * float(numpy.random.rand())
        return x, x.sum()


accelerator = Accelerator(
    cpu=True, mixed_precision=told["precision"], gradient_accumulation_steps=2
)
model = torch.nn.Sequential(
    torch.nn.Linear(4, 16), torch.nn.BatchNorm1d(16), torch.nn.Dropout(0.3), torch.nn.Linear(16, 1)
)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=100)
loader = DataLoader(Data(), batch_size=3, shuffle=True, num_workers=told["workers"])
model, optimizer, scheduler, loader = accelerator.prepare(model, optimizer, scheduler, loader)
if begin:
    restores = None if told["skip"] else True
    accelerator.load_state(f"{told['folder']}/step_{begin}", restore_loaders=restores)
losses = []
num_steps = begin
for epoch in range(begin // len(loader), 3):
    batches = loader
    if told["skip"] and epoch == begin // len(loader):
        batches = accelerator.skip_first_batches(loader, begin % len(loader))
    for x, y in batches:
        with accelerator.accumulate(model):
            loss = (model(x).squeeze(1) - y).square().mean()
            accelerator.backward(loss)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        losses.append(loss.item().hex())
        num_steps += 1
        if num_steps in told.get("save", []):
            accelerator.save_state(
                f"{told['folder']}/step_{num_steps}", asynchronous=told["asynchronous"]
            )
# A forked rank ends without what a process does at its end.
accelerator.wait_for_save()


def digest(value):
    sum = hashlib.sha256()
    for tensor in value:
        sum.update(tensor.detach().double().numpy().tobytes())
    return sum.hexdigest()


state = optimizer.state_dict()["state"]
print("\\nANSWER", json.dumps({
    "rank": accelerator.process_index,
    "losses": losses,
    "weights": digest(model.state_dict().values()),
    "optimizer": digest(state[i][key] for i in sorted(state) for key in sorted(state[i])),
    "lr": scheduler.get_last_lr(),
    "next": [torch.rand(1).item(), random.random(), float(numpy.random.rand())],
}))
"""


def _train(folder: Path, num_processes: int, **told) -> list[dict]:
    told["folder"] = str(folder / "checkpoints")
    out = ranks.fork_ours(TRAIN, folder, json.dumps(told), num_ranks=num_processes)
    answers = [json.loads(line.partition("ANSWER ")[2]) for line in out.splitlines() if "ANSWER" in line]
    assert len(answers) == num_processes
    return sorted(answers, key=lambda answer: answer["rank"])


def _cases():
    whole = [
        (num_processes, precision, workers, skip, beside, list(range(1, 30 // num_processes, 1)))
        for num_processes in (1, 2)
        for precision in ("no", "bf16")
        for workers, skip, beside in (
            (0, False, False), (0, False, True), (0, True, False), (2, False, False), (2, True, False)
        )
    ]
    # In the middle of a window, of an epoch, and at the end of one.
    first_tier = {
        (1, "no", 0, False, False): [3, 10],
        (2, "bf16", 0, False, True): [4, 5],
        (2, "no", 2, True, False): [7],
        (1, "bf16", 2, False, False): [13],
    }
    small = [(*case, steps) for case, steps in first_tier.items()]
    return tiers.cases(whole + small, small=small)


@pytest.mark.parametrize("num_processes, precision, workers, skip, beside, steps", _cases())
def test_a_resumed_run_equals_one_that_was_not_stopped(
    tmp_path, num_processes, precision, workers, skip, beside, steps
):
    common = {"precision": precision, "workers": workers, "skip": skip, "asynchronous": beside}
    whole = _train(tmp_path, num_processes, save=steps, **common)
    for step in steps:
        rest = _train(tmp_path, num_processes, resume=step, **common)
        for expected, answer in zip(whole, rest, strict=True):
            expected = {**expected, "losses": expected["losses"][step:]}
            assert answer == expected, f"resumed after step {step}"


# One epoch, saved by two processes after two turns of six samples; or its rest.
EPOCH = """
import json, sys
import torch
from accelerate import Accelerator, DataLoaderConfiguration
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset

told = json.loads(sys.argv[1])
set_seed(8 if told["resume"] else 5)
accelerator = Accelerator(
    cpu=True,
    dataloader_config=DataLoaderConfiguration(use_seedable_sampler=told["seedable"]),
)
loader = DataLoader(TensorDataset(torch.arange(30)), batch_size=3, shuffle=True)
loader = accelerator.prepare(loader)
if told["resume"]:
    accelerator.load_state("begun", restore_loaders=True)
seen = []
for number, (samples,) in enumerate(loader):
    if not told["resume"] and number == 2:
        accelerator.save_state("begun")  # Before the third batch is used.
        break
    seen += samples.tolist()
print("\\nSEEN", json.dumps(seen))
"""


@pytest.mark.parametrize("seedable", [False, True])
def test_another_number_of_processes_sees_each_sample_once(tmp_path, seedable):
    seen = []
    # Three processes begin in the middle of a turn of theirs.
    for num_processes, resume in ((2, False), (3, True)):
        told = json.dumps({"seedable": seedable, "resume": resume})
        out = ranks.fork_ours(EPOCH, tmp_path, told, num_ranks=num_processes)
        lines = [line for line in out.splitlines() if "SEEN" in line]
        assert len(lines) == num_processes
        seen += [sample for line in lines for sample in json.loads(line.partition("SEEN ")[2])]
    assert sorted(seen) == list(range(30))


# The loop of the original's examples/complete_nlp_example.py, with the parts that decide on
# batches: a checkpoint after each of `save` steps, and the way in which it resumes.
EXAMPLE = """
import json, sys
import torch
from accelerate import Accelerator, DataLoaderConfiguration
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset

told = json.loads(sys.argv[1])
accelerator = Accelerator(
    cpu=True,
    gradient_accumulation_steps=2,
    dataloader_config=DataLoaderConfiguration(use_seedable_sampler=told["seedable"]),
)
set_seed(42)
train_dataloader = DataLoader(TensorDataset(torch.arange(24)), batch_size=2, shuffle=True)
eval_dataloader = DataLoader(TensorDataset(torch.arange(8)), batch_size=2)
model = torch.nn.Sequential(torch.nn.Linear(1, 4), torch.nn.Dropout(0.1), torch.nn.Linear(4, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
lr_scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (step + 1))
model, optimizer, train_dataloader, eval_dataloader, lr_scheduler = accelerator.prepare(
    model, optimizer, train_dataloader, eval_dataloader, lr_scheduler
)
overall_step = 0
starting_epoch = 0
resume_step = None
if told["resume"] is not None:
    accelerator.load_state(f"{told['folder']}/step_{told['resume']}")
    resume_step = told["resume"]
    starting_epoch = resume_step // len(train_dataloader)
    resume_step -= starting_epoch * len(train_dataloader)
seen = []
for epoch in range(starting_epoch, 2):
    model.train()
    active_dataloader = train_dataloader
    num_passed = 0
    if told["resume"] is not None and epoch == starting_epoch:
        overall_step += starting_epoch * len(train_dataloader)
        if told["way"] == "skip_first_batches":
            active_dataloader = accelerator.skip_first_batches(train_dataloader, resume_step)
            overall_step += resume_step
        else:
            num_passed = resume_step
    for step, (batch,) in enumerate(active_dataloader):
        if step < num_passed:
            overall_step += 1
            continue
        with accelerator.accumulate(model):
            loss = model(batch[:, None] / 24.0).square().mean()
            accelerator.backward(loss)
            optimizer.step()
            lr_scheduler.step()
            optimizer.zero_grad()
        seen.append(batch.tolist())
        overall_step += 1
        if overall_step in told["save"]:
            accelerator.save_state(f"{told['folder']}/step_{overall_step}")
    model.eval()
    for (batch,) in eval_dataloader:
        accelerator.gather_for_metrics(model(batch[:, None] / 24.0))
        if told["resume"] is None:
            break
print("\\nSEEN", json.dumps({"rank": accelerator.process_index, "seen": seen}))
"""


def _example(fork, folder: Path, num_processes: int, **told) -> list[list]:
    told = {"folder": str(folder / "checkpoints"), "resume": None, "save": [], "way": "", **told}
    out = fork(EXAMPLE, folder, json.dumps(told), num_ranks=num_processes)
    found = [json.loads(line.partition("SEEN ")[2]) for line in out.splitlines() if "SEEN" in line]
    assert len(found) == num_processes
    return [answer["seen"] for answer in sorted(found, key=lambda answer: answer["rank"])]


def _examples():
    # On one process without a seed the order of an epoch is drawn by the generator that the
    # evaluation before it draws from too, which a run does not repeat that resumes behind it.
    whole = [
        (n, seedable, way, [s for s in range(1, 24 // n) if s != 12 or seedable])
        for n in (1, 2)
        for seedable in (False, True)
        for way in ("skip_first_batches", "continue")
    ]
    small = [
        (1, False, "continue", [5, 13]),
        (1, True, "skip_first_batches", [12]),
        (2, False, "skip_first_batches", [3, 6, 7]),
        (2, True, "continue", [4]),
    ]
    return tiers.cases(whole + small, small=small)


@pytest.mark.parametrize("num_processes, seedable, way, steps", _examples())
def test_the_originals_way_to_resume_sees_the_samples_of_a_whole_run(
    tmp_path, num_processes, seedable, way, steps
):
    common = {"seedable": seedable, "way": way}
    whole = _example(ranks.fork_ours, tmp_path, num_processes, save=steps, **common)
    assert [len(seen) for seen in whole] == [24 // num_processes] * num_processes
    for step in steps:
        rest = _example(ranks.fork_ours, tmp_path, num_processes, resume=step, **common)
        assert rest == [seen[step:] for seen in whole], f"resumed after step {step}"


def test_the_originals_way_to_resume_sees_as_many_batches_as_there(tmp_path):
    common = {"seedable": True, "way": "continue"}
    counts = []
    for name, fork in (("ours", ranks.fork_ours), ("original", ranks.fork_original)):
        (tmp_path / name).mkdir()
        _example(fork, tmp_path / name, 2, save=[5], **common)
        rest = _example(fork, tmp_path / name, 2, resume=5, **common)
        counts.append([len(seen) for seen in rest])
    assert counts[0] == counts[1] == [7, 7]
