# SPDX-License-Identifier: Apache-2.0
"""Pickles and copies of prepared modules are plain ones of the user's class, without this package;
states and Accelerators that other objects refer to do not prevent these from being saved and
copied."""

import copy
import io
import pickle
import subprocess
import sys

import pytest
import torch

from accelerate import Accelerator, DataLoaderConfiguration, DistributedDataParallelKwargs
from accelerate.state import AcceleratorState, GradientState, PartialState
from accelerate.utils import GradientAccumulationPlugin


@pytest.fixture
def model():
    return torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickled_module_is_the_users_class_with_the_same_weights(model, protocol):
    prepared = Accelerator(cpu=True).prepare(model)
    loaded = pickle.loads(pickle.dumps(prepared, protocol))
    assert type(loaded) is torch.nn.Sequential
    assert loaded.state_dict().keys() == model.state_dict().keys()
    for name, tensor in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor)


def test_a_saved_module_loads_where_this_package_is_not(model, tmp_path):
    prepared = Accelerator(cpu=True).prepare(model)
    torch.save(prepared, tmp_path / "model.pt")
    code = (
        "import sys, torch; sys.modules['accelerate'] = None; "
        f"model = torch.load({str(tmp_path / 'model.pt')!r}, weights_only=False); "
        "print(type(model) is torch.nn.Sequential, list(model.state_dict())[0])"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120
    )
    assert answer.stdout.split() == ["True", "0.weight"], answer.stderr


def test_training_a_copy_leaves_the_prepared_module_alone(model):
    prepared = Accelerator(cpu=True).prepare(model)
    before = model[0].weight.detach().clone()
    copied = copy.deepcopy(prepared)
    with torch.no_grad():
        copied[0].weight.zero_()
    assert type(copied) is torch.nn.Sequential
    assert torch.equal(prepared[0].weight, before)


def test_a_module_inside_of_a_pickled_object_travels_along(model):
    prepared = Accelerator(cpu=True).prepare(model)
    buffer = io.BytesIO()
    torch.save({"model": prepared, "epoch": 3}, buffer)
    buffer.seek(0)
    loaded = torch.load(buffer, weights_only=False)
    assert loaded["epoch"] == 3
    assert torch.equal(loaded["model"][0].weight, model[0].weight)


def _copies(value):
    """Copies in this process, including one in torch's own format."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    buffer.seek(0)
    yield torch.load(buffer, weights_only=False)
    yield pickle.loads(pickle.dumps(value))
    yield copy.copy(value)
    yield copy.deepcopy(value)


@pytest.mark.parametrize("kind", [PartialState, AcceleratorState, GradientState])
def test_copies_of_a_state_are_this_processs_state(kind):
    accelerator = Accelerator(cpu=True)
    for copied in _copies(kind()):
        assert type(copied) is kind and copied.__dict__ is kind().__dict__
    for held in _copies({"state": kind()}):
        assert held["state"].__dict__ is kind().__dict__
    accelerator.gradient_state.sync_gradients = False
    assert not pickle.loads(pickle.dumps(GradientState())).sync_gradients
    accelerator.gradient_state.sync_gradients = True


def test_copies_of_an_accelerator_in_its_process_are_itself():
    accelerator = Accelerator(cpu=True)
    assert copy.deepcopy(accelerator) is accelerator and copy.copy(accelerator) is accelerator
    held = copy.deepcopy({"accelerator": accelerator, "steps": [1]})
    assert held["accelerator"] is accelerator


def test_a_loaded_accelerator_is_one_of_this_process_without_prepared_objects(model):
    accelerator = Accelerator(
        cpu=True,
        device_placement=False,
        dataloader_config=DataLoaderConfiguration(split_batches=True),
        gradient_accumulation_plugin=GradientAccumulationPlugin(2, adjust_scheduler=False),
        step_scheduler_with_optimizer=False,
        kwargs_handlers=[DistributedDataParallelKwargs(bucket_cap_mb=3)],
    )
    prepared = accelerator.prepare(model)
    accelerator.gradient_accumulation_steps = 3
    loaded = pickle.loads(pickle.dumps(accelerator))
    assert loaded is not accelerator and type(loaded) is Accelerator
    assert loaded.state.__dict__ is accelerator.state.__dict__
    assert loaded.gradient_accumulation_steps == 3
    assert loaded.gradient_state.adjust_scheduler is False
    assert loaded.split_batches and not loaded.device_placement
    assert not loaded.step_scheduler_with_optimizer
    assert loaded.ddp_handler.bucket_cap_mb == 3
    assert loaded._models == [] and accelerator.unwrap_model(prepared) is model
    GradientState._reset_state()


def test_what_was_pickled_loads_in_another_process(tmp_path):
    state = PartialState()
    AcceleratorState._reset_state()
    accelerator = Accelerator(cpu=True, mixed_precision="bf16", gradient_accumulation_steps=2)
    (tmp_path / "states").write_bytes(pickle.dumps([state, accelerator.state]))
    (tmp_path / "accelerator").write_bytes(pickle.dumps(accelerator))
    AcceleratorState._reset_state()
    GradientState._reset_state()
    code = (
        "import pickle; load = lambda name: pickle.load(open(name, 'rb')); "
        "partial, whole = load('states'); print(partial.initialized, whole.initialized); "
        "print(partial); print([whole]); "
        "from accelerate import Accelerator; mine = Accelerator(cpu=True); "
        "print(partial.num_processes, whole.mixed_precision, load('accelerator').mixed_precision); "
        "whole._reset_state(True); loaded = load('accelerator'); "
        "print(whole.mixed_precision, loaded.gradient_accumulation_steps, loaded.device)"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, cwd=tmp_path
    )
    assert answer.stdout.split("\n")[:5] == [
        "False False",
        "PartialState (not initialized)",
        "[AcceleratorState (not initialized)]",
        "1 no no",
        "bf16 2 cpu",
    ], answer.stderr


def test_transformers_settings_can_be_saved_and_copied(tmp_path):
    transformers = pytest.importorskip("transformers")
    settings = transformers.TrainingArguments(str(tmp_path), use_cpu=True, report_to=[])
    assert settings.distributed_state.num_processes == 1
    for copied in _copies(settings):
        assert copied.learning_rate == settings.learning_rate
        assert copied.distributed_state.__dict__ is PartialState().__dict__
