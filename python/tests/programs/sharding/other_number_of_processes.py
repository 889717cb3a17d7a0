# SPDX-License-Identifier: Apache-2.0
import os
import sys

import torch
import torch.distributed as dist
from sharded_run import begin
from small_net import Net

stage, order, froms = sys.argv[1], sys.argv[2], sys.argv[3:]
FIELDS = {"3": dict(fsdp_version=2), "2": dict(sharding_strategy="SHARD_GRAD_OP")}[stage]
here = int(os.environ.get("WORLD_SIZE", "1"))
rank = int(os.environ.get("RANK", "0"))


def make(fields, values=None):
    accelerator = begin(steps=1, **fields)
    torch.manual_seed(rank)
    model = Net()
    if values:
        model.load_state_dict(values)
    optimizer = torch.optim.AdamW(
        [
            {"params": [p for p in model.parameters() if p.dim() > 1], "lr": 0.02},
            {"params": [p for p in model.parameters() if p.dim() <= 1], "weight_decay": 0},
        ],
        lr=0.01,
        eps=1e-3,
    )  # A gradient of nearly zero moves nothing.
    names = {id(p): name for name, p in model.named_parameters()}
    order = [names[id(p)] for group in optimizer.param_groups for p in group["params"]]
    return accelerator, order, *accelerator.prepare(model, optimizer)


def steps(accelerator, model, optimizer, first, last):
    for step in range(first, last):
        generator = torch.Generator().manual_seed(10 * step + rank)
        ids = torch.randint(3, 33, (4, 7), generator=generator)
        accelerator.backward(model(ids))
        optimizer.step()
        optimizer.zero_grad()


def whole(accelerator, order, model, optimizer):
    "Weights and moments on process 0: parts lie one after the other, in the order of ranks."
    weights = {k: v.clone() for k, v in accelerator.get_state_dict(model).items()}
    moments = {}
    params = [p for group in optimizer.param_groups for p in group["params"]]
    for name, part in zip(order, params, strict=True):
        entry = {k: v.flatten().clone() for k, v in optimizer.state.get(part, {}).items()}
        parts = [entry]
        if here > 1 and FIELDS:
            parts = [None] * here
            dist.all_gather_object(parts, entry)
        moments[name] = {
            # Steps are counted for each parameter, where a process has a part of it.
            key: torch.cat([part[key] for part in parts if key in part])
            if key != "step"
            else max(part[key] for part in parts if key in part)
            for key in {key for part in parts for key in part}
        }
    return {"weights": weights, "moments": moments}


def check(found, expected, what):
    if rank != 0:
        return
    for kind, values in expected.items():
        for name, value in values.items():
            for key, each in value.items() if isinstance(value, dict) else [("", value)]:
                got = found[kind][name][key] if key else found[kind][name]
                assert torch.equal(got, each), (what, here, kind, name, key, got, each)


if order == "save":
    run = make(FIELDS)
    accelerator, order, model, optimizer = run
    steps(accelerator, model, optimizer, 0, 3)
    saved = whole(*run)
    accelerator.save_state(f"run_{here}")
    steps(accelerator, model, optimizer, 3, 5)
    after = whole(*run)
    if rank == 0:
        torch.save([saved, after], f"whole_{here}.pt")
for num in froms:
    run = make(FIELDS)
    accelerator, order, model, optimizer = run
    accelerator.load_state(f"run_{num}")
    saved, after = torch.load(f"whole_{num}.pt")
    check(whole(*run), saved, f"loaded from {num}")
    steps(accelerator, model, optimizer, 3, 5)
    went_on = whole(*run)
    if int(num) == here:
        check(went_on, after, "as if it had not ended")
        continue
    # By hand into a model that is not sharded.
    FIELDS, kept = {}, FIELDS
    run = make({}, saved["weights"])
    accelerator, order, model, optimizer = run
    for name, parameter in model.named_parameters():
        moments = saved["moments"].get(name)
        if moments:
            optimizer.state[parameter] = {
                key: value.clone() if key == "step" else value.clone().view_as(parameter)
                for key, value in moments.items()
            }
            optimizer.state[parameter]["step"] = moments["step"].view(()).clone()
    steps(accelerator, model, optimizer, 3, 5)
    expected = whole(*run)
    FIELDS = kept
    if here <= 2:
        check(went_on, expected, f"by hand from {num}")
    elif rank == 0:
        # Sums over more than two ranks are added up in another order.
        for name, value in expected["weights"].items():
            off = (went_on["weights"][name] - value).abs().max().item()
            assert off <= 1e-5, (num, here, name, off)
if rank == 0:
    print("done", here)
