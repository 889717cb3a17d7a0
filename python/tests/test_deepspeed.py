# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed's plugin and configuration: what they shard, fill in, clip and schedule, and what is
rejected. Two processes add two gradients and halve the sum, so weights are bit-identical to those
of data parallel training."""

from __future__ import annotations

import copy
import json
import math
import os
import pickle
import subprocess
import sys

import pytest
import ranks
import torch
from original import originals_python

from accelerate import Accelerator
from accelerate.errors import ConfigError, UsageError
from accelerate.state import AcceleratorState
from accelerate.utils import DeepSpeedPlugin, DistributedType, DummyOptim, DummyScheduler


@pytest.fixture(autouse=True)
def _fresh(monkeypatch):
    monkeypatch.setenv("ACCELERATE_USE_CPU", "1")
    # The Accelerator sets it for libraries.
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "false")
    AcceleratorState._reset_state(True)
    yield
    AcceleratorState._reset_state(True)


TRAIN = "deepspeed/stages_and_configuration.py"


def test_training_equals_data_parallel_training(tmp_path):
    assert "equal" in ranks.check(ranks.run(ranks.LAUNCH, tmp_path, TRAIN))


def test_variables_ask_for_it(monkeypatch):
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    monkeypatch.setenv("ACCELERATE_DEEPSPEED_ZERO_STAGE", "1")
    monkeypatch.setenv("ACCELERATE_GRADIENT_CLIPPING", "2.5")
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    accelerator = Accelerator()
    assert accelerator.distributed_type == DistributedType.DEEPSPEED
    assert accelerator.state.deepspeed_plugin is accelerator.deepspeed_plugin
    assert accelerator.deepspeed_plugin.zero_stage == 1
    assert accelerator.deepspeed_plugin.gradient_clipping == 2.5
    assert accelerator.mixed_precision == "bf16"
    assert accelerator.deepspeed_plugin.deepspeed_config["bf16"] == {"enabled": True}
    # A second one has the same plugin; another cannot be given.
    assert Accelerator().deepspeed_plugin is accelerator.deepspeed_plugin
    with pytest.raises(NotImplementedError, match="second"):
        Accelerator(deepspeed_plugin=DeepSpeedPlugin())


def test_plugins_by_name():
    one, two = DeepSpeedPlugin(zero_stage=1), DeepSpeedPlugin(zero_stage=3)
    accelerator = Accelerator(deepspeed_plugins={"one": one, "two": two})
    assert accelerator.deepspeed_plugin is one and one.selected and not two.selected
    assert accelerator.state.get_deepspeed_plugin("two") is two
    accelerator.state.select_deepspeed_plugin("two")
    assert accelerator.deepspeed_plugin is two
    with pytest.raises(ValueError, match="another Accelerator"):
        accelerator.prepare(torch.nn.Linear(2, 2))
    Accelerator().prepare(torch.nn.Linear(2, 2))
    with pytest.raises(ValueError, match="one, two"):
        accelerator.state.select_deepspeed_plugin("three")


FILE = """
distributed_type: DEEPSPEED
deepspeed_config:
  {}
num_processes: 2
use_cpu: true
"""


def test_the_launcher_asks_for_it(tmp_path):
    (tmp_path / "ds.json").write_text(
        json.dumps({"zero_optimization": {"stage": 1}, "bf16": {"enabled": True}})
    )
    (tmp_path / "fields.yaml").write_text(FILE.format("zero_stage: 3\n  zero3_init_flag: true"))
    (tmp_path / "json.yaml").write_text(FILE.format("deepspeed_config_file: ds.json"))
    flags = ["--use_deepspeed", "--zero_stage", "0", "--gradient_clipping", "0.5"]
    launch = ["accelerate", "launch"]
    for starter, words in (
        ([*ranks.LAUNCH, *flags], "DEEPSPEED 0 0.5 no"),
        ([*launch, "--config_file", "fields.yaml"], "DEEPSPEED 3 auto no"),
        ([*launch, "--config_file", "json.yaml"], "DEEPSPEED 1 auto bf16"),
    ):
        assert words in ranks.check(
            ranks.run(starter, tmp_path, "deepspeed/show_plugin.py", ACCELERATE_USE_DEEPSPEED="")
        )


ZERO = {"zero_optimization": {"stage": 0}}


@pytest.mark.parametrize(
    "config, words",
    [
        ({"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "nvme"}}}, "nvme"),
        ({"zero_optimization": {"stage": 3, "zero_hpz_partition_size": 8}}, "zero_hpz_partition"),
        ({"zero_optimization": {"stage": 3, "zero_quantized_weights": True}}, "quantized_weights"),
        ({**ZERO, "communication_data_type": "fp16"}, "communication_data_type"),
        ({**ZERO, "tensor_parallel": {"autotp_size": 2}}, "autotp_size"),
        ({**ZERO, "fp16": {"enabled": True, "loss_scale": 128}}, "loss_scale"),
        ({**ZERO, "something_new": 1}, "something_new"),
        ({**ZERO, "gradient_accumulation_step": 4}, "Did you mean gradient_accumulation_steps"),
    ],
)
def test_what_would_be_another_run_is_refused(config, words):
    with pytest.raises((NotImplementedError, ValueError), match=words) as caught:
        Accelerator(deepspeed_plugin=DeepSpeedPlugin(hf_ds_config=config))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "config, words",
    [
        (
            {"zero_optimization": {"stage": 4}},
            "zero_optimization.stage is 4 (a number), expected 0,",
        ),
        ({"zero_optimization": {"stage": 2.5}}, "stage is 2.5 (a number), expected 0, 1, 2 or 3"),
        (
            {"zero_optimization": {"stage": True}},
            "stage is true (a boolean), expected 0, 1, 2 or 3",
        ),
        (
            {"zero_optimization": {"stage": "three"}},
            'stage is "three" (a string), expected 0, 1, 2',
        ),
        (
            {"zero_optimization": True},
            "zero_optimization is true (a boolean), expected a dictionary",
        ),
        ({"zero_optimization": {"stage": 2, "offload_optimizer": "cpu"}}, "offload_optimizer is"),
        (
            {"zero_optimization": {"stage": 2, "offload_param": {"device": "gpu"}}},
            'device is "gpu" (a string), expected one of none, cpu, nvme',
        ),
        ({"zero_optimization": {"stage": 2, "overlap_comm": "maybe"}}, "overlap_comm is"),
        (
            {**ZERO, "gradient_accumulation_steps": "4"},
            'gradient_accumulation_steps is "4" (a string), expected a whole number of at least 1, or '
            '"auto". Write 4 without quotes',
        ),
        ({**ZERO, "gradient_accumulation_steps": 1.5}, "gradient_accumulation_steps is 1.5"),
        ({**ZERO, "gradient_accumulation_steps": 0}, "gradient_accumulation_steps is 0"),
        ({**ZERO, "train_micro_batch_size_per_gpu": "2"}, "Write 2 without quotes"),
        ({**ZERO, "train_batch_size": [4]}, "train_batch_size is [4] (a list)"),
        ({**ZERO, "gradient_clipping": "1.0"}, "Write 1.0 without quotes"),
        ({**ZERO, "gradient_clipping": False}, "gradient_clipping is false (a boolean)"),
        ({**ZERO, "fp16": True}, "fp16 is true (a boolean), expected a dictionary"),
        ({**ZERO, "bf16": {"enabled": "maybe"}}, "bf16.enabled is"),
        ({**ZERO, "optimizer": "AdamW"}, "optimizer is"),
        ({**ZERO, "fp16": {"enabled": True}, "bf16": {"enabled": True}}, "both true"),
        ([1], "The configuration is [1] (a list), expected a"),
        (3, "The configuration is 3 (a number), expected a dictionary"),
        ("no_such_file.json", "Check the path"),
    ],
)
def test_values_of_another_kind_are_named(tmp_path, config, words):
    """By their keys, from a dictionary and from a file, whose name is also given."""
    with pytest.raises(ConfigError) as caught:
        DeepSpeedPlugin(hf_ds_config=config)
    assert "[DeepSpeed] " in str(caught.value) and words in str(caught.value)
    assert "\n" not in str(caught.value)
    if isinstance(config, (dict, list)):
        path = tmp_path / "ds.json"
        path.write_text(json.dumps(config))
        with pytest.raises(ConfigError) as caught:
            DeepSpeedPlugin(hf_ds_config=str(path))
        message = str(caught.value)
        assert words in message or isinstance(config, list)
        assert message.endswith((f"Correct {path}", "without quotes"))


def test_a_malformed_file_is_named_with_its_line(tmp_path):
    path = tmp_path / "ds.json"
    path.write_text('{\n  "zero_optimization": {"stage": 3},\n  "bf16": }\n')
    with pytest.raises(
        ConfigError, match="ds.json, line 3, column 11, is not JSON: Expecting value"
    ):
        DeepSpeedPlugin(hf_ds_config=str(path))


@pytest.mark.parametrize(
    "field", ["zero_stage", "gradient_accumulation_steps", "gradient_clipping"]
)
def test_fields_of_another_kind_are_named(monkeypatch, field):
    with pytest.raises(ConfigError, match=rf"\[DeepSpeed\] {field} is \[1\]"):
        DeepSpeedPlugin(**{field: [1]})
    variable = {"zero_stage": "DEEPSPEED_ZERO_STAGE"}.get(field, field.upper())
    monkeypatch.setenv(f"ACCELERATE_{variable}", "two")
    with pytest.raises(ConfigError, match=rf'\[DeepSpeed\] {field} is "two" \(a string\)'):
        DeepSpeedPlugin()


def test_what_deepspeed_reads_is_read():
    """Its sections are lax (pydantic's rules): strings for numbers, floats, and words for yes and
    no. Its top level accepts floats."""
    for stage in ("3", 3.0, " 3", "3.0"):
        plugin = DeepSpeedPlugin(hf_ds_config={"zero_optimization": {"stage": stage}})
        assert plugin.zero_stage == 3 and plugin.hf_ds_config.is_zero3()
    config = {
        **ZERO,
        "gradient_accumulation_steps": 2.0,
        "gradient_clipping": -1,
        "fp16": {"enabled": "false"},
        "bf16": {"enabled": "True"},
        "flops_profiler": {"enabled": "off", "detailed": True},
        "zero_force_ds_cpu_optimizer": None,
    }
    accelerator = Accelerator(deepspeed_plugin=DeepSpeedPlugin(hf_ds_config=config))
    assert accelerator.mixed_precision == "bf16"
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0))
    assert accelerator.gradient_accumulation_steps == 2
    assert isinstance(accelerator.gradient_accumulation_steps, int)
    for _ in range(2):
        with accelerator.accumulate(model):
            accelerator.backward(10 * model(torch.ones(1, 1)).sum())
            optimizer.step()
    # A limit below zero clips nothing.
    assert model.weight.item() == -10


def test_what_only_takes_time_is_named():
    zero = {
        "stage": 3,
        "reduce_bucket_size": 5e8,
        "overlap_comm": True,
        "zero_hpz_partition_size": 1,
    }
    config = {"zero_optimization": zero, "flops_profiler": {"enabled": False, "detailed": True}}
    with pytest.warns(UserWarning) as caught:
        Accelerator(deepspeed_plugin=DeepSpeedPlugin(hf_ds_config=config))
    (message,) = (str(warning.message) for warning in caught)
    assert "have no effect: zero_optimization.reduce_bucket_size" in message
    assert "flops" not in message and "overlap" not in message


def prepare(config, *objects):
    accelerator = Accelerator(deepspeed_plugin=DeepSpeedPlugin(hf_ds_config={**ZERO, **config}))
    return accelerator, accelerator.prepare(torch.nn.Linear(2, 2), *objects)


@pytest.mark.parametrize(
    "config, objects, words",
    [
        ({}, lambda opt: [DummyOptim([])], "without specifying an optimizer"),
        ({"optimizer": {"type": "Adam"}}, lambda opt: [opt], "DummyOptim"),
        ({}, lambda opt: [opt, DummyScheduler(opt)], "lr_scheduler_callable"),
        (
            {"scheduler": {"type": "WarmupLR"}},
            lambda opt: [opt, torch.optim.lr_scheduler.StepLR(opt, 1)],
            "DummyScheduler",
        ),
        ({"scheduler": {"type": "OneCycle"}}, lambda opt: [opt, DummyScheduler(opt)], "OneCycle"),
        ({"optimizer": {"type": "Lamb"}}, lambda opt: [DummyOptim([opt.p])], "Lamb"),
        (
            {"optimizer": {"type": "AdamW", "params": {"freeze_step": 2}}},
            lambda opt: [DummyOptim([opt.p])],
            "freeze_step",
        ),
        (
            {"optimizer": {"type": "AdamW", "params": {"betas": "auto"}}},
            lambda opt: [DummyOptim([opt.p])],
            "optimizer.params.betas",
        ),
        (
            {"train_batch_size": 7, "train_micro_batch_size_per_gpu": 2},
            lambda opt: [opt],
            "make 2",
        ),
    ],
)
def test_contradictions(config, objects, words):
    parameter = torch.nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    optimizer.p = parameter
    with pytest.raises((ValueError, NotImplementedError), match=words) as caught:
        prepare(config, *objects(optimizer))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "name, params, kind, decay",
    [
        ("Adam", {}, torch.optim.AdamW, 0.0),
        ("Adam", {"adam_w_mode": False, "weight_decay": 0.5}, torch.optim.Adam, 0.5),
        ("AdamW", {"torch_adam": True}, torch.optim.AdamW, 0.01),
        ("adamw", {"weight_decay": "auto"}, torch.optim.AdamW, 0.2),
        ("SGD", {"momentum": 0.9}, torch.optim.SGD, 0),
    ],
)
def test_optimizers_of_the_configuration(name, params, kind, decay):
    model = torch.nn.Linear(2, 2)
    section = {"optimizer": {"type": name, "params": {"lr": "auto", **params}}}
    accelerator, (_, optimizer) = prepare(
        section, DummyOptim(model.parameters(), lr=0.3, weight_decay=0.2)
    )
    assert type(optimizer.optimizer) is kind
    group = optimizer.param_groups[0]
    assert (group["lr"], group["weight_decay"]) == (0.3, decay)


def test_warm_up_along_a_logarithm():
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    params = {"warmup_max_lr": "auto", "warmup_min_lr": 0.1, "warmup_num_steps": 4}
    accelerator = Accelerator(
        deepspeed_plugin=DeepSpeedPlugin(
            hf_ds_config={**ZERO, "scheduler": {"type": "WarmupLR", "params": params}}
        )
    )
    model, optimizer, scheduler = accelerator.prepare(model, optimizer, DummyScheduler(optimizer))
    rates = []
    for _ in range(7):
        rates.append(scheduler.get_last_lr()[0])
        accelerator.backward(model(torch.ones(1, 2)).sum())
        optimizer.step()  # it alone advances the scheduler
        optimizer.zero_grad()
    part = [0, 0, math.log(2) / math.log(4), math.log(3) / math.log(4), 1, 1, 1]
    assert rates == pytest.approx([0.1 + 0.4 * p for p in part])
    # Preparing twice has no effect, and later Accelerators have the same plugin.
    assert accelerator.prepare(scheduler, optimizer, model) == (scheduler, optimizer, model)
    assert pickle.loads(pickle.dumps(accelerator)).deepspeed_plugin is accelerator.deepspeed_plugin


def test_a_run_resumes_from_its_checkpoint(tmp_path):
    section = {"type": "WarmupLR", "params": {"warmup_max_lr": "auto", "warmup_num_steps": 4}}
    config = {**ZERO, "scheduler": section, "optimizer": {"type": "AdamW", "params": {}}}
    model = torch.nn.Linear(2, 2)
    dummy = DummyOptim(model.parameters())
    accelerator = Accelerator(deepspeed_plugin=DeepSpeedPlugin(hf_ds_config=config))
    model, optimizer, scheduler = accelerator.prepare(model, dummy, DummyScheduler(dummy))

    def train():
        for _ in range(3):
            accelerator.backward(model(torch.ones(1, 2)).square().sum())
            optimizer.step()
            optimizer.zero_grad()
        return scheduler.get_last_lr(), {k: v.clone() for k, v in model.state_dict().items()}

    train()
    accelerator.save_state(tmp_path / "run")
    rates, weights = train()
    accelerator.load_state(tmp_path / "run")
    again, same = train()
    assert rates == again and rates[0] > 0
    assert all(torch.equal(value, same[name]) for name, value in weights.items())


DESCRIBE = "deepspeed/describe_plugins.py"


def test_plugin_is_filled_in_as_the_originals(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"zero_optimization": {"stage": "auto"}, "gradient_clipping": 0.3}))
    fields = [
        {},
        {"zero_stage": 3, "offload_param_device": "cpu", "gradient_accumulation_steps": 4},
        {"hf_ds_config": str(path), "zero_stage": 1},
        {
            "hf_ds_config": {
                "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "auto"}},
                "gradient_accumulation_steps": "auto",
                "bf16": {"enabled": "auto"},
            },
            "offload_optimizer_device": "cpu",
        },
    ]

    def describe(python, environment=None):
        command = [python, str(ranks.PROGRAMS / DESCRIBE), json.dumps(fields)]
        result = subprocess.run(command, capture_output=True, text=True, env=environment)
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout)

    own = {
        k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "ACCELERATE_USE_DEEPSPEED")
    }
    assert describe(sys.executable) == describe(originals_python(), own)


# --- what loops ask of DeepSpeed's engine -----------------------------------------------------


def prepared_line(steps=1):
    AcceleratorState._reset_state(True)
    os.environ["ACCELERATE_USE_DEEPSPEED"] = "false"
    config = {
        "zero_optimization": {"stage": 2},
        "gradient_accumulation_steps": steps,
        "train_micro_batch_size_per_gpu": 1,
    }
    accelerator = Accelerator(deepspeed_plugin=DeepSpeedPlugin(hf_ds_config=config))
    model = torch.nn.Linear(2, 1, bias=False)
    torch.nn.init.ones_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.5)
    return accelerator, model, *accelerator.prepare(model, optimizer)


@pytest.mark.parametrize("divides", [True, False, None])
def test_a_loss_is_divided_by_micro_batches_by_default(divides):
    accelerator, module, model, optimizer = prepared_line(steps=4)
    kwargs = {} if divides is None else {"scale_wrt_gas": divides}
    accelerator.backward(model(torch.ones(1, 2)).sum(), **kwargs)
    assert module.weight.grad.tolist() == [[1.0 if divides is False else 0.25] * 2]
    assert accelerator.gradient_accumulation_steps == 4


def test_the_prepared_model_saves_and_loads_checkpoints(tmp_path):
    def train(accelerator, model, optimizer):
        for _ in range(2):
            accelerator.backward(model(torch.ones(1, 2)).sum())
            optimizer.step()
            optimizer.zero_grad()

    accelerator, module, model, optimizer = prepared_line()
    train(accelerator, model, optimizer)
    assert model.save_checkpoint(tmp_path, client_state={"epoch": 3})
    assert (tmp_path / "latest").read_text() == "global_step2"
    assert model.save_checkpoint(str(tmp_path), "named", save_latest=False)
    train(accelerator, model, optimizer)
    expected = module.weight.tolist()

    accelerator, module, model, optimizer = prepared_line()
    generator = torch.get_rng_state()
    path, client = model.load_checkpoint(tmp_path, load_module_strict=True)
    assert (path, client) == (str(tmp_path / "global_step2"), {"epoch": 3})
    assert torch.equal(generator, torch.get_rng_state())
    # The momentum was restored, too.
    train(accelerator, model, optimizer)
    assert module.weight.tolist() == expected
    model.save_checkpoint(tmp_path)
    assert (tmp_path / "latest").read_text() == "global_step4"
    assert model.load_checkpoint(tmp_path, tag="named") == (str(tmp_path / "named"), {})
    with pytest.warns(UserWarning, match="contains no checkpoint"):
        assert model.load_checkpoint(tmp_path / "named") == (None, {})
    with pytest.raises(UsageError, match="loaded as a whole"):
        model.load_checkpoint(tmp_path, load_optimizer_states=False)


def test_the_configuration_of_a_model_answers_as_both():
    class Configured(torch.nn.Linear):
        def forward(self, x):
            assert type(self.config) is Settings
            return super().forward(x)

    class Settings:
        width = 2

    accelerator, _, plain, _ = prepared_line()
    assert plain.config.get("zero_optimization")["stage"] == 2
    model = Configured(2, 1)
    model.config = Settings()
    prepared = accelerator.prepare(model)
    assert prepared.config.get("zero_optimization")["stage"] == 2
    assert prepared.config.width == 2 and isinstance(prepared.config, Settings)
    prepared.config.width = 2.0
    assert model.config.width == 2.0
    assert type(copy.deepcopy(prepared.config)) is Settings
    prepared(torch.ones(1, 2))
