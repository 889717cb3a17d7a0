# SPDX-License-Identifier: Apache-2.0
"""Sizes of models, device maps, and loading models tensor by tensor."""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from accelerate._offload.device_maps import calculate_maximum_sizes as calculate_maximum_sizes
from accelerate._offload.device_maps import check_device_map as check_device_map
from accelerate._offload.device_maps import (
    check_tied_parameters_in_config as check_tied_parameters_in_config,
)
from accelerate._offload.device_maps import (
    check_tied_parameters_on_same_device as check_tied_parameters_on_same_device,
)
from accelerate._offload.device_maps import clean_device_map as clean_device_map
from accelerate._offload.device_maps import compute_module_sizes as compute_module_sizes
from accelerate._offload.device_maps import (
    compute_module_total_buffer_size as compute_module_total_buffer_size,
)
from accelerate._offload.device_maps import convert_file_size_to_int as convert_file_size_to_int
from accelerate._offload.device_maps import dtype_byte_size as dtype_byte_size
from accelerate._offload.device_maps import fallback_allocate as fallback_allocate
from accelerate._offload.device_maps import get_balanced_memory as get_balanced_memory
from accelerate._offload.device_maps import get_max_layer_size as get_max_layer_size
from accelerate._offload.device_maps import get_max_memory as get_max_memory
from accelerate._offload.device_maps import get_module_leaves as get_module_leaves
from accelerate._offload.device_maps import get_module_size_with_ties as get_module_size_with_ties
from accelerate._offload.device_maps import infer_auto_device_map as infer_auto_device_map
from accelerate._offload.loading import align_module_device as align_module_device
from accelerate._offload.loading import get_state_dict_from_offload as get_state_dict_from_offload
from accelerate._offload.loading import (
    get_state_dict_offloaded_model as get_state_dict_offloaded_model,
)
from accelerate._offload.loading import has_offloaded_params as has_offloaded_params
from accelerate._offload.loading import load_checkpoint_in_model as load_checkpoint_in_model
from accelerate._offload.loading import load_offloaded_weights as load_offloaded_weights
from accelerate._offload.loading import load_state_dict as load_state_dict
from accelerate._offload.module_tensors import check_device_same as check_device_same
from accelerate._offload.module_tensors import find_tied_parameters as find_tied_parameters
from accelerate._offload.module_tensors import (
    get_non_persistent_buffers as get_non_persistent_buffers,
)
from accelerate._offload.module_tensors import named_module_tensors as named_module_tensors
from accelerate._offload.module_tensors import retie_parameters as retie_parameters
from accelerate._offload.module_tensors import (
    set_module_tensor_to_device as set_module_tensor_to_device,
)
from accelerate._placeholders import placeholders_for
from accelerate.state import AcceleratorState
from accelerate.utils.constants import WEIGHTS_INDEX_NAME as WEIGHTS_INDEX_NAME
from accelerate.utils.dataclasses import AutocastKwargs, DistributedType
from accelerate.utils.imports import is_peft_available
from accelerate.utils.other import extract_model_from_parallel

logger = logging.getLogger(__name__)


def is_peft_model(model: Any) -> bool:
    """Whether the module, or the module inside it, is a model of PEFT."""
    if not is_peft_available():
        return False
    from peft import PeftModel

    return isinstance(extract_model_from_parallel(model), PeftModel)


def id_tensor_storage(tensor: torch.Tensor) -> tuple[torch.device, int, int]:
    """Identifies a tensor's memory. The results are equal if and only if two tensors share
    memory."""
    storage = tensor.untyped_storage()
    return tensor.device, storage.data_ptr(), storage.nbytes()


def get_mixed_precision_context_manager(
    native_amp: bool = False, autocast_kwargs: AutocastKwargs | None = None
) -> AbstractContextManager[Any]:
    """Returns torch's autocast in the precision of the run. It has no effect if `native_amp` is
    False."""
    if not native_amp:
        return nullcontext()
    state = AcceleratorState()
    options = {} if autocast_kwargs is None else autocast_kwargs.to_kwargs()
    dtypes = {"fp16": torch.float16, "bf16": torch.bfloat16}
    return torch.autocast(state.device.type, dtypes.get(state.mixed_precision), **options)


def get_grad_scaler(distributed_type: DistributedType | None = None, **kwargs: Any) -> Any:
    """Returns torch's gradient scaler, for losses that no `Accelerator` scales."""
    device = torch.accelerator.current_accelerator(check_available=True)
    return torch.amp.GradScaler("cuda" if device is None else device.type, **kwargs)


__getattr__ = placeholders_for(__name__)
