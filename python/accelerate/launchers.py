# SPDX-License-Identifier: Apache-2.0
"""Starts a training function on several processes from a notebook or a test.

Guide: docs/guide_python.md, "Notebooks".
"""

from __future__ import annotations

import glob
import numbers
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ._launch.child import LaunchError, run_on_workers
from ._placeholders import placeholders_for
from .utils.environment import patch_environment

__all__ = ["LaunchError", "PrepareForLaunch", "debug_launcher", "notebook_launcher"]

_WHERE = "notebook_launcher"
_DEFAULT_PORT = "29500"


def notebook_launcher(
    function: Callable[..., Any],
    args: tuple[Any, ...] = (),
    num_processes: int | None = None,
    mixed_precision: str = "no",
    use_port: str = _DEFAULT_PORT,
    master_addr: str = "127.0.0.1",
    node_rank: int = 0,
    num_nodes: int = 1,
    rdzv_backend: str = "static",
    rdzv_endpoint: str = "",
    rdzv_conf: Mapping[str, Any] | None = None,
    rdzv_id: str = "none",
    max_restarts: int = 0,
    monitor_interval: float = 0.1,
    log_line_prefix_template: str | None = None,
) -> Any:
    """Calls `function(*args)` on `num_processes` new processes, and returns rank 0's value.

    By default, starts one process per GPU. With at most one GPU, calls the function in this
    process. The function is pickled by value with everything that it captures, so it may be defined
    in a cell, and CUDA, threads and an `Accelerator` may already be in use. Output appears as it is
    printed. An exception in a worker is raised here as `LaunchError` with the worker's rank and
    traceback. An interrupt stops all workers. Tensors in the returned value are on the CPU.

    With `num_nodes` machines, call this function on each machine. Pass the `node_rank` of the
    machine, the address of machine 0 and the same `use_port`. `num_processes` is the number of
    processes on one machine. Machine 0 returns the value. Guide: docs/guide_python.md, "Notebooks".
    """
    _check_call(_WHERE, function, args)
    _accept_only("rdzv_id", rdzv_id, "none")
    _accept_only("log_line_prefix_template", log_line_prefix_template, None)
    precision = _check_precision(mixed_precision)
    address, _, port = (rdzv_endpoint or f"{master_addr}:{use_port}").partition(":")
    flags = _machine_flags(num_nodes, node_rank, address, port or use_port)
    num_gpus = _count_gpus()
    num_all = _resolve_num_processes(num_processes, num_gpus) * num_nodes
    if num_all == 1:
        print(f"Launching training on {'one GPU' if num_gpus else 'CPU'}.", flush=True)
        # An `Accelerator` that this process creates reads this variable. The default keeps the
        # user's value.
        from . import _C

        chosen = {} if precision == "no" else {_C.variables.MIXED_PRECISION: precision}
        with patch_environment(**chosen):
            return function(*args)
    flags += ["--num_processes", str(num_all), "--max_restarts", str(max_restarts)]
    flags += _rendezvous_flags(rdzv_backend, rdzv_conf, monitor_interval)
    flags += [] if num_gpus else ["--cpu"]
    flags += [] if precision == "no" else ["--mixed_precision", precision]
    print(f"Launching training on {num_all} {'GPU' if num_gpus else 'CPU'}s.", flush=True)
    return run_on_workers(_WHERE, function, args, flags)


def debug_launcher(
    function: Callable[..., Any], args: tuple[Any, ...] = (), num_processes: int = 2
) -> Any:
    """Calls `function(*args)` on connected CPU processes, for tests.

    Like `notebook_launcher`, but never uses a GPU, this process or mixed precision.
    """
    _check_call("debug_launcher", function, args)
    flags = ["--num_processes", str(num_processes), "--cpu", "--mixed_precision", "no"]
    flags += _machine_flags(num_nodes=1)
    return run_on_workers("debug_launcher", function, args, flags)


class PrepareForLaunch:
    """Calls a function as one of several processes that user code starts.

    Use it with `torch.multiprocessing.start_processes`, which passes the index of the process. The
    rank in the environment is this index plus `NPROC` for each of the `NODE_RANK` preceding
    machines. With `debug`, the processes connect through the file in `ACCELERATE_DEBUG_RDV_FILE`.
    """

    def __init__(
        self, launcher: Callable[..., Any], distributed_type: str = "NO", debug: bool = False
    ) -> None:
        self.launcher = launcher
        self.distributed_type = distributed_type
        self.debug = debug

    def __call__(self, index: int, *args: Any) -> None:
        if self.debug:
            import torch.distributed as dist

            size = int(os.environ["WORLD_SIZE"])
            store = dist.FileStore(os.environ["ACCELERATE_DEBUG_RDV_FILE"], size)
            dist.init_process_group("gloo", rank=index, world_size=size, store=store)
        elif str(getattr(self.distributed_type, "value", self.distributed_type)) != "NO":
            first = int(os.environ.get("NPROC", 1)) * int(os.environ.get("NODE_RANK", 0))
            os.environ.update(LOCAL_RANK=str(index), RANK=str(first + index))
        os.environ["FORK_LAUNCHED"] = "1"
        self.launcher(*args)


def _check_call(where: str, function: Any, args: Any) -> None:
    if not callable(function):
        raise TypeError(
            f"[{where}] function is {function!r}, expected a function. Pass the function itself, "
            "without calling it"
        )
    if not isinstance(args, Iterable) or isinstance(args, (str, bytes)):
        raise TypeError(f"[{where}] args is {args!r}, expected a tuple. Pass args=({args!r},)")


def _accept_only(name: str, value: Any, usual: Any) -> None:
    if value != usual:
        raise ValueError(
            f"[{_WHERE}] {name}={value!r} is not supported: `accelerate launch` has no such "
            "setting. Remove this argument"
        )


def _check_precision(mixed_precision: str) -> str:
    import torch  # noqa: F401, the compiled module needs its libraries

    from . import _C  # Loads torch.

    precision = str(mixed_precision).lower()
    known = _C.precision_names()
    if precision not in known:
        raise ValueError(
            f"[{_WHERE}] mixed_precision is {mixed_precision!r}, expected one of {', '.join(known)}"
        )
    return precision


def _count_gpus() -> int:
    """Returns the number of GPUs for workers, or 0 if the user has requested the CPU."""
    import torch

    from . import _C  # Needs torch's libraries.

    if _C.wants_cpu():
        return 0
    # For CUDA, `device_count` uses NVML, which does not create a context in this process.
    kinds = map(torch.get_device_module, _C.accelerator_kinds())
    num_gpus = next((count for kind in kinds if (count := kind.device_count())), 0)
    if num_gpus == 0 and _has_tpu():
        raise NotImplementedError(
            f"[{_WHERE}] TPUs are not supported. Choose a GPU runtime, or set "
            "ACCELERATE_USE_CPU=1 to train on the CPU"
        )
    return num_gpus


def _has_tpu() -> bool:
    is_named = any(name in os.environ for name in ("TPU_NAME", "TPU_ACCELERATOR_TYPE"))
    is_chosen = os.environ.get("PJRT_DEVICE") == "TPU"
    return is_named or is_chosen or bool(glob.glob("/dev/accel[0-9]*"))


def _resolve_num_processes(wanted: int | None, num_gpus: int) -> int:
    if wanted is None:
        return max(1, num_gpus)
    if not isinstance(wanted, numbers.Integral) or wanted < 1 or 0 < num_gpus < wanted:
        raise ValueError(
            f"[{_WHERE}] num_processes is {wanted!r}, expected "
            + (
                f"1 to {num_gpus}, one per GPU. Pass a number in this range, or set "
                "ACCELERATE_USE_CPU=1 to train on the CPU"
                if num_gpus
                else "a whole number of at least 1"
            )
        )
    return int(wanted)


def _machine_flags(
    num_nodes: int, node_rank: int = 0, address: str = "", port: str = _DEFAULT_PORT
) -> list[str]:
    if not 0 <= node_rank < num_nodes:
        raise ValueError(
            f"[{_WHERE}] node_rank is {node_rank}, expected 0 to {num_nodes - 1} with num_nodes "
            f"{num_nodes}"
        )
    # Always pass the number of machines, so that an outer torchrun or Slurm job has no influence.
    flags = ["--num_machines", str(num_nodes), "--machine_rank", str(node_rank)]
    if num_nodes > 1:
        return [*flags, "--main_process_ip", address, "--main_process_port", str(port)]
    # 0 selects a free port, so that two notebooks can train on one machine.
    return [*flags, "--main_process_port", "0" if str(port) == _DEFAULT_PORT else str(port)]


def _rendezvous_flags(
    backend: str, conf: Mapping[str, Any] | None, monitor_interval: float
) -> list[str]:
    """Returns the settings of torchrun that the program accepts. The program explains the effect of
    each of them."""
    flags = [] if backend == "static" else ["--rdzv_backend", backend]
    if conf:
        flags += ["--rdzv_conf", ",".join(f"{key}={value}" for key, value in conf.items())]
    if monitor_interval != 0.1:
        flags += ["--monitor_interval", str(monitor_interval)]
    return flags


__getattr__ = placeholders_for(__name__)
