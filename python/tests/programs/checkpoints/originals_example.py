# SPDX-License-Identifier: Apache-2.0
import json
import os
import sys

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
print("\nSEEN", json.dumps({"rank": int(os.environ.get("RANK", 0)), "answers": answers}))
