# SPDX-License-Identifier: Apache-2.0
"""Configuration files as objects. The program's own code reads and writes them. It accepts files
from every version of the original, and supports additional keys."""

from __future__ import annotations

import enum
import json
import os
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from accelerate._placeholders import placeholders_for
from accelerate.utils.constants import (
    SAGEMAKER_PYTHON_VERSION,
    SAGEMAKER_PYTORCH_VERSION,
    SAGEMAKER_TRANSFORMERS_VERSION,
)
from accelerate.utils.dataclasses import (
    ComputeEnvironment,
    DistributedType,
    SageMakerDistributedType,
)

hf_cache_home = os.path.expanduser(
    os.environ.get("HF_HOME")
    or os.path.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
)
cache_dir = os.path.join(hf_cache_home, "accelerate")
# Despite its name, this file contains YAML, as in the original.
default_json_config_file = os.path.join(cache_dir, "default_config.yaml")
default_yaml_config_file = default_json_config_file
# If only a file of an old version exists, it is the default.
_old_config_file = os.path.join(cache_dir, "default_config.json")
default_config_file = (
    _old_config_file
    if os.path.isfile(_old_config_file) and not os.path.isfile(default_yaml_config_file)
    else default_yaml_config_file
)

_Config = TypeVar("_Config", bound="BaseConfig")


def load_config_from_file(config_file: str | None) -> BaseConfig:
    """Returns the settings of a YAML or JSON file. None means the default file. Raises
    FileNotFoundError if it does not exist, and ValueError if its content is invalid."""
    path = default_config_file if config_file is None else os.fspath(config_file)
    if not os.path.isfile(path):
        raise FileNotFoundError(
            f"[config] The passed configuration file `{path}` does not exist. Pass an existing "
            "one, or write one with `accelerate config`"
        )
    document = _read(path)
    is_local = document.get("compute_environment", "LOCAL_MACHINE") == "LOCAL_MACHINE"
    return (ClusterConfig if is_local else SageMakerConfig)._from_document(document, path)


def _read(path: str) -> dict[str, Any]:
    import torch  # noqa: F401, the compiled module needs its libraries

    from accelerate import _C  # Loads torch.

    document: dict[str, Any] = json.loads(_C.read_config(path))
    return document


def _plain(value: Any) -> Any:
    """Converts an enum to its value and an empty section to None."""
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()} or None
    return value


@dataclass
class BaseConfig:
    """The base class of all configurations. Keys that only this package has, such as
    `max_restarts`, also become attributes."""

    compute_environment: ComputeEnvironment
    distributed_type: DistributedType | SageMakerDistributedType
    mixed_precision: str
    use_cpu: bool
    debug: bool

    def __post_init__(self) -> None:
        self.compute_environment = ComputeEnvironment(self.compute_environment)
        if self.compute_environment == ComputeEnvironment.AMAZON_SAGEMAKER:
            self.distributed_type = SageMakerDistributedType(self.distributed_type)
        else:
            self.distributed_type = DistributedType(self.distributed_type)
        if getattr(self, "dynamo_config", None) is None:
            self.dynamo_config: dict[str, Any] | None = {}

    def to_dict(self) -> dict[str, Any]:
        """Converts enums to strings. Unset values are omitted."""
        plain = {key: _plain(value) for key, value in vars(self).items()}
        return {key: value for key, value in plain.items() if value is not None}

    @staticmethod
    def process_config(config_dict: dict[str, Any]) -> dict[str, Any]:
        """Adds keys that older files do not have."""
        if "distributed_type" not in config_dict:
            raise ValueError("[config] A `distributed_type` must be specified in the config file.")
        config_dict.setdefault("compute_environment", ComputeEnvironment.LOCAL_MACHINE)
        if config_dict["distributed_type"] == DistributedType.NO:
            config_dict.setdefault("num_processes", 1)
        is_fp16 = config_dict.pop("fp16", False)
        config_dict.setdefault("mixed_precision", "fp16" if is_fp16 else None)
        if "dynamo_backend" in config_dict:
            backend = config_dict.pop("dynamo_backend")
            config_dict["dynamo_config"] = {} if backend == "NO" else {"dynamo_backend": backend}
        for name in ("use_cpu", "debug", "enable_cpu_affinity"):
            config_dict.setdefault(name, False)
        return config_dict

    @classmethod
    def _from_document(cls: type[_Config], document: dict[str, Any], path: str) -> _Config:
        values = cls.process_config(dict(document))
        known = {one.name for one in fields(cls)}
        try:
            config = cls(**{key: value for key, value in values.items() if key in known})
        except TypeError as error:
            raise ValueError(f"[{path}] {error}. Add the missing keys") from None
        vars(config).update({key: value for key, value in values.items() if key not in known})
        return config

    @classmethod
    def from_json_file(cls: type[_Config], json_file: str | None = None) -> _Config:
        path = os.fspath(json_file or default_json_config_file)
        return cls._from_document(_read(path), path)

    @classmethod
    def from_yaml_file(cls: type[_Config], yaml_file: str | None = None) -> _Config:
        path = os.fspath(yaml_file or default_yaml_config_file)
        return cls._from_document(_read(path), path)

    def to_json_file(self, json_file: str | os.PathLike[str]) -> None:
        """Writes the file atomically, as JSON if its name ends in .json and as YAML otherwise."""
        import torch  # noqa: F401, the compiled module needs its libraries

        from accelerate import _C  # Loads torch.

        _C.write_config(os.fspath(json_file), json.dumps(self.to_dict()))

    def to_yaml_file(self, yaml_file: str | os.PathLike[str]) -> None:
        """Writes the file atomically, as JSON if its name ends in .json and as YAML otherwise."""
        self.to_json_file(yaml_file)


@dataclass
class ClusterConfig(BaseConfig):
    """A configuration of `accelerate launch`. -1 processes means one per device."""

    num_processes: int = -1
    machine_rank: int = 0
    num_machines: int = 1
    gpu_ids: str | None = None
    main_process_ip: str | None = None
    main_process_port: int | None = None
    rdzv_backend: str | None = "static"
    same_network: bool | None = False
    main_training_function: str = "main"
    enable_cpu_affinity: bool = False
    fp8_config: dict[str, Any] | None = None
    deepspeed_config: dict[str, Any] | None = None
    fsdp_config: dict[str, Any] | None = None
    parallelism_config: dict[str, Any] | None = None
    megatron_lm_config: dict[str, Any] | None = None
    mpirun_config: dict[str, Any] | None = None
    downcast_bf16: bool = False
    tpu_name: str | None = None
    tpu_zone: str | None = None
    tpu_use_cluster: bool = False
    tpu_use_sudo: bool = False
    command_file: str | None = None
    commands: list[str] | None = None
    tpu_vm: list[str] | None = None
    tpu_env: list[str] | None = None
    dynamo_config: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        for one in fields(self):
            if one.name.endswith("_config") and getattr(self, one.name) is None:
                setattr(self, one.name, {})
        super().__post_init__()


@dataclass
class SageMakerConfig(BaseConfig):
    """A configuration of a SageMaker job. It is only data, because this package does not submit
    jobs."""

    ec2_instance_type: str
    iam_role_name: str
    image_uri: str | None = None
    profile: str | None = None
    region: str = "us-east-1"
    num_machines: int = 1
    gpu_ids: str = "all"
    base_job_name: str = "accelerate-sagemaker-1"
    pytorch_version: str = SAGEMAKER_PYTORCH_VERSION
    transformers_version: str = SAGEMAKER_TRANSFORMERS_VERSION
    py_version: str = SAGEMAKER_PYTHON_VERSION
    sagemaker_inputs_file: str | None = None
    sagemaker_metrics_file: str | None = None
    additional_args: dict[str, Any] | None = None
    dynamo_config: dict[str, Any] | None = None
    enable_cpu_affinity: bool = False


__getattr__ = placeholders_for(__name__)
