# SPDX-License-Identifier: Apache-2.0
"""Writes configuration files with the classes of one version of Hugging Face
Accelerate: the reference files in tests/reference/config.

    PYTHONPATH=accelerate-0.11.0/src make_config_files.py tests/reference/config
"""

import dataclasses
import sys
from pathlib import Path

import accelerate
from accelerate.commands.config.config_args import ClusterConfig

CASES = {
    "plain": dict(distributed_type="NO", num_processes=1, use_cpu=True),
    "gpus": dict(
        distributed_type="MULTI_GPU",
        num_processes=8,
        num_machines=2,
        machine_rank=1,
        main_process_ip="10.0.0.1",
        main_process_port=29501,
        mixed_precision="fp16",
        gpu_ids="0,1,2,3",
        rdzv_backend="static",
        same_network=True,
        downcast_bf16="no",
    ),
    "fsdp": dict(
        distributed_type="FSDP",
        num_processes=2,
        mixed_precision="bf16",
        fsdp_config={"fsdp_sharding_strategy": 1, "fsdp_offload_params": False},
        downcast_bf16="no",
    ),
    "dynamo": dict(
        distributed_type="NO",
        num_processes=1,
        dynamo_backend="INDUCTOR",
        dynamo_config={"dynamo_backend": "INDUCTOR"},
    ),
}


def main() -> None:
    known = {field.name for field in dataclasses.fields(ClusterConfig)}
    for name, case in CASES.items():
        values = dict(
            compute_environment="LOCAL_MACHINE",
            mixed_precision="no",
            use_cpu=False,
            debug=False,
            dynamo_backend="NO",
        )
        values.update(case)
        values = {key: value for key, value in values.items() if key in known}
        config = ClusterConfig(**values)
        path = Path(sys.argv[1]) / f"hf_{accelerate.__version__}_{name}.yaml"
        config.to_yaml_file(path)


if __name__ == "__main__":
    main()
