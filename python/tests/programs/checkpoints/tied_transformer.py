# SPDX-License-Identifier: Apache-2.0
import torch
from accelerate import Accelerator
from transformers import GPT2Config, GPT2LMHeadModel

torch.manual_seed(1)
config = GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=2, n_head=2)
accelerator = Accelerator(cpu=True)
model = GPT2LMHeadModel(config)
model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.01))
ids = torch.arange(16).reshape(2, 8)


def step():
    loss = model(input_ids=ids, labels=ids).loss
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


step()
accelerator.save_state("x")
accelerator.save_model(model, "y", max_shard_size="10KB")
expected = step()
for folder in ("x", "y"):
    config.save_pretrained(folder)
    again, info = GPT2LMHeadModel.from_pretrained(folder, output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), (
        info
    )
    again.train()
    assert again.lm_head.weight is again.transformer.wte.weight
    accelerator.load_state("x")
    for name, value in model.state_dict().items():
        assert torch.equal(value, again.state_dict()[name]), name
assert step() == expected
print("equal")
