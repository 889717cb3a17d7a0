# SPDX-License-Identifier: Apache-2.0
import json

from accelerate import Accelerator
from accelerate.parallelism_config import ParallelismConfig
from accelerate.state import AcceleratorState
from accelerate.utils import FullyShardedDataParallelPlugin

answers = []
for sizes, version in (
    ({"tp_size": 2}, None),
    ({"cp_size": 2}, None),
    ({"sp_size": 2}, None),
    ({"dp_shard_size": 2}, None),
    ({"dp_replicate_size": 2}, 2),
):
    AcceleratorState._reset_state(True)
    plugin = version and FullyShardedDataParallelPlugin(fsdp_version=version)
    try:
        Accelerator(cpu=True, fsdp_plugin=plugin, parallelism_config=ParallelismConfig(**sizes))
    except ValueError as error:
        answers.append(f"{type(error).__name__}: {error}")
AcceleratorState._reset_state(True)
config = ParallelismConfig()
accelerator = Accelerator(cpu=True, parallelism_config=config)
answers.append([config.dp_replicate_size, accelerator.data_parallel_rank])
if accelerator.is_main_process:
    print(json.dumps(answers))
