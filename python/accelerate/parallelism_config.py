# SPDX-License-Identifier: Apache-2.0
"""The dimensions along which a run is parallel. This version trains with `dp_replicate` and
`dp_shard`. `Accelerator` raises an error for configurations that use other dimensions."""

from __future__ import annotations

import copy
import math
import os
from dataclasses import dataclass
from typing import Any, Literal

from accelerate import _C
from accelerate._placeholders import placeholders_for
from accelerate.utils.dataclasses import (
    DeepSpeedSequenceParallelConfig,
    TorchContextParallelConfig,
    TorchTensorParallelConfig,
)

# The dimensions of a mesh, from the outermost to the innermost.
_DIMENSIONS = ("dp_replicate", "dp_shard", "cp", "sp", "tp")


@dataclass
class ParallelismConfig:
    """The number of processes along each dimension: replicas of the model (`dp_replicate`), shards
    of the model (`dp_shard`), tensor parallelism (`tp`), and context and sequence parallelism
    (`cp`, `sp`). The environment variables PARALLELISM_CONFIG_* set the defaults, which are
    otherwise 1."""

    dp_replicate_size: int | None = None
    dp_shard_size: int | None = None
    tp_size: int | None = None
    cp_size: int | None = None
    cp_backend: Literal["torch"] | None = None
    sp_size: int | None = None
    sp_backend: Literal["deepspeed"] | None = None

    tp_handler: TorchTensorParallelConfig | None = None
    cp_handler: TorchContextParallelConfig | None = None
    sp_handler: DeepSpeedSequenceParallelConfig | None = None

    device_mesh = None

    def __post_init__(self) -> None:
        for name in _DIMENSIONS:
            size = getattr(self, f"{name}_size")
            if size is None:
                size = int(os.environ.get(f"PARALLELISM_CONFIG_{name.upper()}_SIZE", "1"))
                setattr(self, f"{name}_size", size)
            if size < 1:
                raise ValueError(f"{name}_size must be at least 1, but got {size}")
        for name, known in (("cp", "torch"), ("sp", "deepspeed")):
            field = f"{name}_backend"
            if getattr(self, field) is None:
                variable = f"PARALLELISM_CONFIG_{field.upper()}"
                setattr(self, field, os.environ.get(variable, known))
            if getattr(self, field) != known:
                raise ValueError(
                    f"{field} must be one of ['{known}'], but got {getattr(self, field)}"
                )
        self._check_together()
        self._add_handlers()

    def _check_together(self) -> None:
        if self.cp_enabled and self.sp_enabled:
            raise ValueError(
                "Context Parallelism (CP) and Sequence Parallelism (SP) are mutually exclusive. Got "
                f"cp_size={self.cp_size} and sp_size={self.sp_size}. Please set either cp_size=1 or "
                "sp_size=1."
            )
        if (
            (self.tp_enabled or self.cp_enabled)
            and self.dp_replicate_enabled
            and not self.dp_shard_enabled
        ):
            raise ValueError(
                "Tensor/Context parallelism (tp/cp_size > 1) cannot be used with pure data "
                "parallelism (dp_replicate_size > 1 and dp_shard_size == 1)."
            )

    def _add_handlers(self) -> None:
        if self.tp_enabled and self.tp_handler is None:
            self.tp_handler = TorchTensorParallelConfig()
        if self.cp_enabled and self.cp_handler is None:
            self.cp_handler = TorchContextParallelConfig()
        if self.sp_enabled and self.sp_handler is None:
            self.sp_handler = DeepSpeedSequenceParallelConfig()
        if self.cp_enabled and not isinstance(self.cp_handler, TorchContextParallelConfig):
            raise ValueError(
                f"ParallelismConfig's cp_backend={self.cp_backend} requires "
                f"{TorchContextParallelConfig}, but cp_handler was set to {type(self.cp_handler)}"
            )

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as plain values."""
        return {
            name: copy.deepcopy(vars(value) if hasattr(value, "__dict__") else value)
            for name, value in vars(self).items()
            if name != "device_mesh"
        }

    @property
    def _sizes(self) -> dict[str, int]:
        return {name: getattr(self, f"{name}_size") for name in _DIMENSIONS}

    def _set_size(self, parallelism: str, size: int) -> None:
        assert parallelism in _DIMENSIONS, f"Parallelism must be one of {_DIMENSIONS}"
        setattr(self, f"{parallelism}_size", size)

    def _enabled(self, *names: str) -> list[str]:
        return [name for name in names if getattr(self, f"{name}_size") > 1]

    @property
    def dp_replicate_enabled(self) -> bool:
        return self.dp_replicate_size > 1

    @property
    def dp_shard_enabled(self) -> bool:
        return self.dp_shard_size > 1

    @property
    def tp_enabled(self) -> bool:
        return self.tp_size > 1

    @property
    def cp_enabled(self) -> bool:
        return self.cp_size > 1

    @property
    def sp_enabled(self) -> bool:
        return self.sp_size > 1

    @property
    def dp_dim_names(self) -> list[str]:
        """The dimensions along which processes have different batches."""
        return self._enabled("dp_replicate", "dp_shard")

    @property
    def non_dp_dim_names(self) -> list[str]:
        """The dimensions along which processes have the same batches."""
        return self._enabled("tp", "cp", "sp")

    @property
    def dp_shard_cp_dim_names(self) -> list[str]:
        """The dimensions along which the model is sharded."""
        return self._enabled("dp_shard", "cp")

    @property
    def dp_cp_dim_names(self) -> list[str]:
        """The dimensions along which the loss is averaged."""
        return self._enabled("dp_replicate", "dp_shard", "cp")

    @property
    def fsdp_dim_names(self) -> list[str]:
        return [*self._enabled("dp_replicate"), "dp_shard_cp"]

    @property
    def active_mesh_dims(self) -> list[str]:
        return self.dp_dim_names + self.non_dp_dim_names

    @property
    def total_size(self) -> int:
        """The total number of processes."""
        return math.prod(self._sizes.values())

    @property
    def non_data_parallel_size(self) -> int:
        return self.tp_size * self.cp_size * self.sp_size

    @property
    def data_parallel_size(self) -> int:
        return self.dp_replicate_size * self.dp_shard_size

    def build_device_mesh(self, device_type: str) -> Any:
        """Returns torch's mesh of the dimensions with more than one process, with the joint
        dimensions `dp`, `dp_shard_cp` and `dp_cp`. Returns None if there are no such dimensions, or
        if DeepSpeed creates the mesh."""
        mesh = self._get_mesh()
        if self.sp_enabled or not mesh:
            return None
        from torch.distributed.device_mesh import init_device_mesh

        names, shape = mesh
        device_mesh = init_device_mesh(device_type, shape, mesh_dim_names=names)
        for joint in ("dp", "dp_shard_cp", "dp_cp"):
            if dimensions := getattr(self, f"{joint}_dim_names"):
                device_mesh[tuple(dimensions)]._flatten(joint)
        return device_mesh

    def get_device_mesh(self, device_type: str | None = None) -> Any:
        """Returns the mesh, which the first call creates."""
        if self.device_mesh is None:
            if device_type is None:
                raise ValueError(
                    "You need to pass a device_type, e.g. cuda, to build the device mesh"
                )
            self.device_mesh = self.build_device_mesh(device_type)
        elif device_type not in (None, self.device_mesh.device_type):
            raise ValueError(
                "The device_mesh was already created with device type "
                f"{self.device_mesh.device_type}, but a device mesh was requested with "
                f"device_type {device_type}. Please check that you correctly initialized your "
                "device_mesh"
            )
        return self.device_mesh

    def _get_mesh(self) -> tuple:
        """Returns the names and sizes of the mesh's dimensions."""
        return tuple(zip(*((name, size) for name, size in self._sizes.items() if size > 1)))

    def _validate_accelerator(self, accelerator: Any) -> None:
        if self.total_size == 1:
            self._set_size("dp_replicate", accelerator.num_processes)
        if not self.sp_enabled and self.total_size != accelerator.num_processes:
            raise ValueError(
                f"ParallelismConfig total_size ({self.total_size}) does not match num_processes "
                f"({accelerator.num_processes}). Please adjust dp_replicate_size/ "
                "dp_shard_size/tp_size/cp_size/sp_size."
            )
        if accelerator.is_fsdp2 and not self.dp_shard_enabled and not self.cp_enabled:
            raise ValueError(
                "FSDP is enabled but the parallelism config has no dimension for FSDP to shard across "
                "(both `dp_shard_size` and `cp_size` are 1). Set dp_shard_size, or leave out "
                "parallelism_config to shard across all processes."
            )

    def _mesh_sizes(self) -> _C.MeshSizes:
        """Returns the sizes for the engine, which raises an error for dimensions that it does not
        support."""
        return _C.MeshSizes(
            replicate=self.dp_replicate_size,
            shard=self.dp_shard_size,
            context=self.cp_size,
            sequence=self.sp_size,
            tensor=self.tp_size,
        )


__getattr__ = placeholders_for(__name__)
