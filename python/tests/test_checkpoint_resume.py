# SPDX-License-Identifier: Apache-2.0
"""A run that is stopped and resumed in new processes equals an uninterrupted one, bit for bit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import ranks
import tiers

# 3 epochs of 10 batches over all processes. An uninterrupted run saves after the given steps;
# others resume from one of these.
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
    # During an accumulation, in an epoch, and at the end of one.
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


# One epoch, saved by two processes after two rounds of six samples; or its rest.
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
    # Three processes resume in the middle of one of their rounds.
    for num_processes, resume in ((2, False), (3, True)):
        told = json.dumps({"seedable": seedable, "resume": resume})
        out = ranks.fork_ours(EPOCH, tmp_path, told, num_ranks=num_processes)
        lines = [line for line in out.splitlines() if "SEEN" in line]
        assert len(lines) == num_processes
        seen += [sample for line in lines for sample in json.loads(line.partition("SEEN ")[2])]
    assert sorted(seen) == list(range(30))


# The loop of the original's examples/complete_nlp_example.py, reduced to what determines batches: a
# whole run with the checkpoints named in `names`, and one that resumes from each.
EXAMPLE = """
import json, os, sys
import torch
from accelerate import Accelerator, DataLoaderConfiguration
from accelerate.state import AcceleratorState, GradientState
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset

told = json.loads(sys.argv[1])

def train(resume_from_checkpoint):
    AcceleratorState._reset_state()
    GradientState._reset_state()
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
    if resume_from_checkpoint:
        accelerator.load_state(resume_from_checkpoint)
        training_difference = os.path.splitext(os.path.basename(resume_from_checkpoint))[0]
        if "epoch" in training_difference:
            starting_epoch = int(training_difference.replace("epoch_", "")) + 1
        else:
            resume_step = int(training_difference.replace("step_", ""))
            starting_epoch = resume_step // len(train_dataloader)
            resume_step -= starting_epoch * len(train_dataloader)
    seen = []

    def save(name):
        if not resume_from_checkpoint and name in told["names"]:
            accelerator.save_state(name)

    for epoch in range(starting_epoch, 2):
        model.train()
        active_dataloader = train_dataloader
        num_passed = 0
        if resume_step is not None and epoch == starting_epoch:
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
            save(f"step_{overall_step}")
        model.eval()
        for (batch,) in eval_dataloader:
            accelerator.gather_for_metrics(model(batch[:, None] / 24.0))
            if not resume_from_checkpoint:
                break
        save(f"epoch_{epoch}")
    accelerator.wait_for_everyone()
    return seen

answers = [train(name) for name in (None, *told["names"])]
print("\\nSEEN", json.dumps({"rank": int(os.environ.get("RANK", 0)), "answers": answers}))
"""


def _example(fork, folder: Path, num_processes: int, **told) -> tuple[list, dict[str, list]]:
    """What each rank of a whole run sees, and each of those that resume, by checkpoint."""
    out = fork(EXAMPLE, folder, json.dumps(told), num_ranks=num_processes)
    found = [json.loads(line.partition("SEEN ")[2]) for line in out.splitlines() if "SEEN" in line]
    assert len(found) == num_processes
    found.sort(key=lambda answer: answer["rank"])
    whole, *rests = zip(*(answer["answers"] for answer in found), strict=True)
    return whole, dict(zip(told["names"], rests, strict=True))


def _num_done(name: str, num_processes: int) -> int:
    """Batches of a process before the checkpoint of this name."""
    kind, number = name.split("_")
    return int(number) if kind == "step" else (int(number) + 1) * 12 // num_processes


def _examples(small):
    """Every step to stop at, six per start of the ranks: a loaded machine takes long for each."""
    whole = []
    for n in (1, 2):
        names = [f"step_{step}" for step in range(1, 24 // n)] + ["epoch_0"]
        whole += [
            (n, seedable, way, names[first : first + 6])
            for seedable in (False, True)
            for way in ("skip_first_batches", "continue")
            for first in range(0, len(names), 6)
        ]
    return tiers.cases(whole + small, small=small)


@pytest.mark.parametrize(
    "num_processes, seedable, way, names",
    _examples(
        [
            (1, False, "continue", ["step_5", "step_13"]),
            (1, True, "skip_first_batches", ["step_12", "epoch_0"]),
            (2, False, "skip_first_batches", ["step_3", "step_6", "step_7"]),
            (2, True, "continue", ["step_4"]),
        ]
    ),
)
def test_the_originals_way_to_resume_sees_the_samples_of_a_whole_run(
    tmp_path, num_processes, seedable, way, names
):
    whole, rests = _example(
        ranks.fork_ours, tmp_path, num_processes, seedable=seedable, way=way, names=names
    )
    assert [len(seen) for seen in whole] == [24 // num_processes] * num_processes
    for name, rest in rests.items():
        if name == "step_12" and num_processes == 1 and not seedable:
            # The generator that the evaluation behind it draws from, which a run that resumes
            # does not repeat, decides on the order of the next epoch.
            continue
        num_done = _num_done(name, num_processes)
        assert rest == tuple(seen[num_done:] for seen in whole), f"resumed from {name}"


@pytest.mark.parametrize(
    "num_processes, seedable, way, names", _examples([(2, True, "continue", ["step_5"])])
)
def test_the_originals_way_to_resume_sees_as_many_batches_as_there(
    tmp_path, num_processes, seedable, way, names
):
    counts = []
    for fork in (ranks.fork_ours, ranks.fork_original):
        folder = tmp_path / fork.__name__
        folder.mkdir()
        _, rests = _example(fork, folder, num_processes, seedable=seedable, way=way, names=names)
        counts.append({name: [len(seen) for seen in rest] for name, rest in rests.items()})
    assert counts[0] == counts[1]
    num_left = 24 // num_processes - _num_done(names[0], num_processes)
    assert counts[0][names[0]] == [num_left] * num_processes
