# SPDX-License-Identifier: Apache-2.0
import json
import os

from accelerate import ParallelismConfig
from accelerate.utils import MSAMPRecipeKwargs, TorchDynamoPlugin

answers = []


def fields(made):
    answers.append({name: str(value) for name, value in vars(made).items() if name[0] != "_"})


fields(TorchDynamoPlugin())
answers.append(TorchDynamoPlugin(backend="inductor", dynamic=True).to_kwargs())
os.environ.update(
    ACCELERATE_DYNAMO_BACKEND="eager",
    ACCELERATE_DYNAMO_MODE="max-autotune",
    ACCELERATE_DYNAMO_USE_FULLGRAPH="true",
    ACCELERATE_DYNAMO_USE_DYNAMIC="false",
    ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION="1",
)
fields(TorchDynamoPlugin())
answers.append(TorchDynamoPlugin().to_kwargs())
fields(TorchDynamoPlugin(backend="no"))
fields(MSAMPRecipeKwargs())
for sizes in (
    {},
    {"tp_size": 2},
    {"dp_shard_size": 2, "dp_replicate_size": 3},
    {"cp_size": 2, "dp_shard_size": 2},
    {"sp_size": 2},
):
    config = ParallelismConfig(**sizes)
    fields(config)
    for name in (
        "dp_dim_names non_dp_dim_names dp_shard_cp_dim_names dp_cp_dim_names total_size "
        "fsdp_dim_names non_data_parallel_size data_parallel_size active_mesh_dims "
        "tp_enabled cp_enabled sp_enabled dp_shard_enabled"
    ).split():
        answers.append((name, getattr(config, name)))
    answers.append(config._get_mesh())
for wrong in (
    {"tp_size": 0},
    {"cp_backend": "x"},
    {"cp_size": 2, "sp_size": 2},
    {"tp_size": 2, "dp_replicate_size": 2},
):
    try:
        ParallelismConfig(**wrong)
    except ValueError as error:
        answers.append(str(error)[:100])
os.environ["PARALLELISM_CONFIG_DP_SHARD_SIZE"] = "4"
fields(ParallelismConfig())
print(json.dumps(answers, default=str))
