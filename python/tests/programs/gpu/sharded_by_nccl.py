# SPDX-License-Identifier: Apache-2.0
import os

import torch.distributed as dist
from sharded_run import deepspeed, fsdp, train, worst

dist.init_process_group(
    "nccl", init_method="file://" + os.path.abspath("meeting"), rank=0, world_size=1
)
HALF = dict(sharding_strategy="SHARD_GRAD_OP")
# The sanitizer looks for the memory of arguments before their operators run, where parameters
# that are gathered have none.
is_watched = "TORCH_CUDA_SANITIZER" in os.environ
every = [fsdp(**HALF), deepspeed(1), deepspeed(2)]
if not is_watched:
    every += [fsdp(fsdp_version=2), deepspeed(3)]
expected, _, _ = train()
for settings in every:
    state, _, _ = train(**settings)
    assert worst(state, expected) == 0, (settings, worst(state, expected))
# Parts on the host, whose AdamW rounds differently.
fields = HALF if is_watched else dict(fsdp_version=2)
state, _, _ = train(**fsdp(**fields, cpu_offload=True), max_norm=0.1)
expected, _, _ = train(max_norm=0.1)
assert worst(state, expected) < 1e-3, worst(state, expected)
print("sharded")
