# SPDX-License-Identifier: Apache-2.0
"""Hugging Face Accelerate's own reader and writer of configuration files.

oracle.py load FILES...        per file a line of JSON: the YAML, and what their
                               loader makes of it
oracle.py write CASES... FILE  writes FILE % CASE with their classes
"""

import json
import sys

import yaml
from accelerate.commands.config.config_args import (
    ClusterConfig,
    SageMakerConfig,
    load_config_from_file,
)
from accelerate.commands.config.default import write_basic_config

# What their questionnaire passes for every cluster.
ALWAYS = dict(
    compute_environment="LOCAL_MACHINE",
    downcast_bf16="no",
    machine_rank=0,
    num_machines=1,
    main_training_function="main",
    rdzv_backend="static",
    same_network=True,
    tpu_env=[],
    tpu_use_sudo=False,
    tpu_use_cluster=False,
    debug=False,
    use_cpu=False,
    mixed_precision="no",
    enable_cpu_affinity=False,
)

CASES = {
    "plain": dict(distributed_type="NO", num_processes=1, gpu_ids="all"),
    "gpus": dict(
        distributed_type="MULTI_GPU",
        num_processes=8,
        num_machines=2,
        machine_rank=1,
        main_process_ip="10.0.0.1",
        main_process_port=29501,
        mixed_precision="bf16",
        gpu_ids="0,1",
        enable_cpu_affinity=True,
        debug=True,
    ),
    "cpus": dict(
        distributed_type="MULTI_CPU",
        num_processes=4,
        use_cpu=True,
        mpirun_config={"mpirun_hostfile": "/home/x/hostfile"},
    ),
    "deepspeed": dict(
        distributed_type="DEEPSPEED",
        num_processes=4,
        gpu_ids="all",
        deepspeed_config={
            "zero_stage": 3,
            "offload_optimizer_device": "none",
            "zero3_init_flag": True,
        },
    ),
    "megatron": dict(
        distributed_type="MEGATRON_LM",
        num_processes=4,
        megatron_lm_config={"megatron_lm_tp_degree": 2},
    ),
    "tpu": dict(
        distributed_type="XLA",
        num_processes=8,
        tpu_use_cluster=True,
        tpu_name="t",
        tpu_vm=["a", "b"],
        commands=["echo 'x: y'", "no"],
    ),
    "fp8": dict(
        distributed_type="NO",
        num_processes=1,
        mixed_precision="fp8",
        fp8_config={"backend": "TE", "override_linear_precision": [False, True]},
    ),
}


def plain(value):
    return getattr(value, "value", value)


def write(case, path):
    if case == "basic":
        write_basic_config("bf16", path)
    elif case == "sagemaker":
        SageMakerConfig(
            compute_environment="AMAZON_SAGEMAKER",
            distributed_type="DATA_PARALLEL",
            mixed_precision="no",
            use_cpu=False,
            debug=False,
            ec2_instance_type="ml.p3.2xlarge",
            iam_role_name="role",
        ).to_yaml_file(path)
    else:
        config = ClusterConfig(**{**ALWAYS, **CASES[case]})
        if path.endswith(".json"):
            config.to_json_file(path)
        else:
            config.to_yaml_file(path)


def main():
    command, *arguments = sys.argv[1:]
    if command == "load":
        for path in arguments:
            config = vars(load_config_from_file(path))
            loaded = {key: plain(value) for key, value in config.items()}
            print(json.dumps([yaml.safe_load(open(path)), loaded]))
    elif command == "write":
        for case in arguments[:-1]:
            write(case, arguments[-1] % case)


main()
