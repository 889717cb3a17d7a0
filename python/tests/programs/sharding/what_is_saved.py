# SPDX-License-Identifier: Apache-2.0
import copy
import io
import os
import pickle

import torch.optim.swa_utils
from sharded_run import batches, begin, refused, train
from small_net import Net
from torch.distributed.fsdp import FullyShardedDataParallel

accelerator = begin(auto_wrap_policy="SIZE_BASED_WRAP", min_num_params=1000)
model, optimizer, _ = train(accelerator, Net)
rank = accelerator.process_index
# By hand nothing empty ever comes out of it.
assert "Linear" in repr(model)
state = model.state_dict()
assert state["words.weight"].shape == (33, 16)
refused(lambda: torch.save(state, io.BytesIO()), "save_model")
refused(lambda: copy.deepcopy(model), "save_model")
for weight, word in (
    (model.words.weight, "save_model"),
    (model.blocks[2].outer.weight, "unit 'blocks.2'"),
):
    # Newer releases of torch print a tensor without storage by its size.
    try:
        shown = repr(weight)
    except RuntimeError as error:
        assert word in str(error), error
    else:
        assert "..., size=" in shown, shown
refused(lambda: model.words.weight.detach().numpy(), "save_model")
refused(lambda: model.words.weight.data_ptr(), "save_model")
refused(lambda: model.load_state_dict(state), "load_state")
refused(lambda: torch.save(model, io.BytesIO()), "save_model")
refused(lambda: pickle.dumps(model), "save_model")
refused(lambda: copy.deepcopy(state), "save_model")
refused(lambda: model.words.weight.tolist(), "save_model")
refused(lambda: bytes(model.words.weight.untyped_storage()), "save_model")
refused(lambda: torch.utils.dlpack.to_dlpack(model.words.weight.detach()), "save_model")
refused(lambda: torch.nn.utils.parameters_to_vector(model.parameters()), "save_model")
refused(lambda: torch.optim.swa_utils.AveragedModel(model), "save_model")
refused(lambda: model.half(), "save_model")
with FullyShardedDataParallel.summon_full_params(model):
    refused(lambda: model.words.weight.sum(), "save_model")
refused(
    lambda: accelerator.unwrap_model(model)(torch.zeros(2, 3, dtype=torch.long)),
    "outside of the prepared model's forward",
)
accelerator.backward(model(**next(batches(accelerator))))
refused(lambda: model.blocks[0].inner.weight.grad.sum(), "clip_grad_norm_")
refused(lambda: torch.nn.utils.clip_grad_norm_(model.parameters(), 1), "clip_grad_norm_")
refused(lambda: optimizer.optimizer.step(), "prepare() returned")
optimizer.zero_grad()
# The optimizer's own state is this process's part.
mine = io.BytesIO()
torch.save(optimizer.state_dict(), mine)
mine.seek(0)
optimizer.load_state_dict(torch.load(mine))
plain = Net()
other = torch.optim.AdamW([p for p in plain.parameters() if p.requires_grad])
plain(**next(batches(accelerator))).backward()
other.step()
foreign = {**optimizer.state_dict(), "state": other.state_dict()["state"]}
refused(lambda: optimizer.load_state_dict(foreign), "accelerator.load_state")
refused(lambda: accelerator.save_state("other", layout="accelerate"), "layout")
refused(lambda: accelerator.save_state("other", safe_serialization=False), "layout")


# Memory that no step would reach.
def read(model):
    return model(**next(batches(accelerator)))


model.batch_norm.weight.data = torch.ones(16)
refused(lambda: read(model), "'batch_norm.weight' was moved to new memory")
accelerator = begin(sharding_strategy="SHARD_GRAD_OP")
model, optimizer, _ = train(accelerator, Net)
refused(lambda: optimizer.optimizer.step(), "prepare() returned")
model.head.weight.data.mul_(0.5)
read(model)
model.half()
refused(lambda: read(model), "was moved to new memory")
for kind in (torch.optim.LBFGS, torch.optim.Adafactor, torch.optim.Muon):
    chosen = [p for p in Net().parameters() if p.dim() == 2 and p.requires_grad]
    other = torch.nn.ParameterList(chosen)
    accelerator = begin(fsdp_version=2)
    refused(lambda: accelerator.prepare(other, kind(list(other))), kind.__name__)
accelerator = begin(auto_wrap_policy="SIZE_BASED_WRAP", min_num_params=1000)
model, optimizer, _ = train(accelerator, Net)
accelerator.save_model(model, "whole")
state = accelerator.get_state_dict(accelerator.unwrap_model(model))
if rank == 0:
    assert state["head.weight"] is state["words.weight"]
    torch.save(state, "whole.pt")
accelerator.save_state("run")


# What is trained after it is forgotten.
def one_step():
    model.train()
    for batch in batches(accelerator, 2):
        with accelerator.accumulate(model):
            accelerator.backward(model(**batch))
            optimizer.step()
            optimizer.zero_grad()
    return accelerator.get_state_dict(model)


after = one_step()
accelerator.load_state("run")
again = one_step()
assert all(torch.equal(value, again[name]) for name, value in after.items())
# Other units, and no sharding at all.
for fields in (dict(fsdp_version=2), dict(sharding_strategy="SHARD_GRAD_OP"), {}):
    other = begin(**fields)
    torch.manual_seed(9)
    plain = Net()
    plain, opt = other.prepare(
        plain,
        torch.optim.AdamW(
            [
                {"params": [p for p in plain.parameters() if p.dim() > 1]},
                {"params": [p for p in plain.parameters() if p.dim() <= 1], "weight_decay": 0},
            ]
        ),
    )
    other.load_state("run")
    loaded = other.get_state_dict(plain)
    if rank == 0:
        state = torch.load("whole.pt")
        assert all(torch.equal(value, loaded[name]) for name, value in state.items())
# Weights that one process alone has read, as transformers' loading does.
accelerator = begin(
    cpu_ram_efficient_loading=True, auto_wrap_policy="SIZE_BASED_WRAP", min_num_params=1000
)
torch.manual_seed(4)
with torch.device("cpu" if rank == 0 else "meta"):
    light = Net()
    if rank != 0:
        light.head.weight = light.words.weight
expected = {name: value.clone() for name, value in light.state_dict().items()}
light, opt = accelerator.prepare(light, torch.optim.SGD(light.parameters()))
found = accelerator.get_state_dict(light)
assert all(torch.equal(value, expected[name]) for name, value in found.items())
light(**next(iter(batches(accelerator))))
wait = accelerator.wait_for_everyone
# As the original saves whole models.
if rank == 0:
    os.mkdir("originals")
    open("originals/random_states_0.pkl", "wb").close()
wait()
refused(lambda: accelerator.load_state("originals"), "cannot be loaded into sharded models")
# One process alone gets an answer, and nobody waits.
refused(lambda: accelerator.save_state("other") if rank == 0 else wait(), "save_state")
refused(lambda: accelerator.save_model(light, "other") if rank == 0 else wait(), "save_model")
print("saved", rank)
