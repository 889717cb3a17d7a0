# SPDX-License-Identifier: Apache-2.0
import torch
from answers import answer
from each_strategy import message_of, with_strategies


def train(accelerator, model, optimizer, skips):
    for micro_batch in range(4):
        with accelerator.accumulate(model):
            accelerator.backward(model(torch.ones(2, 3)).sum())
            if not (skips and micro_batch == 1 and accelerator.process_index == 1):
                optimizer.step()
            optimizer.zero_grad()


said = []
for run in with_strategies(2):
    train(*run, skips=False)
    folder = run[0].save_state("saved")
    said.append(message_of(lambda: train(*run, skips=True)))
    # Stages 1 and 2 gather weights in the update itself.
    if "times" in said[-1]:
        run[0].load_state(folder)
        train(*run, skips=False)
answer(said)
