# SPDX-License-Identifier: Apache-2.0
"""Connects the processes: reads environment variables and creates torch.distributed's group."""

from __future__ import annotations

import os
import warnings
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from accelerate import _C
from accelerate._process.stacks import watch_script
from accelerate.errors import ConfigError
from accelerate.utils.dataclasses import InitProcessGroupKwargs


def connect(cpu: bool, kwargs: dict[str, Any]) -> tuple[_C.ProcessEnvironment, _C.ProcessGroup]:
    """Returns this process's ranks and the group of all processes. Creates torch.distributed's
    group unless user code has already created it."""
    watch_script()
    if dist.is_available() and dist.is_initialized():
        return _environment_of_user(), _C.ProcessGroup(dist.group.WORLD)
    environment = _C.detect_environment()
    if environment.world_size == 1:
        return environment, _C.ProcessGroup()
    _make_group(environment, cpu, dict(kwargs))
    return environment, _C.ProcessGroup(dist.group.WORLD)


def _environment_of_user() -> _C.ProcessEnvironment:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    environment = _C.detect_environment()
    if (environment.rank, environment.world_size) == (rank, world_size):
        return environment
    # No environment variable says on which machines the processes run, so assume one machine.
    return _C.environment_of_group(
        rank=rank,
        world_size=world_size,
        local_rank=int(os.environ.get("LOCAL_RANK", rank)),
        local_world_size=int(os.environ.get("LOCAL_WORLD_SIZE", world_size)),
    )


def _make_group(environment: _C.ProcessEnvironment, cpu: bool, kwargs: dict[str, Any]) -> None:
    wanted = kwargs.pop("backend", None)
    timeout = kwargs.pop("timeout", None)
    _check_arguments(wanted, timeout)
    if wanted == "nccl" and (cpu or _C.default_device().type == "cpu"):
        # Scripts for GPUs request NCCL and also run on CPUs, where Hugging Face Accelerate silently
        # uses Gloo.
        warnings.warn('backend="nccl" needs GPUs. This run uses the CPU and Gloo.', stacklevel=6)
        wanted = None
    backend = environment.choose_backend(wanted, cpu)
    if "init_method" in kwargs:
        rendezvous = {"init_method": kwargs.pop("init_method")}
    else:
        rendezvous = {"store": environment.connect_store(timeout)}
        # By default, Gloo uses the address that this machine's host name resolves to. Other
        # machines may not be able to reach it.
        interface = environment.interface()
        if interface:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
    if kwargs:
        raise ConfigError(
            f"[PartialState] Unknown argument '{next(iter(kwargs))}'. Expected backend, timeout or "
            "init_method"
        )
    dist.init_process_group(
        backend=backend,
        rank=environment.rank,
        world_size=environment.world_size,
        timeout=timeout or _default_timeout(wanted),
        **rendezvous,
    )
    _set_torchrun_variables(environment)


def _check_arguments(backend: Any, timeout: Any) -> None:
    if backend is not None and not isinstance(backend, str):
        raise ConfigError(
            f"[PartialState] backend must be a string such as 'gloo', got {backend!r}"
        )
    if timeout is not None and not isinstance(timeout, timedelta):
        raise TypeError(
            f"[PartialState] timeout must be a datetime.timedelta, got {timeout!r}. Pass "
            "timedelta(seconds=600), for example"
        )
    if timeout is not None and timeout <= timedelta(0):
        raise ConfigError(f"[PartialState] timeout must be positive, got {timeout}")


def _default_timeout(backend: str | None) -> timedelta:
    """Returns the default of `InitProcessGroupKwargs` for the chosen backend."""
    chosen = InitProcessGroupKwargs(backend=backend).timeout if backend else None
    return chosen or _C.collective_timeout()


def _set_torchrun_variables(environment: _C.ProcessEnvironment) -> None:
    # Scripts read these variables, which MPI and Slurm do not set.
    for name, value in (
        ("RANK", environment.rank),
        ("WORLD_SIZE", environment.world_size),
        ("LOCAL_RANK", environment.local_rank),
        ("LOCAL_WORLD_SIZE", environment.local_world_size),
        ("MASTER_ADDR", environment.address),
        ("MASTER_PORT", environment.port),
    ):
        if value != "":
            os.environ.setdefault(name, str(value))
