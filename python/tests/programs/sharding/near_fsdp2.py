# SPDX-License-Identifier: Apache-2.0
import copy

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import FullyShardedDataParallelPlugin
from sharded_run import batches
from small_net import Block
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


class Plain(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.words = torch.nn.Embedding(33, 16)
        self.blocks = torch.nn.ModuleList(Block() for _ in range(3))
        self.head = torch.nn.Linear(16, 33)

    def forward(self, input_ids, labels=None):
        x = self.words(input_ids)
        for block in self.blocks:
            x = block(x)
        return torch.nn.functional.cross_entropy(self.head(x.mean(1)), input_ids[:, 0])


def steps(model, optimizer, backward, before_step=lambda: None):
    for batch in batches(accelerator):
        backward(model(**batch))
        before_step()
        optimizer.step()
        optimizer.zero_grad()


def compare(make_optimizer, bound, policy=None, ignored=None):
    "The most that weights differ by from those of torch, which must have moved."
    global accelerator
    AcceleratorState._reset_state()
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        reshard_after_forward=True,
        ignored_modules=ignored,
        mixed_precision_policy=policy,
        auto_wrap_policy="TRANSFORMER_BASED_WRAP",
        transformer_cls_names_to_wrap=["Block"],
    )
    is_bf16 = policy is not None and policy.param_dtype == torch.bfloat16
    accelerator = Accelerator(fsdp_plugin=plugin, mixed_precision="bf16" if is_bf16 else "no")
    torch.manual_seed(1)
    model = Plain()
    begun = copy.deepcopy(model)
    theirs = copy.deepcopy(model)
    model, optimizer = accelerator.prepare(model, make_optimizer(model.parameters()))
    steps(model, optimizer, accelerator.backward)
    state = accelerator.get_state_dict(model)

    kept = list(theirs.head.parameters()) if ignored else []
    settings = dict(mesh=init_device_mesh("cpu", (2,)), ignored_params=set(kept))
    if policy is not None:
        settings["mp_policy"] = policy
    for block in theirs.blocks:
        fully_shard(block, **settings)
    fully_shard(theirs, **settings)

    def average():
        # torch leaves those of ignored parameters as they are on each process.
        for parameter in kept:
            torch.distributed.all_reduce(parameter.grad)
            parameter.grad /= 2

    def call(**batch):
        with torch.autocast("cpu", torch.bfloat16, enabled=is_bf16):
            return theirs(**batch)

    steps(call, make_optimizer(theirs.parameters()), torch.Tensor.backward, average)
    worst = 0
    for name, part in theirs.named_parameters():
        value = part.full_tensor() if hasattr(part, "full_tensor") else part
        if accelerator.is_main_process:
            assert state[name].dtype == torch.float32
            assert (begun.get_parameter(name) - value).abs().max() > 20 * bound, name
            worst = max(worst, (state[name] - value).abs().max().item())
    assert worst <= bound, (policy, ignored, worst)
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    is_held = [id(p) in held for p in model.head.parameters()]
    assert all(is_held) if ignored else not any(is_held)


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=0.01)


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.5)


Policy = MixedPrecisionPolicy
bf16, fp32 = torch.bfloat16, torch.float32
# AdamW makes much of the last bit of a gradient that is nearly zero.
compare(adamw, 1e-4)
compare(adamw, 1e-4, ignored="head")
# Two numbers have one sum, however they are added: the same roundings at the same places.
compare(sgd, 1e-6, Policy(param_dtype=bf16, reduce_dtype=fp32))
compare(sgd, 1e-6, Policy(param_dtype=bf16))
compare(sgd, 1e-6, Policy(reduce_dtype=bf16))
print("near", accelerator.process_index)
