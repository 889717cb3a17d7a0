# SPDX-License-Identifier: Apache-2.0
"""What a prepared module leaves behind is the user's own, with no trace of this package."""

import copy
import io
import pickle
import subprocess
import sys

import pytest
import torch

from accelerate import Accelerator


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
