# SPDX-License-Identifier: Apache-2.0
import os

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import FullyShardedDataParallelPlugin
from lora import adapted, llama, rank
from peft import PeftModel
from peft.utils.other import fsdp_auto_wrap_policy


def train(has_policy=False, **fields):
    AcceleratorState._reset_state()
    os.environ.pop("ACCELERATE_USE_FSDP", None)
    plugin = FullyShardedDataParallelPlugin(**fields) if fields else None
    accelerator = Accelerator(fsdp_plugin=plugin)
    model = adapted()
    if has_policy:
        plugin.auto_wrap_policy = fsdp_auto_wrap_policy(model)
    trained = [p for p in model.parameters() if p.requires_grad]
    # Trainer makes such groups, of which one has nothing to train.
    optimizer = torch.optim.AdamW([{"params": []}, {"params": trained}], lr=0.01)
    model, optimizer = accelerator.prepare(model, optimizer)
    for step in range(4):
        generator = torch.Generator().manual_seed(10 * step + rank)
        ids = torch.randint(3, 33, (4, 7), generator=generator)
        accelerator.backward(model(input_ids=ids, labels=ids).loss)
        optimizer.step()
        optimizer.zero_grad()
    return accelerator, model


_, model = train()
whole = {name: value.clone() for name, value in model.state_dict().items()}
tokens = torch.tensor([[3, 4, 5], [6, 7, 8]]) + rank
expected = model.generate(input_ids=tokens, max_new_tokens=4, do_sample=False)
for number, fields in enumerate(
    (
        dict(fsdp_version=2, auto_wrap_policy="TRANSFORMER_BASED_WRAP"),
        dict(has_policy=True, sharding_strategy="FULL_SHARD"),
        dict(has_policy=True, sharding_strategy="SHARD_GRAD_OP"),
    )
):
    accelerator, model = train(**fields)
    state = accelerator.get_state_dict(model)
    if rank == 0:
        assert state.keys() == whole.keys()
        assert [k for k, v in state.items() if not torch.equal(v, whole[k])] == []
    found = model.generate(input_ids=tokens, max_new_tokens=4, do_sample=False)
    assert torch.equal(found, expected)
    num = 2 + 3 * rank
    assert model.generate(input_ids=tokens, max_new_tokens=num).shape == (2, 3 + num)
    own = accelerator.unwrap_model(model)
    assert isinstance(model, PeftModel) and isinstance(own, PeftModel)
    if rank == 0:
        own.save_pretrained(f"adapter_{number}", state_dict=state)
        again = PeftModel.from_pretrained(llama(), f"adapter_{number}").state_dict()
        assert [k for k, v in again.items() if not torch.equal(v, whole[k])] == []
    # With a group that has nothing to train.
    accelerator.save_state(f"state_{number}")
    accelerator.load_state(f"state_{number}")
print("adapted", rank)
