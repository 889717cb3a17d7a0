# SPDX-License-Identifier: Apache-2.0
import os

import torch
from elementwise_optimizers import kinds
from sharded_run import batches, begin
from small_net import Net


def weights(kind, **fields):
    accelerator = begin(steps=1, **fields)
    torch.manual_seed(1)
    model = Net()
    trained = [p for p in model.parameters() if p.requires_grad]
    model, optimizer = accelerator.prepare(model, kind(trained, lr=0.01))
    for batch in batches(accelerator, 3):
        accelerator.backward(model(**batch))
        optimizer.step()
        optimizer.zero_grad()
    return accelerator.get_state_dict(model)


for kind in kinds:
    expected = {name: value.clone() for name, value in weights(kind).items()}
    for fields in (
        dict(sharding_strategy="SHARD_GRAD_OP"),
        dict(auto_wrap_policy="SIZE_BASED_WRAP", min_num_params=1000),
    ):
        for name, value in weights(kind, **fields).items():
            torch.testing.assert_close(
                value, expected[name], rtol=1e-5, atol=1e-6, msg=f"{kind.__name__} {fields} {name}"
            )
print("updated", int(os.environ["RANK"]))
