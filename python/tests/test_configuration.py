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


def both(program: str, folder: Path) -> tuple:
    """What the program prints last, here and with the original."""
    ours, theirs = (fork(program, folder, num_ranks=1) for fork in (fork_ours, fork_original))
    return json.loads(ours.splitlines()[-1]), json.loads(theirs.splitlines()[-1])


def test_questions_have_the_originals_answers(tmp_path):
    ours, theirs = both("configuration/questions.py", tmp_path)
    assert ours == theirs


def test_plugins_have_the_originals_fields(tmp_path):
    ours, theirs = both("configuration/plugins.py", tmp_path)
    assert ours == theirs


def test_helpers_answer_as_the_originals(tmp_path):
    ours, theirs = both("configuration/answers_of_utils.py", tmp_path)
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
    with pytest.raises(
        ValueError, match="AcceleratorState has already been initialized and cannot"
    ):
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


def test_dimensions_that_the_engine_does_not_support_are_one_error(tmp_path):
    out = fork_ours("configuration/meshes.py", tmp_path, num_ranks=2)
    tensor, context, sequence, shard, fsdp, plain = json.loads(
        next(line for line in out.splitlines() if line.startswith("["))
    )
    for name, error in (("tensor", tensor), ("context", context), ("sequence", sequence)):
        assert error.startswith("ConfigError: [Accelerator] The parallelism configuration sets a")
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


def test_options_at_their_defaults_warn_of_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Accelerator(cpu=True)
