# SPDX-License-Identifier: Apache-2.0
import json
import os

os.environ["ACCELERATE_USE_CPU"] = "true"
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState

answers = []
a = Accelerator()
for name in (
    "deepspeed_plugin parallelism_config torch_device_mesh is_fsdp2 scaler step "
    "is_composable_parallelism_enabled should_save_model fp8_backend native_amp "
    "has_lomo_optimizer fp8_enabled has_fp8_handler delayed_fp8_autocast log_with "
    "flag_tensor profile_handler fp8_recipe_handler ao_recipe_handler te_recipe_handler "
    "msamp_recipe_handler autocast_handler ddp_handler"
).split():
    answers.append((name, getattr(a, name)))
state = AcceleratorState()
for name in (
    "deepspeed_plugin deepspeed_plugins torch_tp_plugin is_fsdp2 device_mesh parallelism_config"
).split():
    answers.append((name, getattr(state, name)))
answers.append(getattr(state, "fsdp_plugin", None))
for name in "tensor_parallel_rank data_parallel_rank data_parallel_shard_rank".split():
    try:
        getattr(a, name)
    except RuntimeError as error:
        answers.append(str(error))
net = torch.nn.Linear(1, 1)
answers.append(a.verify_device_map(net))
net.hf_device_map = {"a": 0, "b": 1}
answers.append(a.verify_device_map(net))
with a.maybe_context_parallel(buffers=[], buffer_seq_dims=[]):
    answers.append(a.deepspeed_ulysses_dl_adapter("loader", None))
print(json.dumps(answers, default=str))
