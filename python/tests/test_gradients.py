# SPDX-License-Identifier: Apache-2.0
"""Gradients of two processes compared with PyTorch's DistributedDataParallel on the same data."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import ranks
import torch
from tiers import cases

from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import DDPCommunicationHookType, DistributedDataParallelKwargs

# PyTorch's DDP runs in the same processes on a copy of the module: the same kernels, the same
# buckets and one addition of two numbers per gradient, so results must be bit-identical.
PREAMBLE = """
    import copy, sys
    import torch
    from torch.nn.parallel import DistributedDataParallel
    from accelerate import Accelerator
    from accelerate.utils import DistributedDataParallelKwargs

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = torch.nn.Embedding(11, 8)
            self.norm = torch.nn.BatchNorm1d(8)
            self.frozen = torch.nn.Linear(8, 8)
            self.frozen.requires_grad_(False)
            self.unused = torch.nn.Linear(3, 3)
            self.out = torch.nn.Linear(8, 11, bias=False)
            self.out.weight = self.embed.weight      # shared
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, tokens, *, scale):
            self.calls = self.calls + 1 + scale      # another tensor, not in place
            hidden = self.norm(self.frozen(self.embed(tokens)))
            return {"head": {"logits": self.out(hidden) * scale}, "hidden": (hidden, [hidden * 2])}

    def loss_of(output, tokens):
        head = torch.nn.functional.cross_entropy(output["head"]["logits"], tokens)
        return head + output["hidden"][1][0].square().mean()

    accelerator = Accelerator(
        kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=True)])
    torch.manual_seed(7 + accelerator.process_index)   # rank 0's weights must win
    net = Net()
    theirs = DistributedDataParallel(copy.deepcopy(net), find_unused_parameters=True)
    ours = accelerator.prepare(net)
    rank = accelerator.process_index
"""


def test_gradients_equal_those_of_pytorch(tmp_path):
    script = PREAMBLE + """
    for step in range(3):
        tokens = torch.arange(6) * (rank + 2 + step) % 11
        for model in (theirs, ours):
            model.zero_grad()
        loss_of(theirs(tokens, scale=0.5), tokens).backward()
        accelerator.backward(loss_of(ours(tokens, scale=0.5), tokens))
        for (name, a), (_, b) in zip(theirs.module.named_parameters(), ours.named_parameters()):
            assert (a.grad is None) == (b.grad is None), name
            if a.grad is not None:
                assert torch.equal(a.grad, b.grad), (step, name, a.grad - b.grad)
        assert net.frozen.weight.grad is None
        with torch.no_grad():
            for model in (theirs.module, ours):
                for p in model.parameters():
                    if p.grad is not None:
                        p -= 0.1 * p.grad
    for (name, a), (_, b) in zip(theirs.module.named_buffers(), ours.named_buffers()):
        assert torch.equal(a, b), name
    for name, value in net.state_dict().items():
        both = accelerator.gather(value.float().reshape(1, -1))
        # Running statistics are each process's own until the next forward.
        assert "running" in name or torch.equal(both[0], both[1]), name
    print("equal", rank)
    """
    out = ranks.fork_ours(script, tmp_path)
    assert "equal 0" in out and "equal 1" in out


def test_gradients_wait_inside_of_no_sync_and_meet_after_it(tmp_path):
    script = PREAMBLE + """
    tokens = torch.arange(6) * (rank + 2) % 11
    with theirs.no_sync():
        loss_of(theirs(tokens, scale=1.0), tokens).backward()
    with accelerator.no_sync(ours):
        accelerator.backward(loss_of(ours(tokens, scale=1.0), tokens))
    local = accelerator.gather(ours.embed.weight.grad.reshape(1, -1))
    assert not torch.equal(local[0], local[1])
    loss_of(theirs(tokens, scale=1.0), tokens).backward()
    accelerator.backward(loss_of(ours(tokens, scale=1.0), tokens))
    assert torch.equal(ours.embed.weight.grad, theirs.module.embed.weight.grad)
    print("equal", rank)
    """
    out = ranks.fork_ours(script, tmp_path)
    assert "equal 0" in out and "equal 1" in out


def test_sparse_gradients_equal_those_of_pytorch(tmp_path):
    script = """
    import copy, torch
    from accelerate import Accelerator
    accelerator = Accelerator()
    torch.manual_seed(1)
    net = torch.nn.Sequential(torch.nn.Embedding(9, 2, sparse=True), torch.nn.Linear(2, 1))
    theirs = torch.nn.parallel.DistributedDataParallel(copy.deepcopy(net))
    ours = accelerator.prepare(net)
    tokens = torch.tensor([1, 2 + accelerator.process_index])
    theirs(tokens).sum().backward()
    accelerator.backward(ours(tokens).sum())
    for a, b in zip(theirs.parameters(), ours.parameters()):
        assert a.grad.is_sparse == b.grad.is_sparse
        assert torch.equal(a.grad.to_dense(), b.grad.to_dense())
    answer("equal")
    """
    assert ranks.run_ours(script, tmp_path) == ["equal", "equal"]


def test_sparse_gradients_train_with_a_communication_hook(tmp_path):
    script = """
    import torch
    from accelerate import Accelerator
    from accelerate.utils import DDPCommunicationHookType, DistributedDataParallelKwargs
    accelerator = Accelerator(kwargs_handlers=[
        DistributedDataParallelKwargs(comm_hook=DDPCommunicationHookType.BF16)])
    net = torch.nn.Sequential(torch.nn.Embedding(4, 2, sparse=True), torch.nn.Linear(2, 1))
    torch.nn.init.ones_(net[1].weight)
    net = accelerator.prepare(net)
    for _ in range(3):
        net.zero_grad()
        accelerator.backward(net(torch.tensor([accelerator.process_index])).sum())
        expected = torch.tensor([[0.5, 0.5], [0.5, 0.5], [0, 0], [0, 0]])
        assert torch.equal(net[0].weight.grad.to_dense(), expected)
    answer("equal")
    """
    assert ranks.run_ours(script, tmp_path) == ["equal", "equal"]


def test_parameters_may_be_frozen_and_unfrozen_after_prepare(tmp_path):
    script = """
    import os, torch
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState
    from accelerate.utils import DistributedDataParallelKwargs, FullyShardedDataParallelPlugin

    # What is trained in each two updates: the backbone, the head.
    PHASES = [(False, True), (True, True), (True, False), (True, True)]

    def make():
        torch.manual_seed(1)
        net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
        # A gradient of zeros would let a frozen weight decay.
        return net, torch.optim.SGD(net.parameters(), lr=0.2, momentum=0.5, weight_decay=0.1)

    def batch(step):
        return (torch.arange(12.0).view(4, 3) * 0.1 + 0.3 * step).sin()

    def loss_of(net, x):
        return torch.nn.functional.mse_loss(net(x), x.sum(1, keepdim=True))

    def freeze(net, phase):
        net[0].requires_grad_(phase[0])
        net[2].requires_grad_(phase[1])

    def train(window, accelerator=None, is_frozen_before=False):
        net, sgd = make()
        if is_frozen_before:
            freeze(net, PHASES[0])
        if accelerator is not None:
            net, sgd = accelerator.prepare(net, sgd)
        outputs, step = [], 0
        for phase in PHASES:
            freeze(net, phase)
            for _ in range(2):
                for micro in range(window):
                    x = batch(step)
                    step += 1
                    if accelerator is None:
                        (loss_of(net, x) / window).backward()
                        if micro < window - 1:
                            continue
                        sgd.step()
                        sgd.zero_grad()
                    else:
                        x = x[2 * accelerator.process_index :][:2]
                        with accelerator.accumulate(net):
                            accelerator.backward(loss_of(net, x))
                            sgd.step()
                            sgd.zero_grad()
                with torch.no_grad():
                    outputs.append(net(batch(0)))
        return torch.cat(outputs)

    for window in (1, 2):
        expected = train(window)
        for kwargs in (
            {},
            {"kwargs_handlers": [DistributedDataParallelKwargs(find_unused_parameters=True)]},
            {"fsdp_plugin": {"sharding_strategy": "SHARD_GRAD_OP"}},
            {"fsdp_plugin": {"sharding_strategy": "FULL_SHARD", "use_orig_params": True}},
        ):
            for is_frozen_before in (False, True):
                AcceleratorState._reset_state()
                os.environ.pop("ACCELERATE_USE_FSDP", None)
                own = dict(kwargs)
                if "fsdp_plugin" in own:
                    own["fsdp_plugin"] = FullyShardedDataParallelPlugin(**own["fsdp_plugin"])
                accelerator = Accelerator(gradient_accumulation_steps=window, **own)
                outputs = train(window, accelerator, is_frozen_before)
                torch.testing.assert_close(outputs, expected, rtol=1e-5, atol=1e-6)
    answer("equal")
    """
    assert ranks.run_ours(script, tmp_path) == ["equal", "equal"]


def test_a_parameter_of_no_model_is_said_once(tmp_path):
    script = """
    import torch, warnings
    from accelerate import Accelerator
    accelerator = Accelerator()
    net, later = torch.nn.Linear(2, 2), torch.nn.Linear(2, 1)
    temperature = torch.nn.Parameter(torch.ones(()))
    both = torch.optim.SGD([*net.parameters(), *later.parameters()], lr=0.1)
    both, net = accelerator.prepare(both, net)
    later = accelerator.prepare(later)

    def said(scale):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            accelerator.backward((later(net(torch.ones(1, 2))) * scale).sum())
        return [str(w.message) for w in caught if "to a prepared model" in str(w.message)]

    assert said(1) == []
    own = accelerator.prepare(torch.optim.SGD([temperature], lr=0.1))
    answer([*said(temperature), *said(temperature)])
    """
    for said in ranks.run_ours(script, tmp_path):
        assert len(said) == 1, said
        assert "Parameter 0 of 'optimizer_1' does not belong to a prepared model" in said[0]
    (tmp_path / "alone").mkdir()
    script = script.replace("answer(", "print(")
    assert "[]" in ranks.fork_ours(script, tmp_path / "alone", num_ranks=1)


def test_a_group_that_is_added_after_prepare_is_trained_in_parts(tmp_path):
    script = """
    import torch
    from accelerate import Accelerator
    from accelerate.utils import FullyShardedDataParallelPlugin
    plugin = FullyShardedDataParallelPlugin(sharding_strategy="FULL_SHARD")
    accelerator = Accelerator(fsdp_plugin=plugin)
    net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 1))
    torch.nn.init.ones_(net[0].bias)
    torch.nn.init.ones_(net[1].weight)
    parameters = [list(layer.parameters()) for layer in net]
    net, sgd = accelerator.prepare(net, torch.optim.SGD(parameters[1], lr=1.0))
    sgd.add_param_group({"params": parameters[0]})
    accelerator.backward(net(torch.ones(1, 2)).sum())
    sgd.step()
    state = accelerator.get_state_dict(net)
    if accelerator.is_main_process:
        assert torch.equal(state["0.bias"], torch.zeros(2)), state
    answer("trained")
    """
    assert ranks.run_ours(script, tmp_path) == ["trained", "trained"]


def test_a_users_exception_in_backward_stays_what_it_is(tmp_path):
    folder = tmp_path / "gloo"    # a path that messages about communication have too
    folder.mkdir()
    script = """
    import torch
    from accelerate import Accelerator

    class Bad(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            return x.clone()

        @staticmethod
        def backward(context, gradient):
            raise KeyError("mine")

    accelerator = Accelerator()
    net = accelerator.prepare(torch.nn.Linear(2, 1))
    try:
        accelerator.backward(Bad.apply(net(torch.ones(1, 2))).sum())
    except KeyError:
        answer("mine")
    """
    assert ranks.run_ours(script, folder) == ["mine", "mine"]


def test_gradients_that_do_not_meet_are_said_once_and_refused_in_debug_mode(tmp_path):
    script = PREAMBLE + """
    import copy
    import warnings
    tokens = torch.arange(6)

    def backward(model):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            accelerator.backward(loss_of(model(tokens, scale=1.0), tokens))
        return [str(warning.message) for warning in said if "[backward]" in str(warning.message)]

    # More forwards than backwards disarm nothing.
    ours(tokens, scale=1.0)
    said = backward(ours)
    sgd = accelerator.prepare(torch.optim.SGD(ours.parameters(), lr=0.1))
    sgd.step()
    said += backward(ours)
    sgd.step()
    assert said == [], said
    said = backward(accelerator.unwrap_model(ours))
    assert len(said) == 1 and "The gradients of 'model' were not synchronised" in said[0], said
    assert backward(accelerator.unwrap_model(ours)) == [], "it was said"
    said = backward(copy.deepcopy(ours))
    assert len(said) == 1 and "does not depend on any prepared model" in said[0], said
    assert backward(copy.deepcopy(ours)) == [], "it was said"
    answer("said")
    """
    assert ranks.run_ours(script, tmp_path) == ["said", "said"]
    folder = tmp_path / "debug"
    folder.mkdir()
    script = PREAMBLE + """
    import copy
    tokens = torch.arange(6)
    accelerator.backward(loss_of(copy.deepcopy(ours)(tokens, scale=1.0), tokens))
    """
    result = ranks.run(ranks.LAUNCH, folder, script, ACCELERATE_DEBUG_MODE="1")
    assert result.returncode != 0
    assert "[backward] This loss does not depend on any prepared model" in result.stderr


def test_gradients_that_do_not_meet_are_said_for_each_model(tmp_path):
    script = """
    import torch, warnings
    from accelerate import Accelerator

    def said_by(loss):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            accelerator.backward(loss.sum())
        return [str(w.message).partition(":")[0] for w in said if "[backward]" in str(w.message)]

    accelerator = Accelerator()
    nets = [torch.nn.Linear(2, 1) for _ in range(4)]
    *trained, beside = nets
    accelerator.prepare(*trained)
    x = torch.ones(1, 2)
    losses = [beside(x), nets[1](x), nets[0](x), nets[0](x) + nets[1](x) + nets[2](x), beside(x)]
    answer([said_by(loss) for loss in losses])
    """
    stayed = "[backward] The gradients of '{}' were not synchronised between processes"
    first, second = ranks.run_ours(script, tmp_path)
    assert first == second
    assert "does not depend on any prepared model" in first[0].pop()
    names = ("model_1", "model", "model_2")
    assert first == [[], *([stayed.format(name)] for name in names), []]


def test_a_model_that_was_evaluated_first_trains_together(tmp_path):
    script = """
    import torch
    from accelerate import Accelerator

    accelerator = Accelerator()
    torch.manual_seed(accelerator.process_index)
    net = torch.nn.Linear(3, 1)
    evaluated = accelerator.prepare_model(net, evaluation_mode=True)
    evaluated(torch.ones(1, 3))
    sgd = torch.optim.SGD(net.parameters(), lr=0.1)
    model, optimizer = accelerator.prepare(net, sgd)
    assert evaluated is net  # as in the original
    x = torch.full((1, 3), accelerator.process_index + 1.0)
    accelerator.backward(model(x).sum())
    gradient = net.weight.grad.tolist()
    optimizer.step()
    assert accelerator.unwrap_model(accelerator.prepare_model(net, evaluation_mode=True)) is net
    names = [name for name in accelerator._run.state.state_dict() if "weight" in name]
    answer([gradient, net.weight.tolist(), [n for n in names if n.startswith("model")]])
    """
    first, second = ranks.run_ours(script, tmp_path)
    assert first == second
    assert first[0] == [[1.5, 1.5, 1.5]]
    assert first[2] == ["model.weight"]


def test_weighted_losses_train_as_one_batch(tmp_path):
    script = """
    import torch
    from accelerate import Accelerator

    accelerator = Accelerator(gradient_accumulation_steps=2)
    torch.manual_seed(0)
    net = torch.nn.Linear(3, 1)
    data = torch.randn(12, 3)
    twin = torch.nn.Linear(3, 1)
    twin.load_state_dict(net.state_dict())
    model = accelerator.prepare(net)
    # 5 + 1 samples here, 2 + 4 there.
    parts = torch.split(data, [5, 1, 2, 4])[2 * accelerator.process_index :][:2]
    for part in parts:
        with accelerator.accumulate(model):
            weight = len(part) if len(part) % 2 else torch.tensor(len(part))
            accelerator.backward(model(part).square().mean(), weight=weight)
    twin(data).square().mean().backward()
    answer((net.weight.grad - twin.weight.grad).abs().max().item())
    """
    # Float32 and another order of sums.
    assert all(difference < 1e-6 for difference in ranks.run_ours(script, tmp_path))


@pytest.mark.parametrize(
    ("weighing", "steps", "each"), [(0, 1, False), (1, 1, False), (0, 2, False), (0, 2, True)]
)
def test_a_weight_on_some_ranks_is_named_where_gradients_meet(tmp_path, weighing, steps, each):
    script = """
    import torch
    from accelerate import Accelerator
    from accelerate.errors import MismatchError
    from accelerate.utils import GradientAccumulationPlugin

    plugin = GradientAccumulationPlugin(num_steps=STEPS, sync_each_batch=EACH)
    accelerator = Accelerator(cpu=True, gradient_accumulation_plugin=plugin)
    net = torch.nn.Linear(1, 1, bias=False)
    model = accelerator.prepare(net)
    x = torch.full((1, 1), 1.0 + accelerator.process_index)
    def window(**options):
        try:
            for num_done in range(STEPS):
                with accelerator.accumulate(model):
                    accelerator.backward(model(x).sum(), **options)
        except MismatchError as error:
            return [num_done, str(error)]
    weight = {"weight": 3} if accelerator.process_index == WEIGHING else {}
    said, found = [window(**weight)], None
    if accelerator.sync_gradients:
        # The window is over, and training goes on.
        model.zero_grad()
        window()
        found = net.weight.grad.item()
        model.zero_grad()
        said.append(window(**weight))
    answer([said, found])
    """
    values = {"STEPS": steps, "WEIGHING": weighing, "EACH": each}
    for name, value in values.items():
        script = script.replace(name, str(value))
    for said, found in ranks.run_ours(script, tmp_path):
        assert found == (None if each else 1.5)
        for num_done, text in said:
            assert num_done == (0 if each else steps - 1)
            assert "\n" not in text and " was called on rank 1 (" in text
            weighted, plain = "backward() with a weight", "backward() "
            assert weighted in text and plain in text.replace(weighted, "")


def test_a_weight_counts_on_its_own_rank_while_ranks_train_alone(tmp_path):
    script = """
    import torch
    from accelerate import Accelerator
    from accelerate.local_sgd import LocalSGD

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    net = torch.nn.Linear(1, 1, bias=False)
    model = accelerator.prepare(net)
    rank = accelerator.process_index
    found = []
    with LocalSGD(accelerator=accelerator, model=model, local_sgd_steps=2) as local_sgd:
        for x, weight in [(3.0, 1), (7.0, 3)]:
            with accelerator.accumulate(model):
                # One rank weighs, the other does not.
                options = {"weight": weight} if rank == 0 else {}
                accelerator.backward(model(torch.tensor([[x]])).sum(), **options)
        found.append(net.weight.grad.item())
    model.zero_grad()
    for _ in range(2):
        with accelerator.accumulate(model):
            accelerator.backward(model(torch.tensor([[1.0 + rank]])).sum(), weight=3 - rank)
    found.append(net.weight.grad.item())
    answer(found)
    """
    # Afterwards weights are synchronised again: (2 * 3 * 1 + 2 * 2 * 2) / 10.
    first, second = ranks.run_ours(script, tmp_path)
    assert first == pytest.approx([(1 * 3 + 3 * 7) / 4, 1.4])
    assert second == pytest.approx([(3 + 7) / 2, 1.4])


class _NoNumber:
    def __float__(self) -> float:
        raise ValueError


@pytest.mark.parametrize(
    "weight", ["3", b"3", [3], (3,), {}, 1j, object(), _NoNumber(), 10**400, np.ones((2, 2))]
)
def test_a_weight_that_is_no_number_is_refused_in_a_line(weight):
    with pytest.raises(ValueError) as caught:
        _backward(weight)
    said = str(caught.value)
    assert said.startswith("[Accelerator.backward] weight is ") and "\n" not in said
    assert type(weight).__name__ in said


@pytest.mark.parametrize(
    "weight",
    [
        -1,
        float("nan"),
        float("inf"),
        1e308,
        1e-320,
        torch.tensor(-1),
        torch.tensor(float("nan")),
        torch.tensor(float("inf")),
        torch.tensor(1j),
        torch.ones(2),
        torch.tensor([]),
        torch.ones(1, device="meta"),
        torch.ones(1).to_sparse(),
        torch.quantize_per_tensor(torch.ones(1), 1.0, 0, torch.quint8),
        torch.nested.nested_tensor([torch.ones(1)], layout=torch.jagged),
    ],
    ids=str,
)
def test_a_weight_that_counts_nothing_is_refused_in_a_line(weight):
    with pytest.raises(ValueError) as caught:
        _backward(weight)
    said = str(caught.value)
    assert said.startswith("[backward] weight is ") and "\n" not in said


@pytest.mark.parametrize(
    "weight",
    [
        3,
        3.0,
        True,
        np.int64(3),
        np.float32(3),
        np.array(3),
        np.array([[3]]),
        Fraction(3),
        torch.tensor([3]),
    ],
)
def test_whatever_is_a_number_is_a_weight(weight):
    # Of the single loss.
    assert _backward(weight) == 2.0


def _backward(weight) -> float:
    """The gradient of 2 w."""
    AcceleratorState._reset_state(True)
    accelerator = Accelerator(cpu=True)
    model = accelerator.prepare(torch.nn.Linear(1, 1, bias=False))
    accelerator.backward(model(torch.full((1, 1), 2.0)).sum(), weight=weight)
    return model.weight.grad.item()


def test_a_hook_of_the_users_on_an_accumulator_is_no_engine(tmp_path):
    script = """
    import torch
    from accelerate import Accelerator

    accelerator = Accelerator()
    net = torch.nn.Linear(3, 1)
    accumulator = net.weight.expand_as(net.weight).grad_fn.next_functions[0][0]
    calls = []
    accumulator.register_hook(lambda *_: calls.append(1))
    model = accelerator.prepare(net)
    x = torch.full((1, 3), accelerator.process_index + 1.0)
    accelerator.backward(model(x).sum())
    answer([net.weight.grad.tolist(), len(calls)])
    """
    assert ranks.run_ours(script, tmp_path) == [[[[1.5, 1.5, 1.5]], 1]] * 2


@pytest.mark.parametrize("steps", cases([1, 2, 3], small=[3]))
def test_accumulated_steps_equal_those_of_the_original(tmp_path, steps):
    script = f"""
    import torch
    from accelerate import Accelerator
    torch.manual_seed(0)
    accelerator = Accelerator(gradient_accumulation_steps={steps})
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    x = torch.randn(22, 4)
    data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
    loader = torch.utils.data.DataLoader(data, batch_size=3)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.05)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: 0.97 ** n)
    net, optimizer, loader, scheduler = accelerator.prepare(net, optimizer, loader, scheduler)
    trace = []
    for epoch in range(2):
        for a, b in loader:
            with accelerator.accumulate(net):
                loss = torch.nn.functional.mse_loss(net(a), b)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(net.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            trace.append([loss.item(), scheduler.get_last_lr()[0], accelerator.sync_gradients])
    answer(trace)
    """
    ours, theirs = ranks.run_ours(script, tmp_path), ranks.run_original(script, tmp_path)
    for mine, other in zip(ours, theirs, strict=True):
        for step, (a, b) in enumerate(zip(mine, other, strict=True)):
            assert a[1:] == b[1:], step
            # The norm for clipping is summed in another order: a unit in the last place per step.
            assert a[0] == pytest.approx(b[0], rel=2e-5), step


def test_masters_train_as_the_same_arithmetic_by_hand(tmp_path):
    """bf16 weights with fp32 master weights: compared with the same arithmetic by hand, and resumed
    from a checkpoint in the middle. Both processes have the same data, whose mean is exact."""
    script = """
    import torch
    from accelerate import Accelerator
    accelerator = Accelerator(mixed_precision="bf16", master_weights=True)
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    by_hand = [p.detach().clone().requires_grad_() for p in net.parameters()]
    alone = torch.optim.AdamW(by_hand, lr=0.05)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.05)
    net, optimizer = accelerator.prepare(net, optimizer)
    x, y = torch.randn(12, 4), torch.randn(12, 1)
    def train(step):
        output = net(x + step)
        accelerator.backward(torch.nn.functional.mse_loss(output, y))
        optimizer.step(); optimizer.zero_grad()
        return output
    def the_same(step):
        weights = [p.detach().bfloat16().requires_grad_() for p in by_hand]
        hidden = torch.tanh(torch.nn.functional.linear((x + step).bfloat16(), *weights[:2]))
        output = torch.nn.functional.linear(hidden, *weights[2:]).float()
        torch.nn.functional.mse_loss(output, y).backward()
        for parameter, weight in zip(by_hand, weights):
            parameter.grad = weight.grad.float()
        alone.step()
    for step in range(5):
        output = train(step)
        the_same(step)
    masters = accelerator.get_state_dict(net)
    folder = accelerator.save_state("masters")
    train(5)
    after = accelerator.get_state_dict(net)
    accelerator.load_state(folder)
    back = accelerator.get_state_dict(net)
    train(5)
    again = accelerator.get_state_dict(net)
    try:
        net.load_state_dict(masters)
        refused = ""
    except Exception as error:
        refused = str(error)
    same = lambda a, b: all(torch.equal(a[k], b[k]) for k in a)
    answer([
        str(output.dtype), str(net[0].weight.dtype), str(masters["0.weight"].dtype),
        all(torch.equal(m, p.detach()) for m, p in zip(masters.values(), by_hand)),
        same(masters, back), same(after, again), same(masters, after), refused,
    ])
    """
    for got in ranks.run_ours(script, tmp_path):
        assert got[:3] == ["torch.float32", "torch.bfloat16", "torch.float32"]
        assert got[3:7] == [True, True, True, False]
        assert "The parameters of this model have master weights" in got[7]


STRATEGIES = """
    import os
    import torch
    from accelerate import Accelerator
    from accelerate.errors import MismatchError
    from accelerate.state import AcceleratorState
    from accelerate.utils import DeepSpeedPlugin, FullyShardedDataParallelPlugin

    def with_strategies(num_steps):
        stage = lambda number: dict(deepspeed_plugin=DeepSpeedPlugin(
            zero_stage=number, gradient_accumulation_steps=num_steps, gradient_clipping=1e9))
        sharded = dict(fsdp_plugin=FullyShardedDataParallelPlugin(sharding_strategy="FULL_SHARD"))
        masters = dict(mixed_precision="bf16", master_weights=True)
        for kind in (lambda: {}, lambda: masters, lambda: stage(1), lambda: stage(2), lambda: sharded):
            AcceleratorState._reset_state()
            os.environ.update(ACCELERATE_USE_FSDP="false", ACCELERATE_USE_DEEPSPEED="false")
            accelerator = Accelerator(cpu=True, gradient_accumulation_steps=num_steps, **kind())
            net = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Linear(8, 1))
            yield accelerator, *accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1))

    def message_of(work):
        try:
            work()
        except MismatchError as error:
            return str(error)
"""


def test_a_rank_that_skips_an_update_is_named(tmp_path):
    script = """
    def train(accelerator, model, optimizer, skips):
        for micro_batch in range(4):
            with accelerator.accumulate(model):
                accelerator.backward(model(torch.ones(2, 3)).sum())
                if not (skips and micro_batch == 1 and accelerator.process_index == 1):
                    optimizer.step()
                optimizer.zero_grad()

    said = []
    for run in with_strategies(2):
        train(*run, skips=False)
        folder = run[0].save_state("saved")
        said.append(message_of(lambda: train(*run, skips=True)))
        # Stages 1 and 2 gather weights in the update itself.
        if "times" in said[-1]:
            run[0].load_state(folder)
            train(*run, skips=False)
    answer(said)
    """
    for ddp, masters, *gathering, sharded in ranks.run_ours(STRATEGIES + script, tmp_path):
        for text in (ddp, masters, sharded):
            assert text == (
                "[backward] Ranks called step() of the optimizer a different number of times: 2 times "
                "on rank 1 but 3 times on rank 0, so their weights now differ. Call it on all "
                "ranks or on none. load_state() makes the weights equal again"
            )
        assert all("was called on rank" in text for text in gathering)


def test_ranks_that_train_differently_are_named(tmp_path):
    script = """
    def new(first=True, **options):
        if first:
            AcceleratorState._reset_state()
        accelerator = Accelerator(cpu=True, **options)
        net = torch.nn.Linear(3, 1)
        return accelerator, *accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1))

    def leaves_out_the_end_of_an_accumulation():
        accelerator, model, optimizer = new(gradient_accumulation_steps=2)
        for micro_batch in range(8):
            try:
                with accelerator.accumulate(model):
                    loss = model(torch.ones(2, 3)).sum()
                    if micro_batch == 3 and accelerator.process_index == 1:
                        raise KeyError("a bad sample")
                    accelerator.backward(loss)
                    optimizer.step()
                    optimizer.zero_grad()
            except KeyError:
                pass

    def passes_its_own_metric():
        accelerator, model, optimizer = new()
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
        for epoch in range(4):
            accelerator.backward(model(torch.ones(2, 3)).sum())
            optimizer.step()
            optimizer.zero_grad()
            plateau.step(epoch if accelerator.process_index else -epoch)

    def leaves_out_zero_grad():
        accelerator, model, optimizer = new()
        for batch in range(3):
            accelerator.backward(model(torch.ones(2, 3)).sum())
            optimizer.step()
            if batch == 0 or accelerator.process_index == 0:
                optimizer.zero_grad()

    def clears_before_the_update():
        accelerator, model, optimizer = new()
        for batch in range(3):
            accelerator.backward(model(torch.ones(2, 3)).sum())
            if batch == 1 and accelerator.process_index == 1:
                optimizer.zero_grad()
            optimizer.step()
            optimizer.zero_grad()

    def is_not_the_only_accelerator():
        new()
        accelerator, model, optimizer = new(first=False)
        for batch in range(2):
            accelerator.backward(model(torch.ones(2, 3)).sum())
            if accelerator.process_index == 0:
                optimizer.step()

    import sys
    answer([message_of(work) for work in (
        leaves_out_the_end_of_an_accumulation, passes_its_own_metric, leaves_out_zero_grad,
        clears_before_the_update, is_not_the_only_accelerator,
    )])
    """
    for accumulation, metric, kept, cleared, second in ranks.run_ours(STRATEGIES + script, tmp_path):
        assert accumulation == (
            "[backward] Ranks skipped backward() at the end of gradient accumulation a different "
            "number of times: 0 times on rank 0 but 1 time on rank 1, so they accumulate different "
            "micro-batches. Skip a micro-batch on all ranks or on none. load_state() makes the ranks "
            "equal again"
        )
        assert metric.startswith(
            "[backward] The learning rates of the optimizer differ between ranks: 0.01 on rank 1 but "
            "0.1 on rank 0 "
        )
        assert "zero_grad() of the optimizer was called between the last two backward passes on" in kept
        assert kept.endswith(": called on rank 0 but not on rank 1. Call it on all ranks or on none")
        assert "step() after zero_grad() a different number of times: 0 times on rank 0" in cleared
        assert "Ranks called step() of the optimizer a different number of times: 0 times" in second


def test_an_unused_parameter_gets_a_hint_in_python(tmp_path):
    script = """
    import torch
    from accelerate import Accelerator

    class Half(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
        def forward(self, x):
            return self.a(x)

    accelerator = Accelerator()
    model = accelerator.prepare(Half())
    accelerator.backward(model(torch.ones(1, 1)).sum())
    try:
        model(torch.ones(1, 1))
    except ValueError as error:
        answer(str(error))
    """
    for said in ranks.run_ours(script, tmp_path):
        assert said == (
            "[forward] 'b.weight', 'b.bias' received no gradient in the last backward pass. Use it in "
            "the loss, freeze it, or pass DistributedDataParallelKwargs(find_unused_parameters=True)"
        )


def test_an_unknown_option_of_powersgd_is_told_the_known_ones():
    handler = DistributedDataParallelKwargs(
        comm_hook=DDPCommunicationHookType.POWER_SGD, comm_state_option={"rank": 2}
    )
    words = "Unknown PowerSGD option 'rank'. Expected one of: .*matrix_approximation_rank"
    with pytest.raises(ValueError, match=words):
        Accelerator(cpu=True, kwargs_handlers=[handler])


def test_parameters_that_were_made_anew_are_named(tmp_path):
    script = """
    import torch
    from torch.nn.utils import parametrize
    from accelerate import Accelerator

    class Twice(torch.nn.Module):
        def forward(self, weight):
            return weight * 2

    def message_of(work):
        try:
            work()
        except Exception as error:
            return f"{type(error).__name__} {error}"

    accelerator = Accelerator()
    x = torch.ones(1, 3)
    model = accelerator.prepare(torch.nn.Linear(3, 2))
    parametrize.register_parametrization(model, "weight", Twice())
    said = [message_of(lambda: accelerator.backward(model(x).sum()))]
    other = accelerator.prepare(torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1)))
    other[1].weight = torch.nn.Parameter(torch.ones(1, 2))
    said.append(message_of(lambda: other(x)))
    answer(said)
    """
    for anew, replaced in ranks.run_ours(script, tmp_path):
        assert anew.startswith("UsageError [backward] The gradient of 'weight' was not synchronised")
        assert replaced.startswith("UsageError [forward]")
        assert "'1.weight' was replaced by another tensor after" in replaced
        assert "\n" not in anew + replaced


def test_buffers_that_changed_are_rank_0s_or_named(tmp_path):
    script = """
    import torch
    from accelerate import Accelerator

    class Caching(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(3, 1)
            self.register_buffer("cache", None)

        def forward(self, x):
            if self.cache is None:
                self.cache = torch.full((len(x),), float(accelerator.process_index + 5))
            return self.layer(x)

    accelerator = Accelerator()

    def train(num_rows):
        net = Caching()
        model = accelerator.prepare(net)
        for _ in range(2):
            accelerator.backward(model(torch.ones(num_rows, 3)).sum())
            model = accelerator.prepare(net)
        return net.cache.tolist()

    values = train(2)
    try:
        train(2 + accelerator.process_index)
    except Exception as error:
        answer([values, type(error).__name__, str(error)])
    """
    for values, kind, message in ranks.run_ours(script, tmp_path):
        assert values == [5.0, 5.0]
        assert kind == "MismatchError" and "\n" not in message
        assert "'cache' is now Float[2]" in message and "'cache' is now Float[3]" in message


def warnings_of(script, tmp_path):
    """The `[backward]` warnings on each rank."""
    preamble = """
    import torch, warnings
    from accelerate import Accelerator
    said = []
    warnings.showwarning = lambda message, *_: said.append(str(message))
    warnings.simplefilter("always")
    """
    ending = """
    answer([text for text in said if "[backward]" in text])
    """
    return ranks.run_ours(preamble + script + ending, tmp_path)


SHARED_BATCHES = """
    accelerator = Accelerator(cpu=True)
    data = torch.arange(16.0).view(8, 2)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(data), batch_size=2)
    model = torch.nn.Linear(2, 1)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1e-3))
    loader = PREPARED
    for (x,) in loader:
        accelerator.backward(model(x).sum())
        optimizer.step()
        optimizer.zero_grad()
"""


def test_a_loader_that_was_not_prepared_is_warned_of_once(tmp_path):
    told = (
        "[backward] The inputs of the first 3 steps were the same on all ranks, so all ranks train "
        "on the same data. Pass the data loader to prepare()"
    )
    shared = SHARED_BATCHES.replace("PREPARED", "loader")
    assert warnings_of(shared, tmp_path) == [[told], []]


@pytest.mark.parametrize("options", ["", "dispatch_batches=True", "split_batches=True"])
def test_prepared_loaders_are_not_warned_of(tmp_path, options):
    prepared = SHARED_BATCHES.replace("PREPARED", "accelerator.prepare(loader)")
    if options:
        configuration = f"DataLoaderConfiguration({options})"
        prepared = "from accelerate.utils import DataLoaderConfiguration" + prepared.replace(
            "cpu=True", f"cpu=True, dataloader_config={configuration}"
        )
    assert warnings_of(prepared, tmp_path) == [[], []]


def test_an_optimizer_that_was_not_prepared_is_warned_of(tmp_path):
    script = """
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    model = accelerator.prepare(model)
    for _ in range(24):
        with accelerator.accumulate(model):
            accelerator.backward(model(torch.ones(1, 2)).sum())
            optimizer.step()
            optimizer.zero_grad()
    """
    told = (
        "[backward] No prepared optimizer trains 'model'. Pass its optimizer to prepare(); "
        "otherwise the optimizer steps in every micro-batch"
    )
    assert warnings_of(script, tmp_path) == [[told], []]


def test_a_loss_that_stays_nan_is_warned_of_once(tmp_path):
    script = """
    accelerator = Accelerator(cpu=True)
    model = accelerator.prepare(torch.nn.Linear(2, 1))
    for step in range(45):
        accelerator.backward(model(torch.ones(1, 2) * (1 if step < 2 else float("nan"))).sum())
    """
    told = (
        "[backward] The loss has been NaN or infinite for 20 steps in a row, so the weights are "
        "probably NaN too. Load an earlier checkpoint, then lower the learning rate or check the "
        "data"
    )
    assert warnings_of(script, tmp_path) == [[told], []]
