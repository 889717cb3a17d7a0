# SPDX-License-Identifier: Apache-2.0
"""`Accelerator(fast=True)` compared with the same loop without it. Without a GPU, recorded work runs
again instead of being replayed, so that everything else is tested everywhere."""

from __future__ import annotations

import copy
import gc
import pickle
import random
import weakref

import accelerate._fast
import pytest
import torch
import torch.utils.checkpoint
from accelerate import Accelerator, _C
from accelerate.errors import UsageError
from accelerate.state import AcceleratorState
from eager_recorder import EagerRecorder
from torch.nn import functional

HAS_GPU = torch.cuda.is_available()


@pytest.fixture(autouse=True)
def fresh_state(monkeypatch):
    AcceleratorState._reset_state(True)
    if not HAS_GPU:
        monkeypatch.setattr(accelerate._fast, "DeviceRecorder", EagerRecorder)
        monkeypatch.setattr(_C, "has_device_graphs", lambda device: True)
    yield
    AcceleratorState._reset_state(True)


class Net(torch.nn.Module):
    """Returns a loss and the logits from which it is computed."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(8, 16)
        self.norm = torch.nn.LayerNorm(16)
        self.second = torch.nn.Linear(16, 3)
        self.scale = 1.0

    def forward(self, x, labels=None):
        if x.shape[-1] != 8:
            raise ValueError("bad input")
        hidden = self.norm(torch.tanh(self.first(x))).mean(dim=1)
        logits = self.second(hidden) * self.scale
        if labels is None:
            return logits
        return {"loss": functional.cross_entropy(logits, labels), "logits": logits}


def batch_of(number, length=4, device="cpu"):
    generator = torch.Generator().manual_seed(number)
    x = torch.randn(5, length, 8, generator=generator)
    labels = torch.randint(0, 3, (5,), generator=generator)
    return x.to(device), labels.to(device)


def made(fast=True, net=None, kind=torch.optim.AdamW, **options):
    AcceleratorState._reset_state(True)
    torch.manual_seed(3)
    accelerator = Accelerator(fast=fast, **options)
    net = Net() if net is None else net
    optimizer = kind(net.parameters(), lr=0.05)
    return accelerator, *accelerator.prepare(net, optimizer)


def report_of(accelerator):
    (report,) = accelerator.fast_report()
    return report


def reasons(accelerator):
    return set(report_of(accelerator)["eager"]) - {"warming up"}


def both(loop, **options):
    """Runs the loop with and without fast. Returns both results and the fast accelerator."""
    AcceleratorState._reset_state(True)
    expected = loop(*made(False, **options))
    fast = made(True, **options)
    return expected, loop(*fast), fast[0]


def assert_same(expected, found, tolerance=2e-5):
    assert len(expected) == len(found)
    for a, b in zip(expected, found):
        torch.testing.assert_close(
            torch.as_tensor(b).float().cpu(),
            torch.as_tensor(a).float().cpu(),
            rtol=tolerance,
            atol=tolerance,
        )


def weights(net):
    return [p.detach().float().cpu().clone() for p in net.parameters()]


def plain_loop(accelerator, net, optimizer, steps=10):
    losses = []
    for i in range(steps):
        x, labels = batch_of(i, device=accelerator.device)
        loss = net(x, labels=labels)["loss"]
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return [*losses, *weights(net)]


def test_trains_as_without_it():
    expected, found, accelerator = both(plain_loop)
    assert_same(expected, found)
    report = report_of(accelerator)
    assert report["model"] == "Net"
    assert report["replayed"] == 8 and report["graphs"] == 1
    assert report["eager"] == {"warming up": 2}


@pytest.mark.parametrize("precision", ["bf16", "fp16"] if HAS_GPU else ["bf16"])
def test_computes_in_mixed_precision(precision):
    expected, found, accelerator = both(plain_loop, mixed_precision=precision)
    # Half precision has 8 or 11 bits.
    assert_same(expected, found, 5e-2)
    assert report_of(accelerator)["replayed"] == 8


@pytest.mark.parametrize("num_steps", [1, 3])
@pytest.mark.parametrize("set_to_none", [True, False])
def test_accumulates(num_steps, set_to_none):
    def loop(accelerator, net, optimizer):
        losses = []
        for i in range(18):
            x, labels = batch_of(i, device=accelerator.device)
            with accelerator.accumulate(net):
                loss = net(x, labels)["loss"]
                accelerator.backward(loss)
                accelerator.clip_grad_norm_(net.parameters(), 0.5)
                optimizer.step()
                optimizer.zero_grad(set_to_none=set_to_none)
            losses.append(loss.detach())
        return [*losses, *weights(net)]

    expected, found, accelerator = both(loop, gradient_accumulation_steps=num_steps)
    assert_same(expected, found)
    assert report_of(accelerator)["replayed"] == 16


def test_accumulates_without_the_context_manager():
    def loop(accelerator, net, optimizer):
        for i in range(20):
            x, labels = batch_of(i, device=accelerator.device)
            net(x, labels)["loss"].backward()
            if i % 4 == 3:
                optimizer.step()
                optimizer.zero_grad()
        return weights(net)

    expected, found, accelerator = both(loop)
    assert_same(expected, found)
    assert report_of(accelerator)["replayed"] == 18


def test_leaves_gradients_that_somebody_holds():
    held = {}

    def loop(accelerator, net, optimizer):
        kept = []
        for i in range(8):
            x, labels = batch_of(i, device=accelerator.device)
            net(x, labels)["loss"].backward()
            gradients = [p.grad for p in net.parameters()]
            views = [g.view(-1)[:2] for g in gradients]
            kept.append((gradients, views, [g.clone() for g in gradients]))
            optimizer.zero_grad()
        held[accelerator._fast] = kept
        return [t for gradients, *_ in kept for t in gradients]

    expected, found, accelerator = both(loop)
    assert_same(expected, found)
    assert report_of(accelerator)["replayed"] == 6
    for gradients, views, copies in held[True]:
        for gradient, view, copied in zip(gradients, views, copies):
            assert torch.equal(gradient, copied)
            assert torch.equal(view, copied.view(-1)[:2])


def test_leaves_outputs_that_somebody_holds():
    big = torch.nn.Linear(8, 70_000, bias=False)

    def loop(accelerator, net, optimizer):
        outputs, copies = [], []
        for i in range(7):
            x, _ = batch_of(i, device=accelerator.device)
            out = net(x)
            out.sum().backward()
            outputs.append(out.detach()[0, 0, :9])
            copies.append(outputs[-1].clone())
            optimizer.zero_grad()
        for out, copied in zip(outputs, copies):
            assert torch.equal(out, copied)
        return copies

    accelerator, net, optimizer = made(True, net=big)
    loop(accelerator, net, optimizer)
    assert report_of(accelerator)["replayed"] == 5


def test_leaves_outputs_of_other_shapes():
    class Big(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(8, 70_000)

        def forward(self, x):
            return torch.tanh(self.linear(x) * 2)

    accelerator, net, optimizer = made(True, net=Big())
    held = []
    for i in range(24):
        x, _ = batch_of(i, length=2 + i % 4, device=accelerator.device)
        out = net(x)
        out.sum().backward()
        optimizer.zero_grad()
        held = [*held[-6:], (out, out.detach().clone())]
        assert all(torch.equal(out, copied) for out, copied in held)
    assert report_of(accelerator)["graphs"] == 4


def test_large_outputs_may_be_changed_in_place():
    class Big(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(8, 70_000)

        def forward(self, x):
            out = self.linear(x)
            # The gradient of the square needs the output.
            return {"loss": out.square().mean(), "out": out}

    def loop(accelerator, net, optimizer, changes):
        result = []
        for i in range(7):
            x, _ = batch_of(i, device=accelerator.device)
            out = net(x)
            if changes and i > 3:
                out["out"].detach().mul_(2)
            accelerator.backward(out["loss"])
            optimizer.step()
            optimizer.zero_grad()
            result.append(out["loss"].detach())
        return [*result, net.linear.bias.detach().clone()]

    # Without fast, autograd refuses the change.
    expected = loop(*made(False, net=_seeded(Big)), False)
    assert_same(expected, loop(*made(True, net=_seeded(Big)), True))


def _seeded(kind):
    torch.manual_seed(0)
    return kind()


def test_records_each_shape():
    def loop(accelerator, net, optimizer):
        losses = []
        for i in range(30):
            x, labels = batch_of(i, length=2 + i % 5, device=accelerator.device)
            loss = net(x, labels)["loss"]
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
        return [*losses, *weights(net)]

    expected, found, accelerator = both(loop)
    assert_same(expected, found)
    report = report_of(accelerator)
    assert report["graphs"] == 5
    assert report["replayed"] + report["eager"]["warming up"] == 30
    assert report["replayed"] >= 20


def test_follows_modes_attributes_and_frozen_parameters():
    def loop(accelerator, net, optimizer):
        result = []
        for i in range(40):
            x, labels = batch_of(i, device=accelerator.device)
            net.train(i % 8 < 5)
            net.scale = 2.0 if i >= 16 else 1.0
            net.first.requires_grad_(i % 10 < 6)
            loss = net(x, labels)["loss"]
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            result.append(loss.detach())
            with torch.no_grad():
                result.append(net(x))
        return [*result, *weights(net)]

    expected, found, accelerator = both(loop)
    assert_same(expected, found)
    assert report_of(accelerator)["replayed"] >= 20 and not reasons(accelerator)


def test_continues_after_an_exception():
    def loop(accelerator, net, optimizer):
        result = []
        for i in range(12):
            x, labels = batch_of(i, device=accelerator.device)
            if i in (1, 5):
                with pytest.raises(ValueError, match="bad input"):
                    net(x[..., :7], labels)
            if i == 7:
                with pytest.raises(RuntimeError, match="stop"):
                    loss = net(x, labels)["loss"]
                    raise RuntimeError("stop")
                del loss
            out = net(x, labels)
            accelerator.backward(out["loss"])
            optimizer.step()
            optimizer.zero_grad()
            result.append(out["loss"].detach())
        return [*result, *weights(net)]

    expected, found, accelerator = both(loop)
    assert_same(expected, found)
    assert report_of(accelerator)["replayed"] >= 9


def test_a_second_forward_before_the_backward_runs_eagerly():
    def loop(accelerator, net, optimizer):
        for i in range(8):
            x, labels = batch_of(i, device=accelerator.device)
            y, others = batch_of(100 + i, device=accelerator.device)
            first, second = net(x, labels)["loss"], net(y, others)["loss"]
            accelerator.backward(first + 2 * second)
            optimizer.step()
            optimizer.zero_grad()
        return weights(net)

    expected, found, accelerator = both(loop)
    assert_same(expected, found)
    assert reasons(accelerator) == {"another forward pass came before the backward pass"}


def test_retained_graphs_and_second_backward_passes():
    def loop(accelerator, net, optimizer):
        result = []
        for i in range(8):
            x, labels = batch_of(i, device=accelerator.device)
            out = net(x, labels)
            out["loss"].backward(retain_graph=True)
            out["logits"].sum().backward()
            with pytest.raises(RuntimeError, match="second time"):
                out["loss"].backward()
            result += [p.grad.clone() for p in net.parameters()]
            optimizer.step()
            optimizer.zero_grad()
        return result

    expected, found, accelerator = both(loop)
    assert_same(expected, found)


def test_gradients_that_a_loop_asks_for():
    def loop(accelerator, net, optimizer):
        result = []
        for i in range(8):
            x, labels = batch_of(i, device=accelerator.device)
            x.requires_grad_()
            loss = net(x, labels)["loss"]
            of_x, of_bias = torch.autograd.grad(loss, [x, net.second.bias])
            assert net.second.weight.grad is None
            result += [of_x, of_bias]
            loss = net(x, labels)["loss"]
            loss.backward(inputs=[net.first.weight, x])
            assert net.second.weight.grad is None
            result += [net.first.weight.grad, x.grad]
            optimizer.zero_grad()
        return result

    expected, found, accelerator = both(loop)
    assert_same(expected, found)
    assert report_of(accelerator)["replayed"] == 14


def test_gradient_penalties_run_eagerly():
    def loop(accelerator, net, optimizer):
        result = []
        for i in range(6):
            x, labels = batch_of(i, device=accelerator.device)
            x.requires_grad_(i > 2)
            loss = net(x, labels)["loss"]
            if i > 2:
                wanted = [x, net.first.weight]
                of_x, of_weight = torch.autograd.grad(loss, wanted, create_graph=True)
                loss = loss + of_x.square().sum() + of_weight.square().sum()
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            result.append(loss.detach())
        return [*result, *weights(net)]

    expected, found, accelerator = both(loop)
    assert_same(expected, found)
    assert "a backward pass uses create_graph" in reasons(accelerator)


@pytest.mark.parametrize("what", ["hook", "retain"])
def test_outputs_from_which_others_are_computed(what):
    def loop(accelerator, net, optimizer):
        result = []
        for i in range(6):
            x, labels = batch_of(i, device=accelerator.device)
            out = net(x, labels)
            if i > 3 and what == "hook":
                out["logits"].register_hook(lambda g: result.append(g.clone()) or 2 * g)
            if i > 3 and what == "retain":
                out["logits"].retain_grad()
            (out["loss"] + out["logits"].sum()).backward()
            if i > 3 and what == "retain":
                result.append(out["logits"].grad)
            result += [p.grad.clone() for p in net.parameters()]
            optimizer.zero_grad()
        return result

    expected, found, accelerator = both(loop)
    assert_same(expected, found)


def test_other_outputs_may_have_a_gradient():
    def loop(accelerator, net, optimizer):
        result = []
        for i in range(12):
            x, labels = batch_of(i, device=accelerator.device)
            out = net(x, labels)
            loss = out["loss"] if i % 3 else out["loss"] + out["logits"].square().mean()
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            result.append(loss.detach())
        return [*result, *weights(net)]

    expected, found, accelerator = both(loop)
    assert_same(expected, found)
    assert report_of(accelerator)["replayed"] >= 9


def test_hooks():
    def loop(accelerator, net, optimizer):
        calls = []
        net.register_forward_hook(lambda module, args, out: calls.append("forward"))
        net.second.bias.register_post_accumulate_grad_hook(lambda p: calls.append("accumulated"))
        for i in range(6):
            x, labels = batch_of(i, device=accelerator.device)
            if i == 4:
                handle = net.first.register_forward_hook(lambda *_: calls.append("inner"))
                other = net.first.bias.register_hook(lambda g: calls.append("gradient") or 3 * g)
            if i == 5:
                handle.remove()
                other.remove()
            accelerator.backward(net(x, labels)["loss"])
            optimizer.step()
            optimizer.zero_grad()
        return calls, weights(net)

    (calls, expected), (found_calls, found), accelerator = both(loop)
    assert calls == found_calls
    assert_same(expected, found)
    assert reasons(accelerator) == {"the submodule 'first' has hooks"}


class Changing(torch.nn.Module):
    """A model whose forward does what no graph can."""

    def __init__(self, what) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 3)
        self.what, self.count, self.seen = what, 0, []

    def forward(self, x):
        if self.what == "input":
            x.add_(1)
        out = self.linear(x)
        if self.what == "count":
            self.count += 1
        elif self.what == "list":
            self.seen.append(out.detach())
        elif self.what == "random":
            out = out * random.random()
        elif self.what == "object":
            return {"out": out, "cache": object()}
        return out if self.what != "object" else {"out": out}


@pytest.mark.parametrize(
    "what, why",
    [
        ("count", "its forward sets Changing.count"),
        ("list", "its forward sets Changing"),
        ("random", "its forward draws random numbers on the host"),
        ("object", "its forward returns an object of type object"),
        ("input", "its forward changes an input in place"),
    ],
)
def test_models_that_cannot_be_replayed(what, why):
    def loop(accelerator, net, optimizer):
        random.seed(1)
        for i in range(5):
            x, _ = batch_of(i, device=accelerator.device)
            out = net(x)
            (out["out"] if what == "object" else out).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        return [*weights(net), net.count, len(net.seen)]

    AcceleratorState._reset_state(True)
    torch.manual_seed(0)
    expected = loop(*made(False, net=Changing(what)))
    torch.manual_seed(0)
    fast = made(True, net=Changing(what))
    torch.manual_seed(0)
    assert len(loop(*fast)) == len(expected)
    assert reasons(fast[0]) == {why}
    assert report_of(fast[0])["replayed"] == 0


def test_weights_that_change_between_the_passes_are_an_error():
    accelerator, net, optimizer = made()
    plain_loop(accelerator, net, optimizer, steps=4)
    x, labels = batch_of(0, device=accelerator.device)
    loss = net(x, labels)["loss"]
    with torch.no_grad():
        net.first.weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_weights_may_move_and_be_loaded():
    def loop(accelerator, net, optimizer):
        result = []
        state = copy.deepcopy(net.state_dict())
        for i in range(16):
            x, labels = batch_of(i, device=accelerator.device)
            if i == 5:
                net.load_state_dict(state)
            if i == 9:
                for p in net.parameters():
                    p.data = p.data.clone()
            loss = net(x, labels)["loss"]
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            result.append(loss.detach())
        return [*result, *weights(net)]

    expected, found, accelerator = both(loop)
    assert_same(expected, found)
    assert not reasons(accelerator) and report_of(accelerator)["replayed"] == 13


def test_resumes_bit_for_bit(tmp_path):
    accelerator, net, optimizer = made()
    plain_loop(accelerator, net, optimizer, steps=5)
    accelerator.save_state(str(tmp_path / "saved"))
    expected = plain_loop(accelerator, net, optimizer, steps=5)
    for run in ((accelerator, net, optimizer), made()):
        run[0].load_state(str(tmp_path / "saved"))
        found = plain_loop(*run, steps=5)
        assert len(found) == len(expected)
        for a, b in zip(expected, found):
            assert torch.equal(torch.as_tensor(a), torch.as_tensor(b))


def test_copies_and_pickles_are_plain_modules():
    accelerator, net, optimizer = made()
    plain_loop(accelerator, net, optimizer, steps=4)
    for plain in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert type(plain) is Net
        x, labels = batch_of(0, device=accelerator.device)
        plain(x, labels)["loss"].backward()
    assert report_of(accelerator)["replayed"] == 2


def test_releases_the_model():
    accelerator, net, optimizer = made()
    plain_loop(accelerator, net, optimizer, steps=4)
    ref = weakref.ref(accelerator.unwrap_model(net))
    accelerator.free_memory()
    del accelerator, net, optimizer
    AcceleratorState._reset_state(True)
    gc.collect()
    assert ref() is None


def test_parameters_that_a_module_keeps_elsewhere():
    class Recurrent(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(4)
            self.lstm = torch.nn.LSTM(8, 5, batch_first=True)
            self.head = torch.nn.Linear(5, 3)
            # Used under two names, and by itself.
            self.again = self.head.weight

        def forward(self, x, labels):
            out, _ = self.lstm(x)
            logits = self.head(out.mean(1)) + self.again.sum()
            return {"loss": functional.cross_entropy(logits, labels), "weight": self.head.weight}

    def loop(accelerator, net, optimizer):
        for i in range(8):
            x, labels = batch_of(i, device=accelerator.device)
            out = net(x, labels)
            assert out["weight"] is net.head.weight
            accelerator.backward(out["loss"] + out["weight"].square().sum())
            optimizer.step()
            optimizer.zero_grad()
        return weights(net)

    expected = loop(*made(False, net=Recurrent()))
    fast = made(True, net=Recurrent())
    # Kernels of LSTMs on GPUs add in no fixed order.
    assert_same(expected, loop(*fast), 1e-3 if HAS_GPU else 2e-5)


class Scaled(torch.nn.Module):
    """Multiplies by an attribute, and returns two heads."""

    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Linear(8, 8)
        self.heads = torch.nn.ModuleList([torch.nn.Linear(8, 1), torch.nn.Linear(8, 1)])
        self.factor: object = [1.0]

    def forward(self, x):
        hidden = self.body(x) * self.factor[0]
        return [head(hidden).sum() for head in self.heads]


def gradients(net):
    return [None if p.grad is None else p.grad.clone() for p in net.parameters()]


def scaled_loop(fast, change):
    torch.manual_seed(6)
    accelerator, net, optimizer = made(fast, net=Scaled())
    result = []
    for i in range(10):
        x, _ = batch_of(i, device=accelerator.device)
        result.append(change(net, i, x))
        optimizer.zero_grad()
    return result, accelerator


def test_items_of_lists_are_attributes():
    def change(net, i, x):
        net.factor[0] = float(i % 2)
        sum(net(x)).backward()
        return None

    _, accelerator = scaled_loop(True, change)
    assert report_of(accelerator)["graphs"] == 2


def test_parameters_of_outputs_without_a_gradient_have_none():
    def change(net, i, x):
        net(x)[i % 3 == 0].backward()
        return [g is None for g in gradients(net)]

    expected, found = (scaled_loop(fast, change)[0] for fast in (False, True))
    assert found == expected


def test_tensors_that_are_neither_inputs_nor_parameters_get_gradients():
    def change(net, i, x):
        net.factor = leaf = torch.full((1,), 2.0, device=x.device, requires_grad=True)
        sum(net(x)).backward()
        return leaf.grad

    (expected, _), (found, accelerator) = (scaled_loop(fast, change) for fast in (False, True))
    assert_same(expected, found)
    (why,) = reasons(accelerator)
    assert why == "its forward uses a tensor that is neither an input nor a parameter"


def test_a_new_parameter_may_have_the_memory_of_the_old_one():
    def change(net, i, x):
        if i == 5:
            net.body.weight = torch.nn.Parameter(net.body.weight.data)
        weight = net.body.weight
        sum(net(x)).backward()
        assert net.body.weight is weight
        return weight.grad.clone()

    expected, found = (scaled_loop(fast, change)[0] for fast in (False, True))
    assert_same(expected, found)


def test_gradients_of_all_parameters_that_a_loop_asks_for():
    def change(net, i, x):
        return torch.cat(
            [g.view(-1) for g in torch.autograd.grad(net(x)[0], [*net.body.parameters()])]
        )

    expected, found = (scaled_loop(fast, change)[0] for fast in (False, True))
    assert_same(expected, found)


def test_hooks_of_parameters_that_come_after_the_forward_pass():
    def change(net, i, x):
        loss = net(x)[0]
        handle = net.body.weight.register_hook(lambda g: g * 3)
        loss.backward()
        handle.remove()
        return net.body.weight.grad.clone()

    expected, found = (scaled_loop(fast, change)[0] for fast in (False, True))
    assert_same(expected, found)


@pytest.mark.parametrize("whole", [False, True])
def test_reentrant_checkpoints_run_eagerly(whole):
    checkpoint = torch.utils.checkpoint.checkpoint

    class Checkpointed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = torch.nn.Linear(8, 8), torch.nn.Linear(8, 1)

        def forward(self, x):
            if whole:
                # No path of autograd's graph leads to the parameters.
                return checkpoint(self.body, x.requires_grad_(), use_reentrant=True)
            return checkpoint(self.second, self.first(x), use_reentrant=True)

        def body(self, x):
            return self.second(self.first(x))

    def loop(accelerator, net, optimizer):
        for i in range(5):
            x, _ = batch_of(i, device=accelerator.device)
            net(x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        return weights(net)

    torch.manual_seed(1)
    net = Checkpointed()
    expected = loop(*made(False, net=copy.deepcopy(net)))
    fast = made(True, net=net)
    assert_same(expected, loop(*fast))
    assert reasons(fast[0]) == {"its forward uses checkpoints with use_reentrant=True"}


def test_a_prepared_model_in_a_prepared_model():
    class Outer(torch.nn.Module):
        def __init__(self, inner) -> None:
            super().__init__()
            self.inner, self.head = inner, torch.nn.Linear(3, 2)

        def forward(self, x):
            return self.head(self.inner(x))

    def train(fast):
        accelerator, inner, _ = made(fast)
        torch.manual_seed(2)
        outer = accelerator.prepare(Outer(inner))
        result = []
        for i in range(8):
            x, _ = batch_of(i, device=accelerator.device)
            outer(x).sum().backward()
            result += gradients(outer)
            outer.zero_grad()
        return result

    assert_same(train(False), train(True))


def test_two_models_take_turns():
    def loop(accelerator, net, optimizer):
        torch.manual_seed(1)
        other = torch.nn.Linear(3, 1)
        other = accelerator.prepare(other)
        for i in range(8):
            x, _ = batch_of(i, device=accelerator.device)
            other(net(x)).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        return [*weights(net), other.weight.grad]

    expected, found, accelerator = both(loop)
    assert_same(expected, found)
    assert [report["replayed"] for report in accelerator.fast_report()] == [6, 6]


def test_says_once_why_a_model_runs_eagerly(caplog, monkeypatch):
    if not HAS_GPU:
        monkeypatch.undo()
    accelerator, net, optimizer = made(cpu=True)
    plain_loop(accelerator, net, optimizer, steps=4)
    said = "[fast] Net runs eagerly: cpu has no device graphs. Use a GPU"
    assert sum(record.message.endswith(said) for record in caplog.records) == 1
    assert report_of(accelerator) == {
        "model": "Net",
        "replayed": 0,
        "graphs": 0,
        "eager": {"cpu has no device graphs. Use a GPU": 4},
    }


def test_reads_the_setting_of_the_launcher(monkeypatch):
    monkeypatch.setenv("ACCELERATE_FAST", "1")
    accelerator, net, optimizer = made(None)
    plain_loop(accelerator, net, optimizer, steps=4)
    assert report_of(accelerator)["replayed"] == 2
    assert made(False)[0].fast_report() == []
    with pytest.raises(UsageError, match="fast is 1, expected True or False"):
        made(1)


@pytest.mark.skipif(not HAS_GPU, reason="there is no GPU")
def test_needs_no_more_memory_with_time():
    accelerator, net, optimizer = made()
    used = []
    for i in range(2000):
        x, labels = batch_of(i, length=2 + i % 20, device=accelerator.device)
        accelerator.backward(net(x, labels)["loss"])
        optimizer.step()
        optimizer.zero_grad()
        if i in (200, 1999):
            torch.cuda.synchronize()
            used.append(torch.cuda.memory_allocated())
    assert used[1] <= used[0]
    assert report_of(accelerator)["graphs"] == 20


@pytest.mark.skipif(not HAS_GPU, reason="there is no GPU")
@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_a_transformers_model_with_dropout_learns_and_resumes_bit_for_bit(tmp_path, precision):
    transformers = pytest.importorskip("transformers")

    def model():
        torch.manual_seed(5)
        config = transformers.BertConfig(
            hidden_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=128,
            vocab_size=100,
            num_labels=2,
        )
        return transformers.BertForSequenceClassification(config)

    def train(accelerator, net, optimizer, steps):
        losses = []
        for i in steps:
            ids = torch.randint(0, 100, (16, 12), generator=torch.Generator().manual_seed(i))
            labels = (ids[:, 0] > 50).long()
            ids, labels = ids.to(accelerator.device), labels.to(accelerator.device)
            loss = net(input_ids=ids, labels=labels).loss
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach().clone())
        return losses

    options = {"mixed_precision": precision}
    accelerator, net, optimizer = made(net=model(), **options)
    for group in optimizer.param_groups:
        group["lr"] = 2e-3
    first = train(accelerator, net, optimizer, range(60))
    accelerator.save_state(str(tmp_path / "saved"))
    expected = train(accelerator, net, optimizer, range(60, 90))
    assert torch.stack(expected[-10:]).mean() < 0.8 * torch.stack(first[:10]).mean()
    assert not reasons(accelerator)
    accelerator, net, optimizer = made(net=model(), **options)
    accelerator.load_state(str(tmp_path / "saved"))
    found = train(accelerator, net, optimizer, range(60, 90))
    assert torch.equal(torch.stack(expected), torch.stack(found))


class Loop:
    """A training loop whose details are drawn from a seed."""

    def __init__(self, seed) -> None:
        draw = random.Random(seed)
        self.precision = draw.choice(["no", "bf16"])
        self.num_steps = draw.choice([1, 1, 2, 4])
        self.clips = draw.random() < 0.5
        self.lengths = draw.choice([[4], [4], [2, 3, 4]])
        self.evaluates = draw.random() < 0.4
        self.raises_at = draw.choice([None, None, 9])
        self.holds = draw.random() < 0.4
        self.set_to_none = draw.random() < 0.7
        self.freezes_at = draw.choice([None, None, 12])
        self.rolls_back_at = draw.choice([None, None, 15])
        self.kind = draw.choice([torch.optim.AdamW, torch.optim.Adam, torch.optim.SGD])

    def options(self):
        return {
            "mixed_precision": self.precision,
            "gradient_accumulation_steps": self.num_steps,
            "kind": self.kind,
        }

    def __call__(self, accelerator, net, optimizer):
        held, result, state = [], [], None
        scheduler = accelerator.prepare(
            torch.optim.lr_scheduler.StepLR(optimizer.optimizer, 3, 0.7)
        )
        for i in range(30):
            x, labels = batch_of(i, self.lengths[i % len(self.lengths)], accelerator.device)
            if i == self.freezes_at:
                net.first.requires_grad_(False)
            if i == 6:
                state = copy.deepcopy(net.state_dict())
            if i == self.rolls_back_at:
                net.load_state_dict(state)
            if i == self.raises_at:
                with pytest.raises(ValueError, match="bad input"):
                    net(x[..., :5], labels)
            with accelerator.accumulate(net):
                out = net(x, labels)
                accelerator.backward(out["loss"])
                if self.clips and accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(net.parameters(), 0.3)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad(set_to_none=self.set_to_none)
            result.append(out["loss"].detach())
            if self.holds:
                held.append((out["logits"], out["logits"].detach().clone()))
            if self.evaluates and i % 7 == 6:
                net.eval()
                with torch.no_grad():
                    result.append(net(x))
                net.train()
        assert all(torch.equal(logits, copied) for logits, copied in held)
        return [*result, *weights(net)]


@pytest.mark.parametrize("seed", range(60))
def test_random_loops(seed):
    loop = Loop(seed)
    expected, found, accelerator = both(loop, **loop.options())
    # bf16 has 8 bits, and its errors grow over the steps.
    assert_same(expected, found, 2e-1 if loop.precision == "bf16" else 1e-4)
    report = report_of(accelerator)
    warm_ups = report["eager"].get("warming up", 0)
    assert warm_ups <= 2 + 2 * len(loop.lengths) + (loop.num_steps > 1)
    assert report["replayed"] >= 0.9 * (30 - warm_ups)
