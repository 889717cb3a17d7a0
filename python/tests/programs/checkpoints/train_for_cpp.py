# SPDX-License-Identifier: Apache-2.0
import json
import sys
import warnings

import torch
from accelerate import _C, Accelerator, DataLoaderConfiguration
from torch.utils.data import DataLoader, TensorDataset

told = json.loads(sys.argv[1])
torch.manual_seed(3)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 8), torch.nn.Linear(8, 1)

    def forward(self, x):
        return self.second(torch.tanh(self.first(x)))


ids = torch.arange(30)
x = ((ids.unsqueeze(1) * 7 + torch.arange(4) * 3) % 11 / 8).float()
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True), ids), batch_size=3, shuffle=True)
model = Net()
groups = [
    {"params": [model.first.weight, model.second.weight], "weight_decay": 0.1},
    {"params": [model.first.bias, model.second.bias], "weight_decay": 0, "lr": 0.02},
]
optimizer = getattr(torch.optim, told["optimizer"])(groups, lr=0.05, **told["options"])
# The linear schedule of transformers.
scheduler = torch.optim.lr_scheduler.LambdaLR(
    optimizer, lambda step: step / 4 if step < 4 else max(0.0, (40 - step) / 36)
)
accelerator = Accelerator(
    cpu=True,
    gradient_accumulation_steps=2,
    dataloader_config=DataLoaderConfiguration(use_seedable_sampler=told.get("seedable", True)),
)
model, optimizer, scheduler, loader = accelerator.prepare(model, optimizer, scheduler, loader)


class Scaler(_C.Stateful):
    # Mixed precision fp16 needs a GPU; the state of torch's own scaler does not.
    def __init__(self):
        super().__init__()
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**9, growth_interval=50)
        self.scaler.scale(torch.ones(1))
        for _ in range(3):
            self.scaler.update(2.0**9)
        self.scaler._growth_tracker.fill_(17)

    def state_dict(self):
        return self.scaler.state_dict()

    def load_state_dict(self, state):
        self.scaler.load_state_dict(state)


scaler = Scaler()
accelerator._run.state.add("scaler", scaler)
if told.get("custom"):
    accelerator.register_for_checkpointing(torch.nn.Linear(1, 1))
if told.get("load"):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        accelerator.load_state(told["load"], restore_loaders=True)
    for warning in caught:
        print("warning", warning.message)
    print("lr", scheduler.get_last_lr(), "scaler", json.dumps(scaler.state_dict(), sort_keys=True))
num_batches = 0
while num_batches < told["end"]:
    for inputs, targets, samples in loader:
        with accelerator.accumulate(model):
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            accelerator.backward(loss)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        text = " ".join(str(number) for number in samples.tolist())
        # One write, as lines of two processes must not mix.
        sys.stdout.write(
            f"rank {accelerator.process_index} samples {text} loss {loss.item().hex()}\n"
        )
        num_batches += 1
        if num_batches == told.get("save_at"):
            accelerator.save_state("begun", safe_serialization=told.get("safe", True))
        if num_batches == told["end"]:
            break
