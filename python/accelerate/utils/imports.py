# SPDX-License-Identifier: Apache-2.0
"""Checks what is available on this machine and in this environment: packages, devices and number
formats.

A package is available if it can be imported and its distribution is installed. A folder with the
same name in the working directory is not enough.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import importlib.util
import os
from types import ModuleType

import torch

from accelerate._placeholders import placeholders_for
from accelerate.utils.environment import parse_flag_from_env, patch_environment, str_to_bool
from accelerate.utils.versions import compare_versions, is_torch_version

USE_TORCH_XLA = parse_flag_from_env("USE_TORCH_XLA", default=True)


def _can_import(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the parent package of a dotted name does not exist
        return False


def _is_installed(module: str, *distributions: str) -> bool:
    """Whether the module exists and belongs to one of these distributions. The default is the
    distribution with the module's own name."""
    return _can_import(module) and any(map(_version, distributions or (module,)))


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _is_installed_at(module: str, operation: str, version: str) -> bool:
    return _is_installed(module) and compare_versions(module, operation, version)


def _has_device(extension: str, backend: str, check_device: bool) -> bool:
    """Whether a torch extension is installed and its `torch.<backend>` has a device. With
    `check_device`, first queries the driver. If the query fails, there are no devices."""
    if not _can_import(extension):
        return False
    try:
        importlib.import_module(extension)
        module: ModuleType = getattr(torch, backend)
        if check_device:
            module.device_count()
        return bool(module.is_available())
    except (ImportError, AttributeError, RuntimeError):
        return False


# --- devices ----------------------------------------------------------------------------------


def is_cuda_available() -> bool:
    """Whether there is a CUDA device. Uses NVML, so that CUDA is not initialised."""
    with patch_environment(PYTORCH_NVML_BASED_CUDA_CHECK="1"):
        return torch.cuda.is_available()


def is_rocm_available() -> bool:
    return torch.version.hip is not None and torch.cuda.is_available()


def is_mps_available(min_version: str = "1.12") -> bool:
    mps = torch.backends.mps
    return is_torch_version(">=", min_version) and mps.is_available() and mps.is_built()


@functools.cache
def is_xpu_available(check_device: bool = False) -> bool:
    return _has_device("torch", "xpu", check_device)


@functools.cache
def is_mlu_available(check_device: bool = False) -> bool:
    with patch_environment(PYTORCH_CNDEV_BASED_MLU_CHECK="1"):
        return _has_device("torch_mlu", "mlu", check_device)


@functools.cache
def is_musa_available(check_device: bool = False) -> bool:
    return _has_device("torch_musa", "musa", check_device)


@functools.cache
def is_npu_available(check_device: bool = False) -> bool:
    return _has_device("torch_npu", "npu", check_device)


@functools.cache
def is_sdaa_available(check_device: bool = False) -> bool:
    return _has_device("torch_sdaa", "sdaa", check_device)


@functools.cache
def is_neuron_available(check_device: bool = False) -> bool:
    return _has_device("torch_neuronx", "neuron", check_device)


@functools.cache
def is_hpu_available(init_hccl: bool = False) -> bool:
    """Whether there is an HPU. `init_hccl` also loads the `torch.distributed` backend for HPUs."""
    available = _has_device("habana_frameworks.torch", "hpu", check_device=False)
    if available and init_hccl:
        importlib.import_module("habana_frameworks.torch.distributed.hccl")
    return available


def is_habana_gaudi1() -> bool:
    if not is_hpu_available():
        return False
    devices = importlib.import_module("habana_frameworks.torch.utils.experimental")
    return devices._get_device_type() == devices.synDeviceType.synDeviceGaudi


@functools.cache
def is_torch_xla_available(check_is_tpu: bool = False, check_is_gpu: bool = False) -> bool:
    """Whether torch_xla is available (USE_TORCH_XLA=0 hides it), and has a TPU or GPU if
    requested."""
    if check_is_tpu and check_is_gpu:
        raise AssertionError(
            "[is_torch_xla_available] check_is_tpu and check_is_gpu are both True. Pass only one"
        )
    if not USE_TORCH_XLA or not _can_import("torch_xla"):
        return False
    if check_is_tpu or check_is_gpu:
        device = importlib.import_module("torch_xla.runtime").device_type()
        return device == "TPU" if check_is_tpu else device in ("GPU", "CUDA")
    return True


# --- torch ------------------------------------------------------------------------------------


def is_torch_distributed_available() -> bool:
    return torch.distributed.is_available()


def is_xccl_available() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_xccl_available()


def is_pippy_available() -> bool:
    return is_torch_version(">=", "2.4.0")


def is_weights_only_available() -> bool:
    return is_torch_version(">=", "2.4.0")


# --- number formats ---------------------------------------------------------------------------


def is_bf16_available(ignore_tpu: bool = False) -> bool:
    if is_torch_xla_available(check_is_tpu=True):
        return not ignore_tpu
    if is_cuda_available():
        return torch.cuda.is_bf16_supported()
    if is_mlu_available():
        return torch.mlu.is_bf16_supported()
    if is_xpu_available():
        return torch.xpu.is_bf16_supported()
    if is_mps_available():
        return torch.backends.mps.is_macos_or_newer(14, 0)
    return True


def is_fp16_available() -> bool:
    return not is_habana_gaudi1()


def is_fp8_available() -> bool:
    return is_msamp_available() or is_transformer_engine_available() or is_torchao_available()


# --- packages ---------------------------------------------------------------------------------


def is_4bit_bnb_available() -> bool:
    return _is_installed_at("bitsandbytes", ">=", "0.39.0")


def is_8bit_bnb_available() -> bool:
    return _is_installed_at("bitsandbytes", ">=", "0.37.2")


def is_aim_available() -> bool:
    return _is_installed_at("aim", "<", "4.0.0")


def is_amdsmi_available() -> bool:
    return _is_installed("amdsmi")


def is_bitsandbytes_multi_backend_available() -> bool:
    if not is_bnb_available():
        return False
    features = getattr(importlib.import_module("bitsandbytes"), "features", ())
    return "multi_backend" in features


def is_bnb_available(min_version: str | None = None) -> bool:
    if min_version is None:
        return _is_installed("bitsandbytes")
    return _is_installed_at("bitsandbytes", ">=", min_version)


def is_boto3_available() -> bool:
    return _is_installed("boto3")


def is_clearml_available() -> bool:
    return _is_installed("clearml")


def is_comet_ml_available() -> bool:
    return _is_installed("comet_ml")


def is_datasets_available() -> bool:
    return _is_installed("datasets")


def is_deepspeed_available() -> bool:
    return _is_installed("deepspeed")


def is_dvclive_available() -> bool:
    return _is_installed("dvclive")


def is_import_timer_available() -> bool:
    return _is_installed("import_timer")


def is_lomo_available() -> bool:
    return _is_installed("lomo_optim")


def is_matplotlib_available() -> bool:
    return _is_installed("matplotlib")


def is_megatron_lm_available() -> bool:
    """Whether Megatron-LM is installed and ACCELERATE_USE_MEGATRON_LM enables it."""
    if not str_to_bool(os.environ.get("ACCELERATE_USE_MEGATRON_LM", "False")):
        return False
    return (
        _is_installed("megatron", "megatron-core")
        and compare_versions("megatron-core", ">=", "0.8.0")
        and _can_import("megatron.training")
    )


def is_mlflow_available() -> bool:
    return _is_installed("mlflow", "mlflow", "mlflow-skinny")


def is_msamp_available() -> bool:
    return _is_installed("msamp", "ms-amp")


def is_numpy_available(min_version: str = "1.25.0") -> bool:
    return _is_installed_at("numpy", ">=", min_version)


def is_pandas_available() -> bool:
    return _is_installed("pandas")


def is_peft_available() -> bool:
    return _is_installed("peft")


def is_pynvml_available() -> bool:
    return _is_installed("pynvml", "pynvml", "nvidia-ml-py")


def is_pytest_available() -> bool:
    return _is_installed("pytest")


def is_rich_available() -> bool:
    """Whether rich is installed and ACCELERATE_ENABLE_RICH enables it."""
    return _is_installed("rich") and parse_flag_from_env("ACCELERATE_ENABLE_RICH", False)


def is_sagemaker_available() -> bool:
    return _is_installed("sagemaker")


def is_schedulefree_available() -> bool:
    return _is_installed("schedulefree")


def is_swanlab_available() -> bool:
    return _is_installed("swanlab")


def is_tensorboard_available() -> bool:
    return _is_installed("tensorboard") or _is_installed("tensorboardX")


def is_timm_available() -> bool:
    return _is_installed("timm")


def is_torchao_available() -> bool:
    return _is_installed_at("torchao", ">=", "0.6.1")


def is_torchdata_available() -> bool:
    return _is_installed("torchdata")


def is_torchdata_stateful_dataloader_available() -> bool:
    return _is_installed_at("torchdata", ">=", "0.8.0")


def is_torchvision_available() -> bool:
    return _is_installed("torchvision")


def is_tqdm_available() -> bool:
    return _is_installed("tqdm")


def is_trackio_available() -> bool:
    return _is_installed("trackio")


def is_transformer_engine_available() -> bool:
    if is_hpu_available():
        return _is_installed("intel_transformer_engine", "intel-transformer-engine")
    return _is_installed("transformer_engine", "transformer-engine")


def is_transformer_engine_mxfp8_available() -> bool:
    if not _is_installed("transformer_engine", "transformer-engine"):
        return False
    formats = importlib.import_module("transformer_engine.pytorch.fp8")
    return formats.check_mxfp8_support()[0]


def is_transformers_available() -> bool:
    return _is_installed("transformers")


def is_triton_available() -> bool:
    return _is_installed("triton", "triton-xpu" if is_xpu_available() else "triton")


def is_wandb_available() -> bool:
    return _is_installed("wandb")


__getattr__ = placeholders_for(__name__)
