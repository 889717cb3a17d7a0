# SPDX-License-Identifier: Apache-2.0
# Before any forward, with every way to read them.

import io
import os

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import DeepSpeedPlugin
from safetensors.torch import load_file
from sharded_run import begin
from small_net import Net

FSDP = dict(auto_wrap_policy="TRANSFORMER_BASED_WRAP", transformer_cls_names_to_wrap=["Block"])
ZERO = "ACCELERATE_USE_DEEPSPEED"


def make(stage, seed):
    os.environ.pop(ZERO, None)
    if stage == 1:
        AcceleratorState._reset_state()
        os.environ.pop("ACCELERATE_USE_FSDP", None)
        accelerator = Accelerator(deepspeed_plugin=DeepSpeedPlugin(zero_stage=1))
    else:
        name = "FULL_SHARD" if stage == 3 else "SHARD_GRAD_OP"
        accelerator = begin(steps=1, sharding_strategy=name, **FSDP)
    torch.manual_seed(seed)
    model = Net()
    values = {name: value.clone() for name, value in model.state_dict().items()}
    return accelerator, values, *accelerator.prepare(model, torch.optim.AdamW(model.parameters()))


def check(found, expected, what):
    assert found.keys() == expected.keys(), what
    wrong = [name for name, value in found.items() if not torch.equal(value, expected[name])]
    assert wrong == [], (what, wrong)


ids = torch.arange(3, 10).view(1, 7)
for number, (saved, loaded) in enumerate([(3, 2), (3, 1), (2, 1), (1, 2), (2, 3), (1, 3)]):
    accelerator, expected, _, _ = make(saved, seed=1)
    accelerator.save_state(f"run_{number}")
    accelerator, others, model, _ = make(loaded, seed=2)
    assert not torch.equal(others["words.weight"], expected["words.weight"])
    accelerator.load_state(f"run_{number}")
    module = accelerator.unwrap_model(model)
    what = f"{saved} to {loaded}"
    if loaded < 3:
        check(model.state_dict(), expected, what)
        check(
            dict(module.named_parameters(remove_duplicate=False)),
            {name: expected[name] for name, _ in module.named_parameters(remove_duplicate=False)},
            what,
        )
        file = io.BytesIO()
        torch.save(module.state_dict(), file)
        file.seek(0)
        check(torch.load(file), expected, what)
        plain = Net()
        plain.load_state_dict(expected)
        assert torch.equal(module.eval()(ids), plain.eval()(ids)), what
    state = accelerator.get_state_dict(model)
    accelerator.save_model(model, f"model_{number}")
    if accelerator.is_main_process:
        check(state, expected, what)
        read = load_file(f"model_{number}/model.safetensors")
        check(read, {name: expected[name] for name in read}, what)
        assert expected.keys() - read.keys() == {"head.weight"}
print("loaded", accelerator.process_index)
