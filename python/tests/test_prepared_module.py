# SPDX-License-Identifier: Apache-2.0
"""A prepared module keeps the behaviour of its class, in every precision, alone and as one of two
processes."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import io
import pickle

import pytest
import ranks
import torch

from accelerate import Accelerator
from accelerate.errors import UsageError
from accelerate.state import AcceleratorState


@dataclasses.dataclass
class Output:
    loss: torch.Tensor
    parts: dict


class Net(torch.nn.Module):
    """Doubles."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 2)
        self.dropout = torch.nn.Dropout(0.5)
        self.register_buffer("seen", torch.zeros(()))
        self.note = "mine"

    def forward(self, x: torch.Tensor, *, factor: float = 2.0) -> Output:
        y = self.layer(x) * factor
        return Output(y.square().mean(), {"y": [y]})

    def helper(self) -> str:
        return self.note


@pytest.fixture(params=["no", "bf16"])
def accelerator(request):
    AcceleratorState._reset_state()
    yield Accelerator(cpu=True, mixed_precision=request.param)
    AcceleratorState._reset_state()


@pytest.fixture
def pair(accelerator):
    net = Net()
    return net, accelerator.prepare(net)


def as_torch_computes(accelerator, function, *args):
    """What torch computes in the precision of the run, as fp32."""
    is_reduced = accelerator.mixed_precision == "bf16"
    with torch.autocast("cpu", torch.bfloat16, enabled=is_reduced):
        return function(*args).float()


def test_it_is_of_the_users_class(pair):
    net, prepared = pair
    assert isinstance(prepared, Net) and isinstance(prepared, torch.nn.Module)
    assert type(prepared).__name__ == "Net" and type(prepared).__doc__ == "Doubles."
    assert repr(prepared) == repr(net)
    assert inspect.signature(prepared.forward) == inspect.signature(net.forward)


def test_names_and_tensors_are_the_users(pair):
    net, prepared = pair
    assert list(prepared.state_dict()) == ["seen", "layer.weight", "layer.bias"]
    assert all(a is b for a, b in zip(net.parameters(), prepared.parameters()))
    prepared.load_state_dict({k: torch.ones_like(v) for k, v in net.state_dict().items()})
    assert net.layer.bias.tolist() == [1, 1]


def test_attributes_and_modes_are_shared_both_ways(pair):
    net, prepared = pair
    assert prepared.helper() == "mine"
    prepared.note = "yours"
    prepared.extra = torch.nn.Linear(1, 1)
    assert net.note == "yours" and "extra.weight" in net.state_dict()
    del prepared.extra
    prepared.eval()
    assert not net.training and not net.dropout.training
    net.train()
    assert prepared.training
    with pytest.raises(AttributeError, match="'Net' object has no attribute 'nothing'"):
        _ = prepared.nothing


def test_dataclasses_and_keywords_pass(accelerator, pair):
    net, prepared = pair
    x = torch.ones(1, 3)
    out = prepared(x, factor=3.0)
    assert isinstance(out, Output)
    expected = as_torch_computes(accelerator, lambda: net.layer(x) * 3)
    assert out.parts["y"][0].dtype == torch.float32
    assert torch.equal(out.parts["y"][0], expected)


def test_hooks_run_once_per_call(accelerator, pair):
    net, prepared = pair
    calls = []
    prepared.register_forward_pre_hook(lambda *_: calls.append("before"))
    net.register_forward_hook(lambda *_: calls.append("after"))
    net.layer.register_full_backward_hook(lambda *_: calls.append("gradient"))
    accelerator.backward(prepared(torch.ones(1, 3)).loss)
    assert calls == ["before", "after", "gradient"]


def test_copies_are_plain_modules_of_their_own(pair):
    net, prepared = pair
    for copied in (
        copy.deepcopy(prepared),
        pickle.loads(pickle.dumps(prepared)),
        _saved_and_loaded(prepared),
    ):
        assert type(copied) is Net
        assert torch.equal(copied.layer.weight, net.layer.weight)
        assert copied.layer.weight is not net.layer.weight
        copied.note = "copy"
    assert net.note == "mine"
    both = copy.deepcopy({"a": prepared, "b": net})
    assert both["a"] is both["b"]


def _saved_and_loaded(module):
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def test_preparing_again_gives_the_same_object(accelerator, pair):
    net, prepared = pair
    assert accelerator.prepare(net) is prepared
    assert accelerator.prepare(prepared) is prepared
    assert accelerator.unwrap_model(prepared) is net
    net.layer = torch.nn.Linear(3, 2)
    with pytest.raises(UsageError, match="layer.weight"):
        accelerator.prepare(net)


def test_a_call_of_forward_by_name_passes_the_engine_too(accelerator, pair):
    net, prepared = pair
    x = torch.ones(1, 3)
    y = prepared.forward(x).parts["y"][0]
    assert torch.equal(y, as_torch_computes(accelerator, lambda: net(x).parts["y"][0]))


def test_a_replaced_forward_is_called(pair):
    net, prepared = pair
    net.forward = lambda x: x + 1
    assert prepared(torch.ones(1)).item() == 2


def test_buffers_may_come_and_go(pair):
    net, prepared = pair
    net.seen = None
    prepared(torch.ones(1, 3))
    del net.seen
    prepared(torch.ones(1, 3))
    net.register_buffer("seen", torch.ones(()))
    prepared(torch.ones(1, 3))


class Caching(torch.nn.Module):
    def __init__(self, first: torch.Tensor | None, then: torch.Tensor | None) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 1)
        self.register_buffer("cache", first, persistent=False)
        self.register_buffer("seen", torch.zeros(()))
        self.then = then

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.cache = self.then
        return self.layer(x) if self.cache is None else self.layer(x * self.cache.sum())


@pytest.mark.parametrize(
    ("first", "then"),
    [(None, torch.ones(3)), (torch.ones(1), torch.ones(4)), (torch.ones(2), None)],
    ids=["filled", "grown", "put away"],
)
def test_a_module_whose_forward_changed_its_buffers_is_prepared_again(accelerator, first, then):
    net = Caching(first, then)
    prepared = accelerator.prepare(net)
    x = torch.ones(2, 3)
    prepared(x)
    assert accelerator.prepare(net) is prepared
    for _ in range(2):
        accelerator.backward(prepared(x).sum())
        net.zero_grad()
    assert torch.equal(
        prepared(x).detach(), as_torch_computes(accelerator, lambda: net(x).detach())
    )
    state = accelerator._run.state.state_dict()
    names = {name.removeprefix("model.") for name in state if name.startswith("model.")}
    assert names - {"is_here"} == set(net.state_dict())


def test_a_class_of_the_users_comes_of_a_prepared_ones_type(accelerator, pair):
    _, prepared = pair

    class Sub(type(prepared)):  # type: ignore[misc]
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x).parts["y"][0] * 2

    class Named(type(prepared)):  # type: ignore[misc]
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return type(prepared).forward(self, x).parts["y"][0] * 2

    x = torch.ones(1, 3)
    named = Named()
    expected = named.layer(x) * 4
    assert torch.equal(named(x), expected) and torch.equal(named.forward(x), expected)
    assert torch.equal(
        accelerator.prepare(named)(x), as_torch_computes(accelerator, lambda: named.layer(x) * 4)
    )
    made = Sub()
    assert type(made) is Sub and Sub.__mro__ == (Sub, Net, *Net.__mro__[1:])
    x = torch.ones(1, 3)
    assert torch.equal(made(x), made.layer(x) * 4)
    twice = accelerator.prepare(made)
    kind = type(prepared)
    assert issubclass(Sub, kind) and isinstance(made, kind) and isinstance(twice, kind)
    assert isinstance(prepared, kind) and not isinstance(prepared, Sub)
    if kind is not Net:
        assert not isinstance(Net(), kind) and not issubclass(Net, kind)
    assert accelerator.unwrap_model(twice) is made
    assert torch.equal(twice(x), as_torch_computes(accelerator, lambda: made(x)))


def test_its_type_is_pickled_as_the_users_class(pair):
    _, prepared = pair
    assert pickle.loads(pickle.dumps(type(prepared))) is Net


def test_a_shallow_copy_is_the_users_own(pair):
    net, prepared = pair
    copied = copy.copy(prepared)
    assert type(copied) is Net and copied is not net and copied.layer is net.layer


def test_classes_that_watch_their_subclasses_see_none(accelerator):
    class Strict(torch.nn.Module):
        def __init_subclass__(cls, *, name):
            raise AssertionError("a subclass")

        def forward(self, x):
            return x

    assert accelerator.prepare(Strict())(torch.ones(1)).item() == 1


def test_scripted_modules_are_prepared(accelerator):
    net = torch.jit.script(torch.nn.Linear(2, 1))
    prepared = accelerator.prepare(net)
    expected = as_torch_computes(accelerator, net, torch.ones(1, 2))
    assert torch.equal(prepared(torch.ones(1, 2)), expected)


def test_an_exception_in_forward_leaves_no_trace(accelerator):
    class Fails(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(2, 2)
            self.fails = True

        def forward(self, x):
            if self.fails:
                raise KeyError("not there")
            return self.layer(x), {"half": self.layer(x)}

    prepared = accelerator.prepare(Fails())
    with pytest.raises(KeyError, match="not there"):
        prepared(torch.ones(1, 2))
    assert not torch.is_autocast_enabled("cpu")
    prepared.fails = False
    plain, nested = prepared(torch.ones(1, 2))
    expected = as_torch_computes(accelerator, prepared.layer, torch.ones(1, 2))
    for output in (plain, nested["half"]):
        assert output.dtype == torch.float32 and torch.equal(output, expected)


def test_gradients_are_those_of_all_processes(accelerator, pair):
    net, prepared = pair
    own = torch.full((1, 3), 1.0 + accelerator.process_index)
    accelerator.backward(prepared(own).parts["y"][0].sum())
    # d(2 w x) / dw = 2 x, averaged over processes.
    mean = (accelerator.num_processes + 1) / 2
    assert torch.equal(net.layer.weight.grad, torch.full((2, 3), 2 * mean))


def test_a_removed_parameter_raises_before_anything_is_trained(tmp_path):
    end = (
        "after the module was prepared. Change modules before the first prepare(), or use a new "
        "Accelerator"
    )
    gone = f"[forward] '2.weight' was removed {end}"
    other = f"[forward] '2.weight' was replaced by another tensor {end}"
    new = [gone, gone, other, other]
    frozen = other.replace("weight", "bias")
    expected = [[*new, gone, frozen, "trained", "trained"], [*new, *["trained"] * 4]]
    assert ranks.run_ours("prepared_module/changed_parameters.py", tmp_path) == [expected] * 2


def test_all_of_this_as_one_of_two_processes(tmp_path):
    out = ranks.fork_ours("prepared_module/run_pytest.py", tmp_path, __file__)
    assert out.count(" passed, 1 deselected") == 2
