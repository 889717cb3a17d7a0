# SPDX-License-Identifier: Apache-2.0
import os
import threading
import time
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.local_sgd import LocalSGD
from accelerate.state import AcceleratorState
from accelerate.utils import FullyShardedDataParallelPlugin
from answers import answer

rank = int(os.environ["RANK"])
done, number = [], 0


def reply_to_questions():
    while True:
        for question in Path().glob("question*"):
            question.rename(str(question).replace("question", "reply"))
        time.sleep(0.01)


if rank == 1:
    threading.Thread(target=reply_to_questions, daemon=True).start()


def appears(path):
    for _ in range(6000):
        if path.exists():
            return True
        time.sleep(0.01)
    return False


def alone(name, call):
    "Rank 1 calls first; rank 0 follows when a thread of rank 1 has replied."
    global number
    number += 1
    begun, question = Path(f"begun{number}"), Path(f"question{number}")
    if rank == 1:
        begun.touch()
        result = call()
    else:
        assert appears(begun), name
        time.sleep(0.1)
        question.touch()
        reply = Path(f"reply{number}")
        assert appears(reply), f"{name} keeps the interpreter's lock while it waits"
        result = call()
    done.append(name)
    return result


def net():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))


def make(**fields):
    AcceleratorState._reset_state()
    plugin = FullyShardedDataParallelPlugin(**fields) if fields else None
    return Accelerator(fsdp_plugin=plugin)


first = alone("first contact", make)
for kind, fields in (("replicated", {}), ("sharded", {"fsdp_version": 2})):
    accelerator = alone(f"Accelerator, {kind}", lambda: make(**fields))
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    model, optimizer = alone(f"prepare, {kind}", lambda: accelerator.prepare(model, optimizer))

    def step():
        accelerator.backward(model(torch.ones(2, 4)).sum())
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    alone(f"step, {kind}", step)
    alone(f"prepare again, {kind}", lambda: accelerator.prepare(model))
    alone(f"get_state_dict, {kind}", lambda: accelerator.get_state_dict(model))
    alone(f"save_state, {kind}", lambda: accelerator.save_state("state_" + kind))
    alone(f"wait_for_everyone, {kind}", accelerator.wait_for_everyone)
    alone(f"load_state, {kind}", lambda: accelerator.load_state("state_" + kind))
    if kind == "replicated":

        def local():
            with LocalSGD(accelerator, model, local_sgd_steps=2) as steps:
                for _ in range(2):
                    step()
                    steps.step()

        alone("LocalSGD", local)

        def join():
            with accelerator.join_uneven_inputs([model], even_batches=False):
                for _ in range(1 + rank):
                    step()

        alone("join_uneven_inputs", join)
    alone(f"set_trigger, {kind}", accelerator.set_trigger)
    alone(f"check_trigger, {kind}", accelerator.check_trigger)
answer(done)
