# SPDX-License-Identifier: Apache-2.0
import json
import os

import torch
from accelerate import init_empty_weights
from accelerate.utils import (
    CustomDtype,
    check_device_map,
    compute_module_sizes,
    constants,
    convert_bytes,
    convert_file_size_to_int,
    dtype_byte_size,
    get_max_memory,
    get_module_children_bottom_up,
    is_peft_model,
    merge_dicts,
    modeling,
    other,
    recursive_getattr,
    set_module_tensor_to_device,
)
from accelerate.utils.deepspeed import HfDeepSpeedConfig
from accelerate.utils.environment import convert_dict_to_env_variables, purge_accelerate_environment

answers = []
for name in sorted(vars(constants)):
    if name.isupper() and name != "STR_OPERATION_TO_FUNC":
        answers.append((name, str(getattr(constants, name))))
answers += [
    merge_dicts({"a": {"b": 1}, "c": 2}, {"a": {"d": 3}, "c": 4}),
    convert_bytes(5),
    convert_bytes(5e6),
    convert_bytes(1e20),
    other.get_pretty_name(len),
    other.get_pretty_name(torch.nn.Linear(1, 1)),
    recursive_getattr(torch.nn.Sequential(torch.nn.Linear(1, 2)), "0.out_features"),
    convert_dict_to_env_variables({"A": "1", "B": "x y"}),
]


@purge_accelerate_environment
def sets():
    os.environ["ACCELERATE_MIXED_PRECISION"] = "fp16"


sets()
answers.append("ACCELERATE_MIXED_PRECISION" in os.environ)
config = HfDeepSpeedConfig(
    {
        "zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}},
        "fp16": {"enabled": "auto"},
    }
)
answers += [
    config.is_zero3(),
    config.is_zero2(),
    config.is_offload(),
    config.is_true("fp16.enabled"),
    config.is_false("fp16.enabled"),
    config.get_value("x.y", 7),
    config.find_config_node("zero_optimization.stage"),
]
config.del_config_sub_tree("zero_optimization.offload_param")
answers.append(config.config)

with init_empty_weights():
    net = torch.nn.Sequential(
        torch.nn.Linear(3, 4),
        torch.nn.BatchNorm1d(4),
        torch.nn.ModuleList([torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)]),
    )
net.register_buffer("kept", torch.ones(2))
net.register_buffer("passing", torch.ones(2), persistent=False)
answers.append(
    [
        (n, str(t.device), t.requires_grad)
        for n, t in modeling.named_module_tensors(net, recurse=True, remove_non_persistent=True)
    ]
)
answers.append(sorted(modeling.get_non_persistent_buffers(net)))
with init_empty_weights(include_buffers=True):
    answers.append(str(torch.nn.BatchNorm1d(4).running_mean.device))
answers.append(str(torch.nn.Linear(1, 1).weight.device))
for dtype in (None, "float16", torch.float64):
    answers.append(dict(compute_module_sizes(net, dtype=dtype)))
answers.append(dict(compute_module_sizes(net, special_dtypes={"0.weight": CustomDtype.INT4})))
answers.append(modeling.compute_module_total_buffer_size(net))
answers.append(
    modeling.get_max_layer_size(list(net.named_children()), compute_module_sizes(net), [])
)
answers.append(
    modeling.get_max_layer_size(
        list(net.named_children()), compute_module_sizes(net), ["ModuleList"]
    )
)
set_module_tensor_to_device(net, "0.weight", "cpu", value=torch.ones(4, 3, dtype=torch.bfloat16))
set_module_tensor_to_device(net, "0.bias", "cpu", value=torch.ones(4), dtype=torch.float16)
set_module_tensor_to_device(net, "kept", "meta")
answers.append(
    [
        (n, str(t.device), str(t.dtype), t.requires_grad, type(t).__name__)
        for n, t in modeling.named_module_tensors(net, recurse=True)
    ]
)
for name, value in (("0.weight", torch.ones(2)), ("nothing", torch.ones(1)), ("2.0.weight", None)):
    try:
        set_module_tensor_to_device(net, name, "cpu", value=value)
    except ValueError as error:
        answers.append(str(error).splitlines()[-1])
for device_map in (
    {"a.b": 0, "a.c": 0, "d": 1},
    {"a.b": "cpu", "a.c": "cpu"},
    {"": 0},
    {"a.b.c": 0, "a.b.d": 0, "a.e": 1},
):
    answers.append(sorted(modeling.clean_device_map(device_map).items()))
for size in ("5GB", "1.5MiB", "5Mb", "2KiB", 7):
    answers.append(convert_file_size_to_int(size))
for size in ("5", "x GB", -1):
    try:
        convert_file_size_to_int(size)
    except ValueError as error:
        answers.append(str(error))
answers += [
    dtype_byte_size(kind)
    for kind in (
        torch.bool,
        torch.float32,
        torch.bfloat16,
        torch.int64,
        torch.float8_e4m3fn,
        CustomDtype.INT2,
        CustomDtype.FP8,
    )
]
answers.append(get_max_memory({"disk": "1GB", "cpu": 5}))
given = {"cpu": "2KB", "disk": 0.9 * 2**31}
answers.append([get_max_memory(given), given])
tied = torch.nn.ModuleDict({name: torch.nn.Linear(2, 2) for name in ("d", "b", "c", "a")})
tied["a"].weight = tied["b"].weight = tied["d"].weight
tied["c"].bias = tied["b"].bias
answers.append(sorted(modeling.find_tied_parameters(tied)))
answers.append(modeling.find_tied_parameters(net))
answers.append([bool(modeling.has_offloaded_params(part)) for part in net.modules()])
from accelerate.hooks import ModelHook, remove_hook_from_module


class Doubling(ModelHook):
    def pre_forward(self, module, *args, **kwargs):
        return tuple(2 * arg for arg in args), kwargs

    def detach_hook(self, module):
        answers.append("detached")
        return module


hook = Doubling()
layer = torch.nn.Linear(2, 2)
answers.append(
    [
        hook.init_hook(layer) is layer,
        hook.pre_forward(layer, 1, a=2),
        hook.no_grad,
        hook.post_forward(layer, 3),
    ]
)
layer._hf_hook = hook
layer._old_forward = layer.forward
layer.forward = lambda x: 2 * x
answers.append(remove_hook_from_module(torch.nn.Sequential(layer), recurse=True)[0] is layer)
answers.append([hasattr(layer, "_hf_hook"), layer(torch.ones(1, 2)).shape == (1, 2)])
import os
import tempfile

from safetensors.torch import save_file

with tempfile.TemporaryDirectory() as folder:
    state = {"a.w": torch.ones(2), "b.w": torch.zeros(3), "b": torch.ones(1)}
    path = os.path.join(folder, "m.safetensors")
    for metadata in ({"format": "pt"}, {"format": "tf"}, {"format": "x"}):
        save_file(state, path, metadata=metadata)
        for places in (None, {"": "cpu"}, {"a": "cpu", "b": "cpu", "c": "disk"}):
            try:
                found = modeling.load_state_dict(path, places)
                answers.append(sorted((n, t.tolist()) for n, t in found.items()))
            except Exception as error:
                answers.append([type(error).__name__, str(error).replace(path, "PATH")])
    torch.save(state, path + ".bin")
    answers.append(sorted(modeling.load_state_dict(path + ".bin")))
answers.append(list(get_max_memory()))
try:
    check_device_map(net, {"0": 0, "kept": 0})
except ValueError as error:
    answers.append(str(error))
check_device_map(net, {"": 0})
answers.append(
    [
        has_repeated(net)
        for has_repeated in (
            other.has_repeated_blocks,
            other.is_repeated_blocks,
            other.has_compiled_regions,
        )
    ]
)
answers.append([name for name, _ in get_module_children_bottom_up(net, return_fqns=True)])
answers.append(bool(is_peft_model(net)))
from accelerate.utils import operations as o

for data in (["text"], [{"a": 3}], [3, 4], [{"a": "b"}, {"a": "c"}]):
    try:
        answers.append(o.concatenate(data))
    except TypeError as error:
        answers.append(str(error))
import warnings

nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    left, padded = o.pad_across_processes([nested, torch.ones(2)])
answers.append(
    [
        left is nested,
        padded.tolist(),
        [[w.category.__name__, str(w.message)] for w in caught if "pad" in str(w.message)],
    ]
)
from accelerate import Accelerator

accelerator = Accelerator(cpu=True)
optimizer = accelerator.prepare(torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), 0.1))
handle = accelerator.register_save_state_pre_hook(print)
answers.append(
    [
        optimizer._is_overflow,
        list(accelerator._save_model_state_pre_hook.values()) == [print],
        len(accelerator._load_model_state_pre_hook),
    ]
)
handle.remove()
answers.append(o.get_shape({"a": [torch.ones(2, 3)]}))
answers.append(str(o.get_data_structure((torch.ones(2, 3),))))
answers.append([str(t.shape) for t in o.initialize_tensors(o.get_data_structure([torch.ones(2)]))])
answers.append([str(k) for k in o.TENSOR_INT_TO_DTYPE.items()])
answers.append(str(o.convert_outputs_to_fp32(lambda x: x)(torch.ones(1).half()).dtype))
print(json.dumps(answers, default=str))
