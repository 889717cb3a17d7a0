# SPDX-License-Identifier: Apache-2.0
import json
import os

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import DeepSpeedPlugin, DummyOptim, DummyScheduler


def net():
    torch.manual_seed(1)
    return torch.nn.ModuleDict(
        {
            "words": torch.nn.Embedding(33, 16),
            "layers": torch.nn.ModuleList(torch.nn.Linear(16, 16) for _ in range(3)),
            "head": torch.nn.Linear(16, 33),
        }
    )


def forward(model, ids):
    x = model["words"](ids)
    for layer in model["layers"]:
        x = x + torch.tanh(layer(x))
    return torch.nn.functional.cross_entropy(model["head"](x).flatten(0, 1), ids.flatten())


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = net()

    def forward(self, ids):
        return forward(self.inner, ids)


def run(plugin=None, optimizer=None, scheduler=None, steps=1, max_norm=None):
    AcceleratorState._reset_state()
    os.environ["ACCELERATE_USE_DEEPSPEED"] = "false"
    accelerator = Accelerator(deepspeed_plugin=plugin, gradient_accumulation_steps=steps)
    model = Net()
    optimizer = (optimizer or torch.optim.AdamW)(model.parameters(), lr=0.01)
    scheduler = (
        scheduler(optimizer) if scheduler else torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    )
    generator = torch.Generator().manual_seed(5)
    rows = torch.randint(0, 33, (48, 7), generator=generator)
    loader = torch.utils.data.DataLoader(rows, batch_size=4)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    rates, norms = [], []
    for batch in loader:
        with accelerator.accumulate(model):
            rates.append(optimizer.param_groups[0]["lr"])
            accelerator.backward(model(batch))
            if max_norm and accelerator.sync_gradients:
                norms.append(accelerator.clip_grad_norm_(model.parameters(), max_norm).item())
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    held = sum(p.numel() for group in optimizer.param_groups for p in group["params"])
    whole = sum(p.numel() for p in model.parameters())
    return accelerator, accelerator.get_state_dict(model), rates, norms, held / whole


def same(a, b, **tolerance):
    for name, value in a.items():
        torch.testing.assert_close(value, b[name], msg=name, **tolerance)


rank = int(os.environ["RANK"])
exact = dict(rtol=0, atol=0)
# Stages beside plain data parallel training; 0.0 is how DeepSpeed says that nothing is clipped.
_, expected, expected_rates, _, _ = run()
for stage in range(4):
    accelerator, state, rates, _, held = run(
        DeepSpeedPlugin(zero_stage=stage, gradient_clipping=0.0)
    )
    assert accelerator.distributed_type.value == "DEEPSPEED"
    assert accelerator.deepspeed_plugin.zero_stage == stage
    assert rates == expected_rates
    assert (held < 0.6) == (stage > 0), (stage, held)
    if rank == 0:
        same(state, expected, **exact)
    config = accelerator.deepspeed_plugin.deepspeed_config
    assert config["train_micro_batch_size_per_gpu"] == 4 and config["train_batch_size"] == 8

# The optimizer's step clips, whatever the loop asks for; squares are added up in another order.
_, expected, _, expected_norms, _ = run(max_norm=0.5, steps=2)
_, loose, _, _, _ = run(max_norm=1e3, steps=2)
if rank == 0:
    assert not torch.equal(loose["inner.head.bias"], expected["inner.head.bias"])
for stage in (0, 3):
    json.dump(
        {
            "zero_optimization": {"stage": stage, "overlap_comm": True},
            "gradient_clipping": 0.5,
            "gradient_accumulation_steps": 2,
            "train_micro_batch_size_per_gpu": "auto",
        },
        open(f"config{rank}.json", "w"),
    )
    accelerator, state, _, norms, _ = run(
        DeepSpeedPlugin(hf_ds_config=f"config{rank}.json"), max_norm=1e3
    )
    assert accelerator.gradient_accumulation_steps == 2
    torch.testing.assert_close(norms, expected_norms, rtol=1e-4, atol=1e-5)
    if rank == 0:
        same(state, expected, rtol=1e-3, atol=1e-4)

# The optimizer and the scheduler of the configuration, which moves once in each update.
config = {
    "zero_optimization": {"stage": 2},
    "gradient_clipping": 0,
    "optimizer": {
        "type": "AdamW",
        "params": {"lr": "auto", "weight_decay": "auto", "betas": [0.8, 0.9]},
    },
    "scheduler": {
        "type": "WarmupDecayLR",
        "params": {
            "total_num_steps": "auto",
            "warmup_min_lr": "auto",
            "warmup_max_lr": "auto",
            "warmup_num_steps": 2,
            "warmup_type": "linear",
        },
    },
}


def by_hand(parameters, lr):
    return torch.optim.AdamW(parameters, lr=lr, weight_decay=0.1, betas=(0.8, 0.9))


def dummy(parameters, lr):
    return DummyOptim(parameters, lr=lr, weight_decay=0.1)


accelerator, state, rates, _, _ = run(
    DeepSpeedPlugin(hf_ds_config=config), dummy, lambda opt: DummyScheduler(opt, 12)
)
# Twelve batches of one process are six updates of two; the start counts twice.
assert rates == [0.0, 0.0, 0.005, 0.01, 0.0075, 0.005], rates


def lambda_of(opt):
    # Prepared schedulers move once for each process.
    return torch.optim.lr_scheduler.LambdaLR(opt, lambda step: rates[min(step // 2, 5)] / 0.01)


_, expected, expected_rates, _, _ = run(None, by_hand, lambda_of)
assert rates == expected_rates
if rank == 0:
    same(state, expected, **exact)
if rank == 0:
    print("equal")
