# SPDX-License-Identifier: Apache-2.0
"""The types of prepared modules: code that inspects the class, creates another module from it or
changes it."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref

import pytest
import torch
from torch.nn.utils import parametrize

from accelerate import Accelerator
from accelerate.state import AcceleratorState


class Net(torch.nn.Module):
    def __init__(self, width: int = 3) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(x, self.weight)


@pytest.fixture(params=["no", "bf16"])
def accelerator(request):
    AcceleratorState._reset_state(True)
    yield Accelerator(cpu=True, mixed_precision=request.param)
    AcceleratorState._reset_state(True)


def test_another_module_of_its_class_is_the_users_own(accelerator):
    net = Net()
    prepared = accelerator.prepare(net)
    assert prepared.__class__ is Net and net.__class__ is Net
    for kind in (type(prepared), prepared.__class__, type(net)):
        other = kind(2)
        assert type(other) is Net
        with torch.no_grad():
            other.weight.fill_(7)
        assert accelerator.unwrap_model(other) is other
        for copied in (copy.deepcopy(other), pickle.loads(pickle.dumps(other))):
            assert copied.weight.shape == (2, 2) and (copied.weight == 7).all()


def test_modules_of_a_class_share_one_type(accelerator):
    a, b = accelerator.prepare(Net(), Net())
    assert type(a) is type(b)
    with torch.no_grad():
        b.weight.fill_(2)
    x = torch.ones(1, 3)
    assert a(x).tolist() == [[3, 3, 3]] and b(x).tolist() == [[6, 6, 6]]


def test_modules_and_engines_go_without_the_cycle_collector(accelerator):
    gc.collect()
    gc.disable()
    try:
        net = Net()
        prepared = accelerator.prepare(net)
        accelerator.backward(prepared(torch.ones(1, 3)).sum())
        gone = [weakref.ref(net), weakref.ref(prepared)]
        accelerator.free_memory()
        del net, prepared
        assert [ref() for ref in gone] == [None, None]
    finally:
        gc.enable()


class Double(torch.nn.Module):
    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return 2 * weight


def test_a_prepared_module_can_be_parametrized(accelerator):
    net = Net()
    prepared = accelerator.prepare(net)
    parametrize.register_parametrization(prepared, "weight", Double())
    x = torch.ones(1, 3)
    assert prepared(x).tolist() == net(x).tolist() == [[6, 6, 6]]
    assert parametrize.is_parametrized(net) and parametrize.is_parametrized(prepared)
    accelerator.backward(prepared(x).sum())
    assert (net.parametrizations.weight.original.grad == 2).all()
    parametrize.remove_parametrizations(prepared, "weight")
    assert type(net).__name__ == "Net"
    assert prepared(x).tolist() == net(x).tolist() == [[6, 6, 6]]


def test_preparing_again_after_a_forward_that_replaced_a_buffer():
    class Counts(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.seen = self.seen + 1
            return self.layer(x)

    AcceleratorState._reset_state(True)
    accelerator = Accelerator(cpu=True)
    net = Counts()
    prepared = accelerator.prepare(net)
    prepared(torch.ones(1, 1))
    assert accelerator.prepare(net) is prepared
    assert accelerator._run.state.state_dict()["model.seen"].item() == 1


def test_the_users_own_module_computes_in_the_same_precision():
    AcceleratorState._reset_state(True)
    accelerator = Accelerator(cpu=True, mixed_precision="bf16")
    net = Net()
    torch.nn.init.normal_(net.weight)
    twin = copy.deepcopy(net)
    prepared = accelerator.prepare(net)
    x = torch.randn(5, 3)
    with torch.autocast("cpu", torch.bfloat16):
        expected = twin(x).float()
    for call in (prepared, net, net.forward, prepared.forward, accelerator.unwrap_model(prepared)):
        out = call(x)
        assert out.dtype == torch.float32 and torch.equal(out, expected)
    with accelerator.autocast():
        assert net(x).dtype == torch.float32
    # The original's way back to the precision of the weights.
    assert accelerator.unwrap_model(prepared, keep_fp32_wrapper=False) is net
    assert prepared is net and type(net) is Net and torch.equal(net(x), twin(x))
    AcceleratorState._reset_state(True)


@pytest.mark.parametrize("make", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))])
def test_copies_of_the_users_own_module_are_plain(make):
    AcceleratorState._reset_state(True)
    accelerator = Accelerator(cpu=True, mixed_precision="bf16")
    net = Net()
    accelerator.prepare(net)
    copied = make(net)
    assert type(copied) is Net and copied.weight is not net.weight
    with torch.no_grad():
        copied.weight.fill_(2)
    assert copied(torch.ones(1, 3)).tolist() == [[6, 6, 6]]
    AcceleratorState._reset_state(True)
