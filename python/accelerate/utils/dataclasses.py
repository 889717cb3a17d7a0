# SPDX-License-Identifier: Apache-2.0
"""The choices and options that `Accelerator` takes (docs/guide_python.md)."""

from __future__ import annotations

import copy
import enum
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, get_args

from accelerate._placeholders import placeholders_for
from accelerate.utils.environment import clear_environment, parse_flag_from_env

if TYPE_CHECKING:
    import torch


# --- choices ----------------------------------------------------------------------------------


class EnumWithContains(enum.EnumMeta):
    """Lets `"fp16" in PrecisionType` answer for values as well as members."""

    def __contains__(cls, item: object) -> bool:
        try:
            cls(item)
        except ValueError:
            return False
        return True


class BaseEnum(enum.Enum, metaclass=EnumWithContains):
    """An enum whose members print as their values."""

    def __str__(self) -> str:
        return self.value

    @classmethod
    def list(cls) -> list[str]:
        """The values of all members."""
        return [str(member) for member in cls]


# The str base lets json write members of these.
class DistributedType(str, enum.Enum):
    """How the processes of a run work together."""

    NO = "NO"
    MULTI_CPU = "MULTI_CPU"
    MULTI_GPU = "MULTI_GPU"
    MULTI_NPU = "MULTI_NPU"
    MULTI_MLU = "MULTI_MLU"
    MULTI_SDAA = "MULTI_SDAA"
    MULTI_MUSA = "MULTI_MUSA"
    MULTI_XPU = "MULTI_XPU"
    DEEPSPEED = "DEEPSPEED"
    FSDP = "FSDP"
    XLA = "XLA"
    MEGATRON_LM = "MEGATRON_LM"
    MULTI_HPU = "MULTI_HPU"
    MULTI_NEURON = "MULTI_NEURON"


class SageMakerDistributedType(str, enum.Enum):
    """How the processes of a SageMaker job work together."""

    NO = "NO"
    DATA_PARALLEL = "DATA_PARALLEL"
    MODEL_PARALLEL = "MODEL_PARALLEL"


class FP8BackendType(str, enum.Enum):
    """Which package computes in 8 bits: Transformer Engine, MS-AMP or torchao."""

    NO = "NO"
    TE = "TE"
    MSAMP = "MSAMP"
    AO = "AO"


class ComputeEnvironment(str, enum.Enum):
    """Where a run happens."""

    LOCAL_MACHINE = "LOCAL_MACHINE"
    AMAZON_SAGEMAKER = "AMAZON_SAGEMAKER"


class DynamoBackend(str, BaseEnum):
    """What compiles the graphs that `torch.compile` captures."""

    NO = "NO"
    EAGER = "EAGER"
    AOT_EAGER = "AOT_EAGER"
    INDUCTOR = "INDUCTOR"
    AOT_TS_NVFUSER = "AOT_TS_NVFUSER"
    NVPRIMS_NVFUSER = "NVPRIMS_NVFUSER"
    CUDAGRAPHS = "CUDAGRAPHS"
    OFI = "OFI"
    FX2TRT = "FX2TRT"
    ONNXRT = "ONNXRT"
    TENSORRT = "TENSORRT"
    AOT_TORCHXLA_TRACE_ONCE = "AOT_TORCHXLA_TRACE_ONCE"
    TORCHXLA_TRACE_ONCE = "TORCHXLA_TRACE_ONCE"
    TVM = "TVM"
    HPU_BACKEND = "HPU_BACKEND"
    NEURON = "NEURON"


class LoggerType(BaseEnum):
    """Where metrics are sent."""

    ALL = "all"
    AIM = "aim"
    TENSORBOARD = "tensorboard"
    WANDB = "wandb"
    TRACKIO = "trackio"
    COMETML = "comet_ml"
    MLFLOW = "mlflow"
    CLEARML = "clearml"
    DVCLIVE = "dvclive"
    SWANLAB = "swanlab"


class PrecisionType(str, BaseEnum):
    """In which floating point format the forward pass computes."""

    NO = "no"
    FP8 = "fp8"
    FP16 = "fp16"
    BF16 = "bf16"


class RNGType(BaseEnum):
    """Whose random number generator."""

    TORCH = "torch"
    CUDA = "cuda"
    MLU = "mlu"
    SDAA = "sdaa"
    MUSA = "musa"
    NPU = "npu"
    XLA = "xla"
    XPU = "xpu"
    HPU = "hpu"
    NEURON = "neuron"
    GENERATOR = "generator"


class CustomDtype(enum.Enum):
    """Formats that torch has no dtype for, for planning sizes only."""

    FP8 = "fp8"
    INT4 = "int4"
    INT2 = "int2"


class DDPCommunicationHookType(BaseEnum):
    """How gradients are compressed before they are reduced."""

    NO = "no"
    FP16 = "fp16"
    BF16 = "bf16"
    POWER_SGD = "power_sgd"
    BATCHED_POWER_SGD = "batched_power_sgd"


# --- options ----------------------------------------------------------------------------------


@dataclass
class TensorInformation:
    """What one process tells another about a tensor before sending it."""

    shape: torch.Size
    dtype: torch.dtype


class KwargsHandler:
    """Base of dataclasses whose fields are keyword arguments of something."""

    def to_dict(self) -> dict[str, Any]:
        return copy.deepcopy(self.__dict__)

    def to_kwargs(self) -> dict[str, Any]:
        """The fields that differ from the class's defaults without any environment variable."""
        with clear_environment():
            defaults = type(self)().to_dict()
        return {key: value for key, value in self.to_dict().items() if defaults[key] != value}


@dataclass
class AutocastKwargs(KwargsHandler):
    """Arguments of `torch.autocast`."""

    enabled: bool = True
    cache_enabled: bool | None = None


@dataclass
class DistributedDataParallelKwargs(KwargsHandler):
    """How gradients are averaged: arguments of `torch.nn.parallel.DistributedDataParallel`, and
    how they are compressed on the way.
    """

    dim: int = 0
    broadcast_buffers: bool = True
    bucket_cap_mb: int = 25
    find_unused_parameters: bool = False
    check_reduction: bool = False
    gradient_as_bucket_view: bool = False
    static_graph: bool = False

    comm_hook: DDPCommunicationHookType = DDPCommunicationHookType.NO
    comm_wrapper: Literal[
        DDPCommunicationHookType.NO,
        DDPCommunicationHookType.FP16,
        DDPCommunicationHookType.BF16,
    ] = DDPCommunicationHookType.NO
    comm_state_option: dict[str, Any] = field(default_factory=dict)

    def to_dict(
        self, ignore_keys: tuple[str, ...] = ("comm_hook", "comm_wrapper", "comm_state_option")
    ) -> dict[str, Any]:
        return {key: value for key, value in super().to_dict().items() if key not in ignore_keys}


@dataclass
class GradScalerKwargs(KwargsHandler):
    """Arguments of `torch.amp.GradScaler`."""

    init_scale: float = 65536.0
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000
    enabled: bool = True


@dataclass
class InitProcessGroupKwargs(KwargsHandler):
    """Arguments of `torch.distributed.init_process_group`. A timeout of None becomes 10 minutes
    for NCCL and 30 otherwise.
    """

    backend: str | None = "nccl"
    init_method: str | None = None
    timeout: timedelta | None = None

    def __post_init__(self) -> None:
        if self.timeout is None:
            self.timeout = timedelta(minutes=10 if self.backend == "nccl" else 30)


@dataclass
class EngineKwargs(KwargsHandler):
    """An engine of your own in the place of DDP's, made in C++ (`OwnEngine` in own_engine.h) and
    handed over by an extension module."""

    engine: Any = None


ProfilerActivity = Literal["cpu", "xpu", "mtia", "cuda", "hpu"]


@dataclass
class ProfileKwargs(KwargsHandler):
    """Arguments of `torch.profiler.profile`; activities by name (`cpu`, `cuda`, ...), the
    schedule as the arguments of `torch.profiler.schedule`. Traces go to `output_trace_dir`.
    """

    activities: list[str] | None = None
    schedule_option: dict[str, int] | None = None
    on_trace_ready: Callable[..., Any] | None = None
    record_shapes: bool = False
    profile_memory: bool = False
    with_stack: bool = False
    with_flops: bool = False
    with_modules: bool = False
    output_trace_dir: str | None = None

    def build(self) -> torch.profiler.profile:
        """The profiler that these fields describe."""
        from torch import profiler

        return profiler.profile(
            activities=None
            if self.activities is None
            else [_profiler_activity(name) for name in self.activities],
            schedule=None
            if self.schedule_option is None
            else profiler.schedule(**self.schedule_option),
            on_trace_ready=self.on_trace_ready,
            record_shapes=self.record_shapes,
            profile_memory=self.profile_memory,
            with_stack=self.with_stack,
            with_flops=self.with_flops,
            with_modules=self.with_modules,
        )


def _profiler_activity(name: str) -> torch.profiler.ProfilerActivity:
    from torch.profiler import ProfilerActivity

    activities = {key.lower(): value for key, value in ProfilerActivity.__members__.items()}
    if name not in activities:
        raise ValueError(
            f"[ProfileKwargs] activity is {name!r}, expected one of {', '.join(activities)}"
        )
    return activities[name]


@dataclass
class DataLoaderConfiguration:
    """How `prepare` cuts up data loaders (docs/guide_python.md)."""

    # Batches are of all processes together, and each process takes its part of every one.
    split_batches: bool = False
    # Process 0 reads and sends the others their parts; None: for an IterableDataset only.
    dispatch_batches: bool | None = None
    # Samples from the start fill up the end, so that all processes have as many batches.
    even_batches: bool = True
    # Shuffles with a generator that is seeded anew in each epoch.
    use_seedable_sampler: bool = False
    # The seed for that; None: torch's current one. Process 0's counts.
    data_seed: int | None = None
    # Copies to the device without waiting; wants pinned memory.
    non_blocking: bool = False
    # Loaders that can save where they are (needs torchdata 0.8 or newer).
    use_stateful_dataloader: bool = False


@dataclass
class ProjectConfiguration:
    """Where a run keeps its files. `logging_dir` is `project_dir` unless it is given."""

    project_dir: str | None = None
    logging_dir: str | None = None
    # Checkpoints are numbered folders, `iteration` the next number, and `total_limit` are kept.
    automatic_checkpoint_naming: bool = False
    total_limit: int | None = None
    iteration: int = 0
    # Each machine's first process writes, for file systems that are not shared.
    save_on_each_node: bool = False

    def set_directories(self, project_dir: str | None = None) -> None:
        self.project_dir = project_dir
        if self.logging_dir is None:
            self.logging_dir = project_dir

    def __post_init__(self) -> None:
        self.set_directories(self.project_dir)


@dataclass
class GradientAccumulationPlugin(KwargsHandler):
    """When gradients are exchanged and the optimizer steps."""

    num_steps: int | None = None
    # The scheduler counts batches, not optimizer steps.
    adjust_scheduler: bool = True
    # The last batch of a loader always steps.
    sync_with_dataloader: bool = True
    # Exchanges in every batch: less memory, more traffic.
    sync_each_batch: bool = False


@dataclass
class TorchDynamoPlugin(KwargsHandler):
    """Arguments of `torch.compile`, by which `prepare` compiles models unless the backend is no.
    What is left out is read from ACCELERATE_DYNAMO_*."""

    backend: DynamoBackend | str | None = None
    mode: str | None = None
    fullgraph: bool | None = None
    dynamic: bool | None = None
    options: Any = None
    # Compiles nothing, for tests.
    disable: bool = False
    # Compiles repeated blocks of a class one by one, which is done once for all of them.
    use_regional_compilation: bool | None = None

    def __post_init__(self) -> None:
        def flag(name: str) -> bool:
            return parse_flag_from_env(f"ACCELERATE_DYNAMO_USE_{name}")

        backend = self.backend or os.environ.get("ACCELERATE_DYNAMO_BACKEND", "no")
        self.backend = DynamoBackend(str(backend).upper())
        if self.mode is None:
            self.mode = os.environ.get("ACCELERATE_DYNAMO_MODE", "default")
        if self.fullgraph is None:
            self.fullgraph = flag("FULLGRAPH")
        if self.use_regional_compilation is None:
            self.use_regional_compilation = flag("REGIONAL_COMPILATION")
        if self.dynamic is None and "ACCELERATE_DYNAMO_USE_DYNAMIC" in os.environ:
            self.dynamic = flag("DYNAMIC")

    def to_dict(self) -> dict[str, Any]:
        return {**super().to_dict(), "backend": self.backend.value.lower()}

    def to_kwargs(self) -> dict[str, Any]:
        kwargs = super().to_kwargs()
        kwargs.pop("use_regional_compilation", None)
        return kwargs


# --- options of what is not part of this package ------------------------------------------------
# They can be made, read and kept; what would act on them says that it cannot.

Backend = Literal["MSAMP", "TE"]
OptLevel = Literal["O1", "O2"]
FP8Format = Literal["HYBRID", "E4M3", "E5M2"]
AmaxComputeAlgorithm = Literal["max", "most_recent"]


def _chosen(name: str, value: str, choices: Any) -> str:
    if value not in get_args(choices):
        raise ValueError(f"`{name}` must be one of {' or '.join(get_args(choices))}")
    return value


@dataclass
class AORecipeKwargs(KwargsHandler):
    """How torchao computes in 8 bits."""

    config: Any = None
    module_filter_func: Callable[..., bool] | None = None
    pad_inner_dim: bool | None = None
    enable_fsdp_float8_all_gather: bool | None = None

    def __post_init__(self) -> None:
        if self.config is not None:
            return
        if self.pad_inner_dim is None:
            self.pad_inner_dim = parse_flag_from_env("ACCELERATE_FP8_PAD_INNER_DIM", True)
        if self.enable_fsdp_float8_all_gather is None:
            self.enable_fsdp_float8_all_gather = parse_flag_from_env(
                "ACCELERATE_FP8_ENABLE_FSDP_FLOAT8_ALL_GATHER", True
            )


@dataclass
class TERecipeKwargs(KwargsHandler):
    """How Transformer Engine computes in 8 bits."""

    use_autocast_during_eval: bool | None = None
    margin: int | None = None
    interval: int | None = None
    fp8_format: FP8Format | None = None
    amax_history_len: int | None = None
    amax_compute_algo: AmaxComputeAlgorithm | None = None
    override_linear_precision: tuple[bool, bool, bool] | None = None
    use_mxfp8_block_scaling: bool | None = None

    def __post_init__(self) -> None:
        for name, default in (("margin", 0), ("interval", 1), ("amax_history_len", 1024)):
            if getattr(self, name) is None:
                setattr(self, name, int(os.environ.get(f"ACCELERATE_FP8_{name.upper()}", default)))
        for name in ("use_autocast_during_eval", "use_mxfp8_block_scaling"):
            if getattr(self, name) is None:
                setattr(self, name, parse_flag_from_env(f"ACCELERATE_FP8_{name.upper()}"))
        if self.override_linear_precision is None:
            self.override_linear_precision = tuple(
                parse_flag_from_env(f"ACCELERATE_FP8_OVERRIDE_{part}")
                for part in ("FPROP", "DGRAD", "WGRAD")
            )
        chosen = self.fp8_format or os.environ.get("ACCELERATE_FP8_FORMAT", "HYBRID")
        self.fp8_format = _chosen("fp8_format", chosen.upper(), FP8Format)
        chosen = self.amax_compute_algo or os.environ.get(
            "ACCELERATE_FP8_AMAX_COMPUTE_ALGO", "most_recent"
        )
        self.amax_compute_algo = _chosen("amax_compute_algo", chosen.lower(), AmaxComputeAlgorithm)


@dataclass
class MSAMPRecipeKwargs(KwargsHandler):
    """How MS-AMP computes in 8 bits."""

    opt_level: OptLevel | None = None

    def __post_init__(self) -> None:
        if self.opt_level is None:
            self.opt_level = os.environ.get("ACCELERATE_FP8_OPT_LEVEL", "O2")
        _chosen("opt_level", self.opt_level, OptLevel)


@dataclass
class FP8RecipeKwargs(TERecipeKwargs, MSAMPRecipeKwargs):
    """An older form of the two above."""

    backend: Backend | None = None

    def __post_init__(self) -> None:
        warnings.warn(
            "FP8RecipeKwargs is deprecated; use TERecipeKwargs or MSAMPRecipeKwargs",
            FutureWarning,
            stacklevel=3,
        )
        backend = self.backend or os.environ.get("ACCELERATE_FP8_BACKEND", "te")
        self.backend = _chosen("backend", backend.upper(), Backend)
        TERecipeKwargs.__post_init__(self)
        MSAMPRecipeKwargs.__post_init__(self)


@dataclass
class TorchTensorParallelPlugin:
    """An older form of `ParallelismConfig(tp_size=...)`."""

    tp_size: int = 1
    torch_device_mesh: Any = None


@dataclass
class TorchTensorParallelConfig:
    """How layers are cut over devices."""

    enable_async_tp: bool = False


@dataclass
class TorchContextParallelConfig:
    """How sequences are cut over devices."""

    cp_comm_strategy: str | None = None

    def __post_init__(self) -> None:
        if self.cp_comm_strategy is None:
            self.cp_comm_strategy = os.environ.get(
                "PARALLELISM_CONFIG_CP_COMM_STRATEGY", "allgather"
            )
        if self.cp_comm_strategy not in ("allgather", "alltoall"):
            raise ValueError(
                f"Invalid cp_comm_strategy: {self.cp_comm_strategy}. Must be one of 'allgather' or "
                "'alltoall'."
            )


@dataclass
class DeepSpeedSequenceParallelConfig:
    """How DeepSpeed cuts sequences over devices."""

    sp_seq_length: int | None = None
    sp_seq_length_is_variable: bool | None = None
    sp_attn_implementation: str | None = None

    def __post_init__(self) -> None:
        prefix = "PARALLELISM_CONFIG_SP_"
        if self.sp_seq_length_is_variable is None:
            text = os.environ.get(f"{prefix}SEQ_LENGTH_IS_VARIABLE", "true")
            self.sp_seq_length_is_variable = text.lower() == "true"
        if self.sp_seq_length is None and not self.sp_seq_length_is_variable:
            text = os.environ.get(f"{prefix}SEQ_LENGTH")
            if text is None:
                raise ValueError(
                    "when `sp_seq_length_is_variable` is `False` `sp_seq_length` must be provided "
                    f"either through the constructor or the environment variable {prefix}SEQ_LENGTH"
                )
            self.sp_seq_length = None if text == "None" else int(text)
        if self.sp_attn_implementation is None:
            self.sp_attn_implementation = os.environ.get(f"{prefix}ATTN_IMPLEMENTATION")


def get_module_class_from_name(module: torch.nn.Module, name: str) -> type | None:
    """The class of this name among those of the module and all inside of it."""
    return next((type(part) for part in module.modules() if type(part).__name__ == name), None)


__getattr__ = placeholders_for(__name__)
