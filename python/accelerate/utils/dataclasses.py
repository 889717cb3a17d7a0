# SPDX-License-Identifier: Apache-2.0
"""The choices and options that `Accelerator` accepts (docs/guide_python.md)."""

from __future__ import annotations

import copy
import enum
import functools
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, get_args

from accelerate._base.checked_values import FLAG, Kind, checked, described, number_of, whole_number
from accelerate._placeholders import placeholders_for
from accelerate._plugins.deepspeed_config import HfDeepSpeedConfig, kind_of_value
from accelerate.errors import ConfigError
from accelerate.utils.constants import (
    FSDP_AUTO_WRAP_POLICY,
    FSDP_BACKWARD_PREFETCH,
    FSDP_SHARDING_STRATEGY,
)
from accelerate.utils.environment import parse_flag_from_env, str_to_bool

if TYPE_CHECKING:
    import torch


# --- choices ----------------------------------------------------------------------------------


class EnumWithContains(enum.EnumMeta):
    """Makes `"fp16" in PrecisionType` work for values as well as members."""

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
        """Returns the values of all members."""
        return [str(member) for member in cls]


# `str` is a base class so that json can serialise members.
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
    """The package that computes in 8 bits: Transformer Engine, MS-AMP or torchao."""

    NO = "NO"
    TE = "TE"
    MSAMP = "MSAMP"
    AO = "AO"


class ComputeEnvironment(str, enum.Enum):
    """Where a run is executed."""

    LOCAL_MACHINE = "LOCAL_MACHINE"
    AMAZON_SAGEMAKER = "AMAZON_SAGEMAKER"


class DynamoBackend(str, BaseEnum):
    """The backend of `torch.compile`, which compiles graphs."""

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
    """The floating-point format of the forward pass."""

    NO = "no"
    FP8 = "fp8"
    FP16 = "fp16"
    BF16 = "bf16"


class RNGType(BaseEnum):
    """Kinds of random number generators."""

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
    """Number formats without a torch dtype. They are used only to compute sizes."""

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
    """The properties of a tensor, which one process sends to another before the tensor itself."""

    shape: torch.Size
    dtype: torch.dtype


@contextmanager
def _no_variables() -> Iterator[None]:
    """Inside the block, Python code sees no environment variables. The process keeps them, because
    threads of C libraries may read them at any time and must not see changes."""
    known = os.environ
    os.environ = {}  # type: ignore[assignment]
    try:
        yield
    finally:
        os.environ = known


class KwargsHandler:
    """The base class of dataclasses whose fields are keyword arguments of a function or class."""

    def to_dict(self) -> dict[str, Any]:
        return copy.deepcopy(self.__dict__)

    def to_kwargs(self) -> dict[str, Any]:
        """Returns the fields that differ from the defaults of the class (ignoring environment
        variables)."""
        with _no_variables():
            defaults = type(self)().to_dict()
        return {key: value for key, value in self.to_dict().items() if defaults[key] != value}


@dataclass
class AutocastKwargs(KwargsHandler):
    """Arguments of `torch.autocast`."""

    enabled: bool = True
    cache_enabled: bool | None = None


@dataclass
class DistributedDataParallelKwargs(KwargsHandler):
    """Arguments of `torch.nn.parallel.DistributedDataParallel`, which determine how gradients are
    averaged and compressed.
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


class _DefaultBackend(str):
    """A string that marks a backend that the user has not set."""


class _DefaultTimeout(timedelta):
    """Like `_DefaultBackend`, but for a timeout."""

    def __repr__(self) -> str:
        return repr(timedelta(seconds=self.total_seconds()))


@dataclass
class InitProcessGroupKwargs(KwargsHandler):
    """Arguments of `torch.distributed.init_process_group`. A timeout of None becomes 10 minutes
    for NCCL and 30 minutes for other backends.
    """

    backend: str | None = _DefaultBackend("nccl")
    init_method: str | None = None
    timeout: timedelta | None = None

    def __post_init__(self) -> None:
        if self.timeout is None:
            self.timeout = _DefaultTimeout(minutes=10 if self.backend == "nccl" else 30)

    def _given(self) -> dict[str, Any]:
        """Returns the fields that the user has set, including those set to the default value."""
        return {
            name: value
            for name, value in vars(self).items()
            if value is not None and not isinstance(value, (_DefaultBackend, _DefaultTimeout))
        }


@dataclass
class EngineKwargs(KwargsHandler):
    """A custom engine that replaces DDP. It is implemented in C++ (`OwnEngine` in own_engine.h),
    and an extension module passes it in."""

    engine: Any = None


ProfilerActivity = Literal["cpu", "xpu", "mtia", "cuda", "hpu"]


@dataclass
class ProfileKwargs(KwargsHandler):
    """Arguments of `torch.profiler.profile`. Activities are names (`cpu`, `cuda`, ...), and the
    schedule contains the arguments of `torch.profiler.schedule`. Traces are written to
    `output_trace_dir`.
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
        """Returns the profiler that these fields describe."""
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
    """How `prepare` shards data loaders (docs/guide_python.md)."""

    # Whether a batch of the loader is split into one share per process.
    split_batches: bool = False
    # Whether process 0 reads and sends the other processes their shares. None means only for an
    # IterableDataset.
    dispatch_batches: bool | None = None
    # Whether the last batches are completed with samples from the start, so that all processes have
    # the same number of batches.
    even_batches: bool = True
    # Whether to shuffle with a generator that is reseeded in each epoch.
    use_seedable_sampler: bool = False
    # The seed for this generator. None means torch's current seed. All processes use process 0's
    # seed.
    data_seed: int | None = None
    # Whether copies to the device are asynchronous, which requires pinned memory.
    non_blocking: bool = False
    # Whether loaders can save their position, which requires torchdata 0.8 or newer.
    use_stateful_dataloader: bool = False


@dataclass
class ProjectConfiguration:
    """The folders in which a run stores its files. `logging_dir` defaults to `project_dir`."""

    project_dir: str | None = None
    logging_dir: str | None = None
    # Whether checkpoints are numbered folders. `iteration` is the next number, and the newest
    # `total_limit` folders are kept.
    automatic_checkpoint_naming: bool = False
    total_limit: int | None = None
    iteration: int = 0
    # Whether the first process of each machine writes, for file systems that are not shared.
    save_on_each_node: bool = False

    def set_directories(self, project_dir: str | None = None) -> None:
        self.project_dir = project_dir
        if self.logging_dir is None:
            self.logging_dir = project_dir

    def __post_init__(self) -> None:
        self.set_directories(self.project_dir)


@dataclass
class GradientAccumulationPlugin(KwargsHandler):
    """When gradients are synchronised and the optimizer steps."""

    num_steps: int | None = None
    # Whether the scheduler counts batches instead of optimizer steps.
    adjust_scheduler: bool = True
    # Whether the last batch of a loader always steps.
    sync_with_dataloader: bool = True
    # Whether to synchronise in every batch, which needs less memory but more communication.
    sync_each_batch: bool = False


@dataclass
class TorchDynamoPlugin(KwargsHandler):
    """Arguments of `torch.compile`. `prepare` compiles models unless the backend is NO. Defaults
    come from the environment variables ACCELERATE_DYNAMO_*."""

    backend: DynamoBackend | str | None = None
    mode: str | None = None
    fullgraph: bool | None = None
    dynamic: bool | None = None
    options: Any = None
    # Whether to turn compilation off, for tests.
    disable: bool = False
    # Whether to compile a repeated block only once for all blocks of its class.
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


def _class_names(value: Any) -> Any:
    are_texts = isinstance(value, (str, list, tuple, set)) and all(
        isinstance(name, str) for name in value
    )
    return value if are_texts else None


def _modules(value: Any) -> Any:
    return value if isinstance(value, str) or hasattr(value, "__iter__") else None


# Fields of the plugin with plain types. The other fields contain torch's objects, or their names.
_FSDP_KINDS = {
    "fsdp_version": whole_number(1, 2),
    "ignored_modules": Kind("modules, or a regular expression for their names", _modules),
    "transformer_cls_names_to_wrap": Kind("class names", _class_names),
    "min_num_params": whole_number(0),
    **dict.fromkeys(
        (
            "limit_all_gathers",
            "use_orig_params",
            "sync_module_states",
            "forward_prefetch",
            "activation_checkpointing",
            "activation_checkpointing_offload",
            "cpu_ram_efficient_loading",
        ),
        FLAG,
    ),
}


@dataclass
class FullyShardedDataParallelPlugin:
    """How `prepare` shards models. docs/guide_sharding.md describes each field. Names and defaults
    are those of the original. Defaults come from the environment variables FSDP_*."""

    fsdp_version: int | None = None
    sharding_strategy: Any = None
    reshard_after_forward: Any = None
    backward_prefetch: Any = None
    mixed_precision_policy: Any = None
    auto_wrap_policy: Any = None
    cpu_offload: Any = None
    ignored_modules: Any = None
    state_dict_type: Any = None
    state_dict_config: Any = None
    optim_state_dict_config: Any = None
    limit_all_gathers: bool = True
    use_orig_params: bool | None = None
    param_init_fn: Callable[[torch.nn.Module], None] | None = None
    sync_module_states: bool | None = None
    forward_prefetch: bool | None = None
    activation_checkpointing: bool | None = None
    activation_checkpointing_offload: bool | None = None
    cpu_ram_efficient_loading: bool | None = None
    transformer_cls_names_to_wrap: list[str] | str | None = None
    min_num_params: int | None = None

    def __post_init__(self) -> None:
        for name, kind in _FSDP_KINDS.items():
            if (value := getattr(self, name)) is not None:
                setattr(self, name, checked("FSDP", name, value, kind))
        if self.fsdp_version is None:
            self.fsdp_version = _fsdp_number("fsdp_version", "FSDP_VERSION", "1")
        self._read_strategy()
        if self.cpu_offload is None:
            self.cpu_offload = parse_flag_from_env("FSDP_OFFLOAD_PARAMS")
        self.set_cpu_offload()
        self.validate_cpu_offload()
        self._read_flags()
        self.set_state_dict_type()
        self._read_wrapping()
        if self.ignored_modules is None:
            self.ignored_modules = os.environ.get("FSDP_IGNORED_MODULES")
        if isinstance(self.mixed_precision_policy, str):
            self.set_mixed_precision(self.mixed_precision_policy, override=True)
        elif isinstance(self.mixed_precision_policy, dict):
            self.set_mixed_precision(self.mixed_precision_policy)
        if self.mixed_precision_policy is not None:
            self.validate_mixed_precision_policy()

    @property
    def _is_second(self) -> bool:
        return self.fsdp_version == 2

    def _read_strategy(self) -> None:
        """Determines what is sharded. Version 1 uses names for this, and version 2 uses a flag."""
        from torch.distributed.fsdp import ShardingStrategy

        if self._is_second:
            value = self.reshard_after_forward
            if value is None:
                value = os.environ.get("FSDP_RESHARD_AFTER_FORWARD", "true")
            if isinstance(value, str):
                with suppress(ValueError):
                    value = str_to_bool(value, to_bool=True)
            if not isinstance(value, bool):
                raise ValueError(
                    f"[FSDP] reshard_after_forward is set to {value}. FSDP2 does not support this. "
                    "Set it to a `bool`"
                )
            self.reshard_after_forward = value
            return
        if isinstance(self.reshard_after_forward, bool):
            raise ValueError(
                f"[FSDP] reshard_after_forward is set to {self.reshard_after_forward}. FSDP1 does "
                "not support this. Set it to a `str` or an instance of "
                "`torch.distributed.fsdp.fully_sharded_data_parallel.ShardingStrategy`"
            )
        if self.reshard_after_forward is not None:
            self.reshard_after_forward = _fsdp_choice(
                ShardingStrategy, self.reshard_after_forward, FSDP_SHARDING_STRATEGY
            )
        # `sharding_strategy` is the older name of `reshard_after_forward`.
        value = self.sharding_strategy
        if value is None:
            value = self.reshard_after_forward
        if value is None:
            value = os.environ.get("FSDP_SHARDING_STRATEGY", "FULL_SHARD")
        self.sharding_strategy = _fsdp_choice(ShardingStrategy, value, FSDP_SHARDING_STRATEGY)

    def _read_flags(self) -> None:
        from torch.distributed.fsdp import BackwardPrefetch

        prefetch = self.backward_prefetch
        if prefetch is None:
            prefetch = os.environ.get("FSDP_BACKWARD_PREFETCH")
        if self._is_second or str(prefetch).upper() in ("NO_PREFETCH", "NONE"):
            prefetch = None
        if prefetch is not None:
            prefetch = _fsdp_choice(BackwardPrefetch, prefetch, FSDP_BACKWARD_PREFETCH)
        self.backward_prefetch = prefetch
        if self._is_second and self.forward_prefetch is not None:
            raise ValueError(
                "[FSDP] forward_prefetch is not supported with FSDP2. Set it to None or use "
                "`fsdp_version=1`"
            )
        for name in ("use_orig_params", "sync_module_states", "forward_prefetch"):
            if self._is_second:
                setattr(self, name, None)
            elif getattr(self, name) is None:
                setattr(self, name, parse_flag_from_env(f"FSDP_{name.upper()}"))
        for name in ("activation_checkpointing", "activation_checkpointing_offload"):
            if getattr(self, name) is None:
                setattr(self, name, parse_flag_from_env(f"FSDP_{name.upper()}"))
        if self.activation_checkpointing_offload:
            if not self.activation_checkpointing:
                raise ValueError(
                    "[FSDP] `activation_checkpointing_offload=True` requires "
                    "`activation_checkpointing=True`."
                )
            if not self._is_second:
                raise ValueError(
                    "[FSDP] `activation_checkpointing_offload=True` requires `fsdp_version=2`."
                )
        variable = "FSDP_CPU_RAM_EFFICIENT_LOADING"
        if self.cpu_ram_efficient_loading is None:
            self.cpu_ram_efficient_loading = parse_flag_from_env(variable)
        else:
            # transformers reads this variable when it loads weights.
            os.environ[variable] = str(self.cpu_ram_efficient_loading)
        if self.cpu_ram_efficient_loading and not self._is_second:
            self.sync_module_states = True

    def _read_wrapping(self) -> None:
        policy = self.auto_wrap_policy
        if policy is None:
            policy = os.environ.get("FSDP_AUTO_WRAP_POLICY", "NO_WRAP")
        if isinstance(policy, str):
            if policy.upper() not in FSDP_AUTO_WRAP_POLICY:
                raise ValueError(
                    f"[FSDP] Invalid auto wrap policy: {policy}. Must be one of "
                    f"{FSDP_AUTO_WRAP_POLICY}"
                )
            policy = self._named_policy(policy.upper())
        elif not callable(policy):
            raise ConfigError(
                f"[FSDP] auto_wrap_policy is {described(policy)}. Expected a function, a policy "
                f"from torch.distributed.fsdp.wrap or one of {', '.join(FSDP_AUTO_WRAP_POLICY)}"
            )
        self.auto_wrap_policy = policy

    def _named_policy(self, name: str) -> Callable | None:
        from torch.distributed.fsdp import wrap

        if name == "TRANSFORMER_BASED_WRAP":
            names = self.transformer_cls_names_to_wrap
            if names is None:
                names = os.environ.get("FSDP_TRANSFORMER_CLS_TO_WRAP")
            self.transformer_cls_names_to_wrap = (
                names.split(",") if isinstance(names, str) else names
            )
            return wrap.transformer_auto_wrap_policy
        if name == "SIZE_BASED_WRAP":
            if self.min_num_params is None:
                self.min_num_params = _fsdp_number("min_num_params", "FSDP_MIN_NUM_PARAMS", "0")
            return wrap.size_based_auto_wrap_policy
        return None

    def set_state_dict_type(self, state_dict_type: Any = None) -> None:
        """Sets the format of saved state dicts, by name or by torch's enum member."""
        from torch.distributed import fsdp

        value = state_dict_type or self.state_dict_type
        if value is None:
            default = "SHARDED_STATE_DICT" if self._is_second else "FULL_STATE_DICT"
            value = os.environ.get("FSDP_STATE_DICT_TYPE", default)
        kind = fsdp.StateDictType
        self.state_dict_type = _fsdp_choice(kind, value, [member.name for member in kind])
        if self._is_second and self.state_dict_type == kind.LOCAL_STATE_DICT:
            raise ValueError(
                "[FSDP] FSDP2 does not support LOCAL_STATE_DICT. Please set "
                "`fsdp_state_dict_type` to `SHARDED_STATE_DICT` or `FULL_STATE_DICT`."
            )
        if self.state_dict_type == kind.FULL_STATE_DICT:
            self.state_dict_config = self.state_dict_config or fsdp.FullStateDictConfig(
                offload_to_cpu=True, rank0_only=True
            )
            self.optim_state_dict_config = (
                self.optim_state_dict_config
                or fsdp.FullOptimStateDictConfig(offload_to_cpu=True, rank0_only=True)
            )
        elif self.state_dict_type == kind.SHARDED_STATE_DICT:
            self.state_dict_config = self.state_dict_config or fsdp.ShardedStateDictConfig(
                offload_to_cpu=True
            )
            self.optim_state_dict_config = (
                self.optim_state_dict_config
                or fsdp.ShardedOptimStateDictConfig(offload_to_cpu=True)
            )

    def set_auto_wrap_policy(self, model: torch.nn.Module) -> None:
        """Builds the policy for this model. Class names are looked up in the model. The default
        classes are the model's `_no_split_modules`."""
        from torch.distributed.fsdp import wrap

        if self.auto_wrap_policy == wrap.transformer_auto_wrap_policy:
            if self.transformer_cls_names_to_wrap is None:
                self.transformer_cls_names_to_wrap = list(
                    getattr(model, "_no_split_modules", None) or ()
                )
            kinds = set()
            for name in self.transformer_cls_names_to_wrap:
                kind = get_module_class_from_name(model, name)
                if kind is None:
                    raise ValueError(
                        f"[FSDP] Could not find the transformer layer class {name} in the model."
                    )
                kinds.add(kind)
            self.auto_wrap_policy = functools.partial(
                self.auto_wrap_policy, transformer_layer_cls=kinds
            )
        elif self.auto_wrap_policy == wrap.size_based_auto_wrap_policy:
            self.auto_wrap_policy = (
                functools.partial(self.auto_wrap_policy, min_num_params=self.min_num_params)
                if self.min_num_params
                else None
            )

    def _policy_type(self) -> type:
        from torch.distributed import fsdp

        return fsdp.MixedPrecisionPolicy if self._is_second else fsdp.MixedPrecision

    def set_mixed_precision(
        self, mixed_precision: Any, buffer_autocast: bool = False, override: bool = False
    ) -> None:
        """Converts the name of a precision, or a policy given as a dictionary, to torch's policy. A
        name does not replace an existing policy."""
        import torch

        known = {
            "fp8": torch.bfloat16,
            "fp16": torch.float16,
            "bf16": torch.bfloat16,
            "fp32": torch.float32,
        }
        last = "output_dtype" if self._is_second else "buffer_dtype"
        if override or self.mixed_precision_policy is None:
            dtype = (
                known.get(mixed_precision) if isinstance(mixed_precision, str) else mixed_precision
            )
            if dtype not in known.values():
                raise ValueError(
                    f"[FSDP] Invalid mixed precision: {mixed_precision}. Must be one of "
                    f"{list(known)}"
                )
            is_kept = buffer_autocast and not self._is_second
            given = {"param_dtype": dtype, "reduce_dtype": dtype}
            given[last] = torch.float32 if is_kept else dtype
        elif isinstance(self.mixed_precision_policy, dict):
            given = self.mixed_precision_policy
            keys = ["param_dtype", "reduce_dtype", last]
            if not given.keys() >= set(keys) or not set(given.values()) <= set(known.values()):
                raise ValueError(
                    f"[FSDP] Invalid mixed precision policy: {given}. Must be a `dict` with keys "
                    f"{keys}. Values must be one of {list(known.values())}"
                )
        else:
            return
        self.mixed_precision_policy = self._policy_type()(**given)

    def validate_mixed_precision_policy(self) -> None:
        if not isinstance(self.mixed_precision_policy, self._policy_type()):
            raise ValueError(
                "[FSDP] mixed_precision_policy must be an instance of "
                f"`torch.distributed.fsdp.{self._policy_type().__name__}`."
            )

    def set_cpu_offload(self) -> None:
        from torch.distributed import fsdp

        if isinstance(self.cpu_offload, bool):
            if self._is_second:
                kind = fsdp.CPUOffloadPolicy if self.cpu_offload else fsdp.OffloadPolicy
                self.cpu_offload = kind()
            else:
                self.cpu_offload = fsdp.CPUOffload(offload_params=self.cpu_offload)

    def validate_cpu_offload(self) -> None:
        from torch.distributed import fsdp

        kind = fsdp.OffloadPolicy if self._is_second else fsdp.CPUOffload
        if not isinstance(self.cpu_offload, kind):
            raise ValueError(
                f"[FSDP] `cpu_offload` must be an instance of `torch.distributed.fsdp."
                f"{kind.__name__}` in FSDP{self.fsdp_version}, got {self.cpu_offload}"
            )


def _fsdp_number(name: str, variable: str, default: str) -> int:
    text = os.environ.get(variable, default)
    return checked("FSDP", variable, number_of(text), _FSDP_KINDS[name])


def _fsdp_choice(kind: Any, value: Any, names: list[str]) -> Any:
    """Returns the member of torch's enumeration, given by its index in `names`, its number or its
    name."""
    if isinstance(value, kind):
        return value
    text = str(value).upper()
    try:
        if text in names:
            return kind(names.index(text) + 1)
        return kind(int(text)) if text.isdigit() else kind[text]
    except (KeyError, ValueError):
        raise ValueError(
            f"[FSDP] Unknown {kind.__name__} {value}. Expected one of: {names}"
        ) from None


# Fields of the plugin that DeepSpeed's configuration also has, with their names in it.
_DEEPSPEED_KEYS = {
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "gradient_clipping": "gradient_clipping",
    "zero_stage": "zero_optimization.stage",
    "offload_optimizer_device": "zero_optimization.offload_optimizer.device",
    "offload_param_device": "zero_optimization.offload_param.device",
    "offload_param_nvme_path": "zero_optimization.offload_param.nvme_path",
    "offload_optimizer_nvme_path": "zero_optimization.offload_optimizer.nvme_path",
    "zero3_save_16bit_model": "zero_optimization.stage3_gather_16bit_weights_on_model_save",
}


@dataclass
class DeepSpeedPlugin:
    """How `prepare` shards models, in DeepSpeed's terms. docs/guide_sharding.md describes each
    field. `hf_ds_config` is a DeepSpeed configuration, given as a dictionary or the path of a JSON
    file. Its values override the fields, and its "auto" values are filled in. Names and defaults
    are those of the original. Defaults come from the environment variables
    ACCELERATE_DEEPSPEED_*."""

    hf_ds_config: Any = None
    gradient_accumulation_steps: int | str | None = None
    gradient_clipping: float | str | None = None
    zero_stage: int | None = None
    is_train_batch_min: bool = True
    offload_optimizer_device: str | None = None
    offload_param_device: str | None = None
    offload_optimizer_nvme_path: str | None = None
    offload_param_nvme_path: str | None = None
    zero3_init_flag: bool | None = None
    zero3_save_16bit_model: bool | None = None
    transformer_moe_cls_names: str | None = None
    enable_msamp: bool | None = None
    msamp_opt_level: Literal["O1", "O2"] | None = None

    def __post_init__(self) -> None:
        self._read_variables()
        self._check_types()
        if self.hf_ds_config in (None, "none"):
            self.hf_ds_config = HfDeepSpeedConfig(self._config_of_fields())
        else:
            if not isinstance(self.hf_ds_config, HfDeepSpeedConfig):
                self.hf_ds_config = HfDeepSpeedConfig(self.hf_ds_config)
            self._join_config()
        self.deepspeed_config = self.hf_ds_config.config
        if self.zero3_init_flag is None:
            self.zero3_init_flag = parse_flag_from_env(
                "ACCELERATE_DEEPSPEED_ZERO3_INIT", self.hf_ds_config.is_zero3()
            )
        if self.zero3_init_flag and not self.hf_ds_config.is_zero3():
            warnings.warn(
                "[DeepSpeed] zero3_init_flag is only applicable for ZeRO Stage 3. Setting it to "
                "False.",
                stacklevel=3,
            )
            self.zero3_init_flag = False
        self._selected = False

    def _read_variables(self) -> None:
        def read(name: str, variable: str, default: Any, convert: Callable = str) -> None:
            if getattr(self, name) is None:
                setattr(self, name, convert(os.environ.get(f"ACCELERATE_{variable}", default)))

        read("gradient_accumulation_steps", "GRADIENT_ACCUMULATION_STEPS", "auto", number_of)
        read("gradient_clipping", "GRADIENT_CLIPPING", "auto", number_of)
        read("zero_stage", "DEEPSPEED_ZERO_STAGE", 2, number_of)
        for what in ("optimizer", "param"):
            for option in ("device", "nvme_path"):
                name = f"offload_{what}_{option}"
                read(name, f"DEEPSPEED_{name.upper()}", "none")
        read(
            "zero3_save_16bit_model",
            "DEEPSPEED_ZERO3_SAVE_16BIT_MODEL",
            "false",
            lambda text: text.lower() == "true",
        )
        read("enable_msamp", "FP8_BACKEND", "", lambda text: text == "MSAMP")
        read("msamp_opt_level", "FP8_OPT_LEVEL", "O1")
        read("hf_ds_config", "DEEPSPEED_CONFIG_FILE", "none")
        if self.transformer_moe_cls_names is None:
            self.transformer_moe_cls_names = os.environ.get(
                "ACCELERATE_DEEPSPEED_MOE_LAYER_CLS_NAMES"
            )

    def _check_types(self) -> None:
        for name, key in _DEEPSPEED_KEYS.items():
            value, kind = getattr(self, name), kind_of_value(key)
            if kind is not None and value not in (None, "auto"):
                remedy = "Correct the plugin field, or the environment variable that sets it"
                setattr(self, name, checked("DeepSpeed", name, value, kind, remedy))

    def _config_of_fields(self) -> dict[str, Any]:
        zero: dict[str, Any] = {"stage": self.zero_stage}
        for what in ("optimizer", "param"):
            device = getattr(self, f"offload_{what}_device")
            path = getattr(self, f"offload_{what}_nvme_path")
            zero[f"offload_{what}"] = {
                "device": device,
                "nvme_path": path if device == "nvme" else None,
            }
        zero["stage3_gather_16bit_weights_on_model_save"] = self.zero3_save_16bit_model
        config = {
            "train_batch_size": "auto",
            "train_micro_batch_size_per_gpu": "auto",
            "gradient_accumulation_steps": self.gradient_accumulation_steps,
            "zero_optimization": zero,
        }
        if self.gradient_clipping:
            config["gradient_clipping"] = self.gradient_clipping
        return config

    def _join_config(self) -> None:
        """Fills in the "auto" values of the configuration from the fields, and the fields from all
        other values of the configuration."""
        config = self.hf_ds_config
        config.config.setdefault("gradient_accumulation_steps", 1)
        if "zero_optimization" not in config.config:
            raise ValueError(
                "[DeepSpeed] The configuration has no zero_optimization. Please specify the ZeRO "
                "optimization config in the DeepSpeed config."
            )
        self._check_fields()
        values = {key: getattr(self, name) for name, key in _DEEPSPEED_KEYS.items()}
        for key in values:
            self.fill_match(key, must_match=False, **values)
        config.set_stage_and_offload()
        for name, key in _DEEPSPEED_KEYS.items():
            if config.get_value(key) not in (None, "auto"):
                setattr(self, name, config.get_value(key))

    @staticmethod
    def _check_fields() -> None:
        given = os.environ.get("ACCELERATE_CONFIG_DS_FIELDS", "").split(",")
        ignored = [name for name in given if name in {*_DEEPSPEED_KEYS, "mixed_precision"}]
        if ignored:
            raise ValueError(
                f"[DeepSpeed] {', '.join(ignored)} cannot be set together with "
                "deepspeed_config_file. When using `deepspeed_config_file`, the following "
                "accelerate config variables will be ignored: "
                f"{[*_DEEPSPEED_KEYS, 'mixed_precision']}. Write them into the DeepSpeed config file"
            )

    def fill_match(
        self,
        ds_key_long: str,
        mismatches: list[str] | None = None,
        must_match: bool = True,
        **kwargs: Any,
    ) -> None:
        """Replaces the value "auto" with `kwargs[ds_key_long]`. If the key has a different value
        and `must_match` is set, adds a line to `mismatches`."""
        node, key = self.hf_ds_config.find_config_node(ds_key_long)
        if node is None:
            return
        if node.get(key) == "auto":
            if ds_key_long not in kwargs:
                raise ValueError(
                    f"[DeepSpeed] `{ds_key_long}` was not found in kwargs. Set `{ds_key_long}` to "
                    "the correct value instead of `auto` in the DeepSpeed config file, or pass it in "
                    "kwargs."
                )
            node[key] = kwargs[ds_key_long]
        elif must_match and node.get(key) is not None and mismatches is not None:
            if ds_key_long in kwargs and node[key] != kwargs[ds_key_long]:
                mismatches.append(
                    f"- ds {ds_key_long}={node[key]} vs arg {ds_key_long}={kwargs[ds_key_long]}"
                )

    def is_auto(self, ds_key_long: str) -> bool:
        return self.hf_ds_config.get_value(ds_key_long) == "auto"

    def get_value(self, ds_key_long: str, default: Any = None) -> Any:
        return self.hf_ds_config.get_value(ds_key_long, default)

    def deepspeed_config_process(
        self,
        prefix: str = "",
        mismatches: list[str] | None = None,
        config: dict[str, Any] | None = None,
        must_match: bool = True,
        **kwargs: Any,
    ) -> None:
        """Calls `fill_match` for all values of the configuration. Raises an error if any values do
        not match."""
        mismatches = [] if mismatches is None else mismatches
        for key, value in (self.deepspeed_config if config is None else config).items():
            if isinstance(value, dict):
                self.deepspeed_config_process(
                    f"{prefix}{key}.", mismatches, value, must_match, **kwargs
                )
            else:
                self.fill_match(prefix + key, mismatches, must_match, **kwargs)
        if mismatches and not prefix:
            lines = "\n".join(mismatches)
            raise ValueError(
                "Please correct the following DeepSpeed config values. They do not match kwargs:"
                f"\n{lines}\nThe easiest method is to set these DeepSpeed config values to 'auto'."
            )

    def set_mixed_precision(self, mixed_precision: str) -> None:
        """Sets this precision in the configuration unless the configuration has one."""
        config = self.deepspeed_config
        other = {"fp16": "bf16", "bf16": "fp16"}.get(mixed_precision)
        if other is not None:
            config.setdefault(mixed_precision, {"enabled": True})
            if str(config.get(other, {}).get("enabled")).lower() == "true":
                raise ValueError(
                    f"[DeepSpeed] `--mixed_precision` arg cannot be set to `{mixed_precision}` when "
                    f"`{other}` is set in the DeepSpeed config file."
                )
        for name in ("fp16", "bf16"):
            config.setdefault(name, {"enabled": False})
            key = f"{name}.enabled"
            self.fill_match(key, must_match=False, **{key: mixed_precision == name})

    @property
    def _mixed_precision(self) -> str:
        for name in ("fp16", "bf16"):
            if self.deepspeed_config.get(name, {}).get("enabled"):
                return name
        return "no"

    def set_deepspeed_weakref(self) -> None:
        """Does nothing, because models are created completely before `prepare` shards them."""

    def is_zero3_init_enabled(self) -> bool:
        return bool(self.zero3_init_flag)

    @contextmanager
    def zero3_init_context_manager(self, enable: bool = False) -> Iterator[None]:
        before, self.zero3_init_flag = self.zero3_init_flag, enable
        try:
            yield
        finally:
            self.zero3_init_flag = before

    def set_moe_leaf_modules(self, model: torch.nn.Module) -> None:
        """Does nothing, because parameters are gathered when an operator reads them, not per
        module."""

    def select(self, _from_accelerator_state: bool = False) -> None:
        if not _from_accelerator_state:
            raise ValueError(
                "[DeepSpeed] A `DeepSpeedPlugin` object must be enabled manually by calling "
                "`AcceleratorState().select_deepspeed_plugin(plugin_key)`."
            )
        self._selected = True

    def _unselect(self) -> None:
        self._selected = False

    @property
    def selected(self) -> bool:
        return self._selected

    @selected.setter
    def selected(self, value: bool) -> None:
        raise NotImplementedError(
            "[DeepSpeed] 'selected' can only be set by calling "
            "'AcceleratorState().select_deepspeed_plugin(key)'."
        )


# --- options for unsupported features -----------------------------------------------------------
# Objects of these classes can be created, read and stored. Features that would use them raise an
# error.

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
                parse_flag_from_env(f"ACCELERATE_FP8_OVERRIDE_{product}")
                for product in ("FPROP", "DGRAD", "WGRAD")
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
    """An older class for the options of the two classes above."""

    backend: Backend | None = None

    def __post_init__(self) -> None:
        warnings.warn(
            "FP8RecipeKwargs is deprecated. Use TERecipeKwargs or MSAMPRecipeKwargs",
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
    """How layers are sharded over devices."""

    enable_async_tp: bool = False


@dataclass
class TorchContextParallelConfig:
    """How sequences are split over devices."""

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
    """How DeepSpeed splits sequences over devices."""

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
                    "When `sp_seq_length_is_variable` is `False`, `sp_seq_length` must be provided "
                    f"either through the constructor or the environment variable {prefix}SEQ_LENGTH"
                )
            self.sp_seq_length = None if text == "None" else int(text)
        if self.sp_attn_implementation is None:
            self.sp_attn_implementation = os.environ.get(f"{prefix}ATTN_IMPLEMENTATION")


def get_module_class_from_name(module: torch.nn.Module, name: str) -> type | None:
    """Returns the class with this name among the classes of the module and its submodules."""
    return next((type(child) for child in module.modules() if type(child).__name__ == name), None)


__getattr__ = placeholders_for(__name__)
