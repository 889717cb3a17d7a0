# SPDX-License-Identifier: Apache-2.0
"""What libraries read and set, compared with the original's behaviour."""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path

import pytest
import torch
from ranks import fork_original, fork_ours

from accelerate import Accelerator
from accelerate.errors import UsageError
from accelerate.parallelism_config import ParallelismConfig
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import (
    AutocastKwargs,
    FP8RecipeKwargs,
    GradScalerKwargs,
    KwargsHandler,
    MSAMPRecipeKwargs,
    ProfileKwargs,
    TERecipeKwargs,
    TorchDynamoPlugin,
    extract_model_from_parallel,
    is_compiled_module,
)


@pytest.fixture(autouse=True)
def fresh_state():
    AcceleratorState._reset_state(True)
    yield
    AcceleratorState._reset_state(True)


def both(code: str, folder: Path) -> tuple:
    """The `answers` of the code, here and with the original."""
    code = f"import json\nanswers = []\n{code}\nprint(json.dumps(answers, default=str))"
    ours, theirs = (fork(code, folder, num_ranks=1) for fork in (fork_ours, fork_original))
    return json.loads(ours.splitlines()[-1]), json.loads(theirs.splitlines()[-1])


QUESTIONS = """
import os
os.environ["ACCELERATE_USE_CPU"] = "true"
from accelerate import Accelerator
from accelerate.state import AcceleratorState
import torch
a = Accelerator()
for name in ("deepspeed_plugin parallelism_config torch_device_mesh is_fsdp2 scaler step "
             "is_composable_parallelism_enabled should_save_model fp8_backend native_amp "
             "has_lomo_optimizer fp8_enabled has_fp8_handler delayed_fp8_autocast log_with "
             "flag_tensor profile_handler fp8_recipe_handler ao_recipe_handler te_recipe_handler "
             "msamp_recipe_handler autocast_handler ddp_handler").split():
    answers.append((name, getattr(a, name)))
state = AcceleratorState()
for name in ("deepspeed_plugin deepspeed_plugins torch_tp_plugin is_fsdp2 device_mesh "
             "parallelism_config").split():
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
"""


def test_questions_have_the_originals_answers(tmp_path):
    ours, theirs = both(QUESTIONS, tmp_path)
    assert ours == theirs


PLUGINS = """
import dataclasses, os, warnings
from accelerate.utils import TorchDynamoPlugin, MSAMPRecipeKwargs
from accelerate import ParallelismConfig
def fields(made):
    answers.append({name: str(value) for name, value in vars(made).items() if name[0] != "_"})
fields(TorchDynamoPlugin())
answers.append(TorchDynamoPlugin(backend="inductor", dynamic=True).to_kwargs())
os.environ.update(ACCELERATE_DYNAMO_BACKEND="eager", ACCELERATE_DYNAMO_MODE="max-autotune",
                  ACCELERATE_DYNAMO_USE_FULLGRAPH="true", ACCELERATE_DYNAMO_USE_DYNAMIC="false",
                  ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION="1")
fields(TorchDynamoPlugin())
answers.append(TorchDynamoPlugin().to_kwargs())
fields(TorchDynamoPlugin(backend="no"))
fields(MSAMPRecipeKwargs())
for sizes in ({}, {"tp_size": 2}, {"dp_shard_size": 2, "dp_replicate_size": 3},
              {"cp_size": 2, "dp_shard_size": 2}, {"sp_size": 2}):
    config = ParallelismConfig(**sizes)
    fields(config)
    for name in ("dp_dim_names non_dp_dim_names dp_shard_cp_dim_names dp_cp_dim_names total_size "
                 "fsdp_dim_names non_data_parallel_size data_parallel_size active_mesh_dims "
                 "tp_enabled cp_enabled sp_enabled dp_shard_enabled").split():
        answers.append((name, getattr(config, name)))
    answers.append(config._get_mesh())
for wrong in ({"tp_size": 0}, {"cp_backend": "x"}, {"cp_size": 2, "sp_size": 2},
              {"tp_size": 2, "dp_replicate_size": 2}):
    try:
        ParallelismConfig(**wrong)
    except ValueError as error:
        answers.append(str(error)[:100])
os.environ["PARALLELISM_CONFIG_DP_SHARD_SIZE"] = "4"
fields(ParallelismConfig())
"""


def test_plugins_have_the_originals_fields(tmp_path):
    ours, theirs = both(PLUGINS, tmp_path)
    assert ours == theirs


HELPERS = """
import os, torch
from accelerate.utils import *
from accelerate.utils import constants, modeling, other
from accelerate.utils.deepspeed import HfDeepSpeedConfig
from accelerate.utils.environment import convert_dict_to_env_variables, purge_accelerate_environment
from accelerate import init_empty_weights
for name in sorted(vars(constants)):
    if name.isupper() and name != "STR_OPERATION_TO_FUNC":
        answers.append((name, str(getattr(constants, name))))
answers += [merge_dicts({"a": {"b": 1}, "c": 2}, {"a": {"d": 3}, "c": 4}),
            convert_bytes(5), convert_bytes(5e6), convert_bytes(1e20),
            other.get_pretty_name(len), other.get_pretty_name(torch.nn.Linear(1, 1)),
            recursive_getattr(torch.nn.Sequential(torch.nn.Linear(1, 2)), "0.out_features"),
            convert_dict_to_env_variables({"A": "1", "B": "x y"})]
@purge_accelerate_environment
def sets():
    os.environ["ACCELERATE_MIXED_PRECISION"] = "fp16"
sets()
answers.append("ACCELERATE_MIXED_PRECISION" in os.environ)
config = HfDeepSpeedConfig({"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}},
                            "fp16": {"enabled": "auto"}})
answers += [config.is_zero3(), config.is_zero2(), config.is_offload(), config.is_true("fp16.enabled"),
            config.is_false("fp16.enabled"), config.get_value("x.y", 7),
            config.find_config_node("zero_optimization.stage")]
config.del_config_sub_tree("zero_optimization.offload_param")
answers.append(config.config)

with init_empty_weights():
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4),
                              torch.nn.ModuleList([torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)]))
net.register_buffer("kept", torch.ones(2))
net.register_buffer("passing", torch.ones(2), persistent=False)
answers.append([(n, str(t.device), t.requires_grad) for n, t in
                modeling.named_module_tensors(net, recurse=True, remove_non_persistent=True)])
answers.append(sorted(modeling.get_non_persistent_buffers(net)))
with init_empty_weights(include_buffers=True):
    answers.append(str(torch.nn.BatchNorm1d(4).running_mean.device))
answers.append(str(torch.nn.Linear(1, 1).weight.device))
for dtype in (None, "float16", torch.float64):
    answers.append(dict(compute_module_sizes(net, dtype=dtype)))
answers.append(dict(compute_module_sizes(net, special_dtypes={"0.weight": CustomDtype.INT4})))
answers.append(modeling.compute_module_total_buffer_size(net))
answers.append(modeling.get_max_layer_size(list(net.named_children()), compute_module_sizes(net), []))
answers.append(modeling.get_max_layer_size(list(net.named_children()), compute_module_sizes(net),
                                           ["ModuleList"]))
set_module_tensor_to_device(net, "0.weight", "cpu", value=torch.ones(4, 3, dtype=torch.bfloat16))
set_module_tensor_to_device(net, "0.bias", "cpu", value=torch.ones(4), dtype=torch.float16)
set_module_tensor_to_device(net, "kept", "meta")
answers.append([(n, str(t.device), str(t.dtype), t.requires_grad, type(t).__name__) for n, t in
                modeling.named_module_tensors(net, recurse=True)])
for name, value in (("0.weight", torch.ones(2)), ("nothing", torch.ones(1)), ("2.0.weight", None)):
    try:
        set_module_tensor_to_device(net, name, "cpu", value=value)
    except ValueError as error:
        answers.append(str(error).splitlines()[-1])
for device_map in ({"a.b": 0, "a.c": 0, "d": 1}, {"a.b": "cpu", "a.c": "cpu"}, {"": 0},
                   {"a.b.c": 0, "a.b.d": 0, "a.e": 1}):
    answers.append(sorted(modeling.clean_device_map(device_map).items()))
for size in ("5GB", "1.5MiB", "5Mb", "2KiB", 7):
    answers.append(convert_file_size_to_int(size))
for size in ("5", "x GB", -1):
    try:
        convert_file_size_to_int(size)
    except ValueError as error:
        answers.append(str(error))
answers += [dtype_byte_size(kind) for kind in (torch.bool, torch.float32, torch.bfloat16,
            torch.int64, torch.float8_e4m3fn, CustomDtype.INT2, CustomDtype.FP8)]
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
answers.append([hook.init_hook(layer) is layer, hook.pre_forward(layer, 1, a=2), hook.no_grad,
                hook.post_forward(layer, 3)])
layer._hf_hook = hook
layer._old_forward = layer.forward
layer.forward = lambda x: 2 * x
answers.append(remove_hook_from_module(torch.nn.Sequential(layer), recurse=True)[0] is layer)
answers.append([hasattr(layer, "_hf_hook"), layer(torch.ones(1, 2)).shape == (1, 2)])
import os, tempfile
from safetensors.torch import save_file
with tempfile.TemporaryDirectory() as folder:
    state = {"a.w": torch.ones(2), "b.w": torch.zeros(3), "b": torch.ones(1)}
    path = os.path.join(folder, "m.safetensors")
    for metadata in ({"format": "pt"}, {"format": "tf"}, {"format": "x"}):
        save_file(state, path, metadata=metadata)
        for places in (None, {"": "cpu"}, {"a": "cpu", "b": "cpu", "c": "disk"}):
            try:
                found = modeling.load_state_dict(path, places)
                answers.append(sorted((n, t.tolist())
                                      for n, t in found.items()))
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
answers.append([has_repeated(net) for has_repeated in (other.has_repeated_blocks,
                other.is_repeated_blocks, other.has_compiled_regions)])
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
answers.append([left is nested, padded.tolist(),
                [[w.category.__name__, str(w.message)] for w in caught if "pad" in str(w.message)]])
from accelerate import Accelerator
accelerator = Accelerator(cpu=True)
optimizer = accelerator.prepare(torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), 0.1))
handle = accelerator.register_save_state_pre_hook(print)
answers.append([optimizer._is_overflow, list(accelerator._save_model_state_pre_hook.values()) == [print],
                len(accelerator._load_model_state_pre_hook)])
handle.remove()
answers.append(o.get_shape({"a": [torch.ones(2, 3)]}))
answers.append(str(o.get_data_structure((torch.ones(2, 3),))))
answers.append([str(t.shape) for t in o.initialize_tensors(o.get_data_structure([torch.ones(2)]))])
answers.append([str(k) for k in o.TENSOR_INT_TO_DTYPE.items()])
answers.append(str(o.convert_outputs_to_fp32(lambda x: x)(torch.ones(1).half()).dtype))
"""


def test_helpers_answer_as_the_originals(tmp_path):
    ours, theirs = both(HELPERS, tmp_path)
    for own, original in zip(ours, theirs, strict=True):
        assert own == original


# --- what the constructor takes ---------------------------------------------------------------


def test_an_older_argument_is_warned_about_and_not_followed():
    with pytest.warns(UserWarning, match="Pass dataloader_config=DataLoaderConfiguration"):
        accelerator = Accelerator(cpu=True, split_batches=True)
    assert accelerator.split_batches is False


def test_fp16_on_a_cpu_is_fp32_with_one_warning():
    with pytest.warns(UserWarning, match="fp16 mixed precision requires a GPU") as said:
        accelerator = Accelerator(cpu=True, mixed_precision="fp16")
    assert len(said) == 1
    assert accelerator.mixed_precision == "fp16" and accelerator.scaler is None
    assert not accelerator.native_amp
    net = torch.nn.Linear(2, 2)
    model = accelerator.prepare(net)
    x = torch.rand(3, 2)
    assert torch.equal(model(x), torch.nn.functional.linear(x, net.weight, net.bias))
    with accelerator.autocast():
        assert not torch.is_autocast_enabled("cpu")


def test_debug_mode_refuses_it(monkeypatch):
    monkeypatch.setenv("ACCELERATE_DEBUG_MODE", "1")
    with pytest.raises(UsageError, match="fp16 mixed precision"):
        Accelerator(cpu=True, mixed_precision="fp16")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            {"mixed_precision": "fp32"},
            r"Unknown mixed_precision mode: fp32. Choose between \['no', 'fp16', 'bf16'\]",
        ),
        ({"log_with": "json"}, r"Unsupported logging capability: json. .*'jsonl'"),
        (
            {"dynamo_backend": "eager", "dynamo_plugin": TorchDynamoPlugin()},
            "You cannot pass in both `dynamo_plugin` and `dynamo_backend`",
        ),
        (
            {"kwargs_handlers": [AutocastKwargs(), AutocastKwargs()]},
            "You can only pass one <class '.*AutocastKwargs'> in `kwargs_handlers`",
        ),
        ({"kwargs_handlers": [KwargsHandler()]}, "Unsupported kwargs handler passed"),
        (
            {"kwargs_handlers": [TERecipeKwargs()]},
            "Passing in an FP8 configuration requires setting `mixed_precision='fp8'`",
        ),
    ],
)
def test_messages_hold_the_originals_words(arguments, words):
    with pytest.raises(ValueError, match=words):
        Accelerator(cpu=True, **arguments)


def test_a_second_accelerator_of_another_precision_hears_the_originals_words():
    Accelerator(cpu=True)
    with pytest.raises(ValueError, match="AcceleratorState has already been initialized and cannot"):
        Accelerator(cpu=True, mixed_precision="bf16")


def test_recipes_of_8_bits_are_data():
    assert TERecipeKwargs(margin=2).to_kwargs() == {"margin": 2}
    assert MSAMPRecipeKwargs().opt_level == "O2"
    with pytest.warns(FutureWarning):
        assert FP8RecipeKwargs().backend == "TE"
    with pytest.raises(ValueError, match="`fp8_format` must be one of"):
        TERecipeKwargs(fp8_format="half")


def test_handlers_are_kept_where_the_original_keeps_them():
    profile, scaler = ProfileKwargs(), GradScalerKwargs(enabled=False)
    accelerator = Accelerator(cpu=True, kwargs_handlers=[profile, scaler])
    assert accelerator.profile_handler is profile and accelerator.scaler_handler is scaler


def test_a_parallelism_configuration_is_kept_and_more_than_data_parallel_is_refused():
    config = ParallelismConfig()
    assert Accelerator(cpu=True, parallelism_config=config).parallelism_config is config
    AcceleratorState._reset_state(True)
    with pytest.raises(ValueError, match=r"total_size \(2\) does not match num_processes \(1\)"):
        Accelerator(cpu=True, parallelism_config=ParallelismConfig(tp_size=2))


MESHES = """
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.parallelism_config import ParallelismConfig
from accelerate.utils import FullyShardedDataParallelPlugin
for sizes, version in (({"tp_size": 2}, None), ({"cp_size": 2}, None), ({"sp_size": 2}, None),
                       ({"dp_shard_size": 2}, None), ({"dp_replicate_size": 2}, 2)):
    AcceleratorState._reset_state(True)
    plugin = version and FullyShardedDataParallelPlugin(fsdp_version=version)
    try:
        Accelerator(cpu=True, fsdp_plugin=plugin, parallelism_config=ParallelismConfig(**sizes))
    except ValueError as error:
        answers.append(f"{type(error).__name__}: {error}")
AcceleratorState._reset_state(True)
config = ParallelismConfig()
accelerator = Accelerator(cpu=True, parallelism_config=config)
answers.append([config.dp_replicate_size, accelerator.data_parallel_rank])
if accelerator.is_main_process:
    print(json.dumps(answers))
"""


def test_dimensions_that_the_engine_does_not_support_are_one_error(tmp_path):
    code = f"import json\nanswers = []\n{MESHES}"
    out = fork_ours(code, tmp_path, num_ranks=2)
    tensor, context, sequence, shard, fsdp, plain = json.loads(
        next(line for line in out.splitlines() if line.startswith("["))
    )
    for name, error in (("tensor", tensor), ("context", context), ("sequence", sequence)):
        assert error.startswith("ConfigError: [Accelerator] The parallelism sets a")
        assert f"{name} size of 2, which is not supported" in error
    assert "shard size of 2, but nothing is sharded. Pass a FullyShardedData" in shard
    assert "FSDP is enabled but the parallelism config has no dimension" in fsdp
    assert plain == [2, 0]


def test_a_device_can_be_named_by_a_variable(monkeypatch):
    monkeypatch.setenv("ACCELERATE_TORCH_DEVICE", "cpu")
    assert PartialState().device == torch.device("cpu")


def test_a_failing_property_says_why():
    class Mine(Accelerator):
        @property
        def broken(self):
            return self.nothing_here

    with pytest.raises(AttributeError, match="nothing_here"):
        _ = Mine(cpu=True).broken
    assert not hasattr(PartialState(), "nothing") and not hasattr(AcceleratorState(), "nothing")


def test_scripts_may_set_what_is_the_originals_to_set():
    accelerator = Accelerator(cpu=True, mixed_precision="bf16")
    accelerator.native_amp = False
    accelerator.step += 1
    net = torch.nn.Linear(2, 2)
    model = accelerator.prepare(net)
    x = torch.rand(3, 2)
    assert torch.equal(model(x), torch.nn.functional.linear(x, net.weight, net.bias))


# --- precision --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("handler", "dtype"),
    [
        (None, torch.bfloat16),
        (AutocastKwargs(enabled=False), torch.float32),
        (AutocastKwargs(cache_enabled=False), torch.bfloat16),
    ],
)
def test_the_handler_of_autocast_is_followed(handler, dtype):
    class Net(torch.nn.Linear):
        def forward(self, x):
            self.seen = super().forward(x).dtype, torch.is_autocast_cache_enabled()
            return super().forward(x)

    handlers = [] if handler is None else [handler]
    accelerator = Accelerator(cpu=True, mixed_precision="bf16", kwargs_handlers=handlers)
    model = accelerator.prepare(Net(2, 2))
    assert model(torch.rand(3, 2)).dtype == torch.float32
    caches = handler is None or handler.cache_enabled is None
    assert model.seen == (dtype, caches)
    with accelerator.autocast():
        assert torch.nn.functional.linear(torch.rand(1, 2), torch.rand(2, 2)).dtype == dtype
    with accelerator.autocast(AutocastKwargs(enabled=False)):
        assert not torch.is_autocast_enabled("cpu")


# --- compiling --------------------------------------------------------------------------------



@pytest.mark.parametrize("how", ["argument", "plugin", "variable"])
def test_prepare_compiles_where_it_is_asked_to(how, monkeypatch):
    arguments = {
        "argument": {"dynamo_backend": "eager"},
        "plugin": {"dynamo_plugin": TorchDynamoPlugin(backend="eager")},
        "variable": {},
    }[how]
    if how == "variable":
        monkeypatch.setenv("ACCELERATE_DYNAMO_BACKEND", "EAGER")
    accelerator = Accelerator(cpu=True, **arguments)
    net = torch.nn.Linear(2, 1)
    model = accelerator.prepare(net)
    assert is_compiled_module(model) and accelerator.prepare(net) is model
    assert accelerator.unwrap_model(model, keep_torch_compile=False) is net
    x = torch.rand(3, 2)
    accelerator.backward(model(x).sum())
    torch.testing.assert_close(net.weight.grad[0], x.sum(0))


def test_an_evaluated_module_is_compiled_in_place():
    accelerator = Accelerator(cpu=True, dynamo_backend="eager")
    net = torch.nn.Linear(2, 1)
    assert accelerator.prepare_model(net, evaluation_mode=True) is net
    assert net._compiled_call_impl is not None
    assert accelerator.prepare(net) is net


def test_regions_are_compiled_one_by_one(monkeypatch):
    monkeypatch.setenv("ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION", "1")
    accelerator = Accelerator(cpu=True, dynamo_backend="eager")

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = torch.nn.ModuleList(torch.nn.Linear(2, 2) for _ in range(3))
            self.head = torch.nn.Linear(2, 1)

        def forward(self, x):
            for block in self.blocks:
                x = block(x)
            return self.head(x)

    net = Net()
    x = torch.rand(3, 2)
    expected = net(x)
    model = accelerator.prepare(net)
    assert all(part._compiled_call_impl is not None for part in (*net.blocks, net.head))
    assert torch.equal(model(x), expected)


def test_no_backend_compiles_nothing():
    accelerator = Accelerator(cpu=True, dynamo_plugin=TorchDynamoPlugin(backend=None, mode=None))
    net = torch.nn.Linear(2, 1)
    assert accelerator.prepare(net) is net and extract_model_from_parallel(net) is net
    assert "ACCELERATE_DYNAMO_BACKEND" not in os.environ


def test_nothing_is_said_of_what_is_not_asked_for():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Accelerator(cpu=True)
