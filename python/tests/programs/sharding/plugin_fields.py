# SPDX-License-Identifier: Apache-2.0
import json
import os
import warnings

warnings.simplefilter("ignore")
import torch
from accelerate.utils import FullyShardedDataParallelPlugin

bf16, fp32 = torch.bfloat16, torch.float32
CASES = [
    ({}, {}),
    ({"VERSION": "2"}, {}),
    (
        {
            "SHARDING_STRATEGY": "SHARD_GRAD_OP",
            "AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
            "TRANSFORMER_CLS_TO_WRAP": "A,B",
            "BACKWARD_PREFETCH": "BACKWARD_POST",
            "USE_ORIG_PARAMS": "true",
            "OFFLOAD_PARAMS": "true",
            "FORWARD_PREFETCH": "true",
            "ACTIVATION_CHECKPOINTING": "true",
        },
        {},
    ),
    ({"SHARDING_STRATEGY": "5", "STATE_DICT_TYPE": "SHARDED_STATE_DICT"}, {}),
    ({"VERSION": "2", "RESHARD_AFTER_FORWARD": "false", "CPU_RAM_EFFICIENT_LOADING": "1"}, {}),
    (
        {},
        dict(
            fsdp_version=2,
            reshard_after_forward=False,
            state_dict_type="FULL_STATE_DICT",
            mixed_precision_policy="bf16",
            activation_checkpointing=True,
            activation_checkpointing_offload=True,
        ),
    ),
    (
        {},
        dict(
            auto_wrap_policy="size_based_wrap",
            min_num_params=100,
            mixed_precision_policy=dict(param_dtype=bf16, reduce_dtype=fp32, buffer_dtype=bf16),
        ),
    ),
    ({}, dict(fsdp_version=2, reshard_after_forward="false", cpu_offload=True)),
    ({}, dict(sharding_strategy="HYBRID_SHARD_ZERO2", backward_prefetch="NO_PREFETCH")),
    ({}, dict(fsdp_version=2, reshard_after_forward="FULL_SHARD")),
    ({}, dict(fsdp_version=1, reshard_after_forward=True)),
    ({}, dict(fsdp_version=2, state_dict_type="LOCAL_STATE_DICT")),
    ({}, dict(auto_wrap_policy="every")),
    ({}, dict(auto_wrap_policy="size_based_wrap", min_num_params="9")),
    ({}, dict(activation_checkpointing_offload=True)),
    ({}, dict(fsdp_version=2, forward_prefetch=True)),
    ({}, dict(mixed_precision_policy=dict(param_dtype=bf16))),
    ({}, dict(mixed_precision_policy="int8")),
    ({}, dict(cpu_offload="x")),
]
answers = []
for variables, fields in CASES:
    for name in [name for name in os.environ if name.startswith("FSDP_")]:
        del os.environ[name]
    os.environ.update({"FSDP_" + name: value for name, value in variables.items()})
    try:
        plugin = FullyShardedDataParallelPlugin(**fields)
    except ValueError:
        answers.append("ValueError")
    else:
        answers.append(
            {name: getattr(value, "__name__", str(value)) for name, value in vars(plugin).items()}
        )
print(json.dumps(answers))
