# SPDX-License-Identifier: Apache-2.0
"""Processes that synchronise only every few steps, or have different numbers of batches."""

from __future__ import annotations

import pytest
import ranks
import torch

from accelerate import Accelerator
from accelerate.local_sgd import LocalSGD
from accelerate.state import AcceleratorState

LOCAL_SGD = """
import torch
from accelerate import Accelerator
from accelerate.local_sgd import LocalSGD

accelerator = Accelerator(cpu=True)
torch.manual_seed(0)
net = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
model, optimizer = accelerator.prepare(net, optimizer)
found = []
with LocalSGD(accelerator=accelerator, model=model, local_sgd_steps=3) as local_sgd:
    for step in range(5):
        torch.manual_seed(10 * step + accelerator.process_index)
        x = torch.rand(4, 3)
        accelerator.backward((model(x) - x.sum(1, keepdim=True)).square().mean())
        optimizer.step()
        optimizer.zero_grad()
        local_sgd.step()
        found.append([round(w, 5) for w in net.weight[0].tolist()])
found.append([round(w, 5) for w in net.weight[0].tolist()])
answer(found)
"""


def test_local_sgd_trains_as_the_originals(tmp_path):
    ours = ranks.run_ours(LOCAL_SGD, tmp_path)
    assert ours == ranks.run_original(LOCAL_SGD, tmp_path)
    # Alone for two steps, together after the third and at the end.
    assert [a == b for a, b in zip(*ours)] == [False, False, True, False, False, True]


FAILING = """
import torch
from accelerate import Accelerator
from accelerate.local_sgd import LocalSGD

accelerator = Accelerator(cpu=True)
net = torch.nn.Linear(1, 1, bias=False)
net.weight.data.fill_(0)
model = accelerator.prepare(net)
try:
    with LocalSGD(accelerator, model, 4) as local_sgd:
        net.weight.data.fill_(accelerator.process_index)
        local_sgd.step()
        raise KeyError
except KeyError:
    pass
own = net.weight.item()
accelerator.backward(model(torch.full((1, 1), 1.0 + accelerator.process_index)).sum())
answer([own, net.weight.grad.item()])
"""


def test_nothing_is_averaged_after_an_exception_and_gradients_meet_again(tmp_path):
    assert ranks.run_ours(FAILING, tmp_path) == [[0.0, 1.5], [1.0, 1.5]]


def test_local_sgd_alone_is_nothing():
    AcceleratorState._reset_state(True)
    net = torch.nn.Linear(1, 1)
    with LocalSGD(Accelerator(cpu=True), net, 2) as local_sgd:
        local_sgd.step()
    assert not local_sgd.enabled and local_sgd.num_steps == 1


UNPREPARED = """
import torch
from accelerate import Accelerator
from accelerate.local_sgd import LocalSGD
try:
    LocalSGD(Accelerator(cpu=True), torch.nn.Linear(1, 1), 2)
except ValueError as error:
    answer(str(error))
"""


def test_local_sgd_wants_a_prepared_model(tmp_path):
    for said in ranks.run_ours(UNPREPARED, tmp_path):
        assert "[LocalSGD] This Linear was not prepared" in said


JOIN = """
import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration

accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(even_batches=EVEN))
torch.manual_seed(0)
net = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
rows = torch.arange(7, dtype=torch.float32).reshape(7, 1)
loader = torch.utils.data.DataLoader(rows, batch_size=1)
model, optimizer, loader = accelerator.prepare(net, optimizer, loader)
num_batches = 0
with accelerator.join_uneven_inputs([model], even_batches=OVERRIDE):
    for batch in loader:
        accelerator.backward(model(batch).square().mean())
        optimizer.step()
        optimizer.zero_grad()
        num_batches += 1
weights = [round(p.item(), 5) for p in net.parameters()]
answer([num_batches, weights, loader.batch_sampler.even_batches])
"""


# The original joins on GPUs only; this is what it calls there.
TORCHS_JOIN = """
import torch
from torch.distributed.algorithms.join import Join

torch.distributed.init_process_group("gloo")
torch.manual_seed(0)
net = torch.nn.Linear(1, 1)
model = torch.nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
mine = BATCHES[torch.distributed.get_rank()]
with Join([model]):
    for row in mine:
        model(torch.full((1, 1), float(row))).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
answer([len(mine), [round(p.item(), 5) for p in net.parameters()]])
"""


@pytest.mark.parametrize(
    ("even", "override"), [("False", "None"), ("True", "False"), ("True", "None")]
)
def test_uneven_inputs_train_as_with_torchs_join(tmp_path, even, override):
    is_even = even == "True" and override == "None"
    ours = ranks.run_ours(JOIN.replace("EVEN", even).replace("OVERRIDE", override), tmp_path)
    batches = [[0, 2, 4, 6], [1, 3, 5, 0] if is_even else [1, 3, 5]]
    expected = ranks.run_original(TORCHS_JOIN.replace("BATCHES", str(batches)), tmp_path)
    assert [answer[:2] for answer in ours] == expected
    assert ours[0][1] == ours[1][1]
    assert ours[0][2] is (even == "True")  # as it was before the block


BY_HAND = """
import torch
from accelerate import Accelerator
accelerator = Accelerator(cpu=True)
rank = accelerator.process_index
torch.manual_seed(0)
net, twin = torch.nn.Linear(3, 1), torch.nn.Linear(3, 1)
twin.load_state_dict(net.state_dict())
batches = [[torch.randn(1 + (3 * r + i) % 5, 3) for i in range((2, 4)[r])] for r in range(2)]
model, optimizer = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1))
with accelerator.join_uneven_inputs([model] OPTIONS):
    for batch in batches[rank]:
        weight = {"weight": len(batch)} if WEIGHTED else {}
        accelerator.backward(model(batch).square().mean(), **weight)
        optimizer.step()
        optimizer.zero_grad()
plain = torch.optim.SGD(twin.parameters(), lr=0.1)
for i in range(4):
    here = [mine[i] for mine in batches if i < len(mine)]
    if WEIGHTED:
        loss = twin(torch.cat(here)).square().mean()
    else:
        loss = sum(twin(batch).square().mean() for batch in here) / 2
    plain.zero_grad()
    loss.backward()
    plain.step()
answer([net.weight.tolist(), (net.weight - twin.weight).abs().max().item()])
"""


@pytest.mark.parametrize("weighted", ["False", "True"])
@pytest.mark.parametrize("options", ["", ", even_batches=True"])
def test_loops_without_a_loader_are_joined_whatever_loaders_do(tmp_path, options, weighted):
    script = BY_HAND.replace("OPTIONS", options).replace("WEIGHTED", weighted)
    (first, difference), (second, _) = ranks.run_ours(script, tmp_path)
    # Float32 and another order of sums.
    assert first == second and difference < 1e-6


SOME_WEIGHTS = """
import torch
from accelerate import Accelerator
accelerator = Accelerator(cpu=True)
model = accelerator.prepare(torch.nn.Linear(1, 1))
weight = {} if accelerator.process_index == 0 else {"weight": 2}
try:
    with accelerator.join_uneven_inputs([model]):
        accelerator.backward(model(torch.ones(2, 1)).mean(), **weight)
except Exception as error:
    answer([type(error).__name__, str(error)])
"""


def test_a_weight_on_some_ranks_of_a_join_is_named_on_all(tmp_path):
    for kind, said in ranks.run_ours(SOME_WEIGHTS, tmp_path):
        assert kind == "MismatchError" and "\n" not in said
        assert "only some of them pass a loss weight" in said


UNJOINABLE = """
import torch
from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs
accelerator = Accelerator(
    cpu=True, kwargs_handlers=[DistributedDataParallelKwargs(static_graph=True)]
)
net = torch.nn.Linear(1, 1, bias=False)
model = accelerator.prepare(net)
still = accelerator.prepare_model(torch.nn.Linear(1, 1), evaluation_mode=True)
with accelerator.join_uneven_inputs([model, still]):
    accelerator.backward(model(torch.full((1, 1), 1.0 + accelerator.process_index)).sum())
try:
    with accelerator.join_uneven_inputs([model], even_batches=False):
        said = ""
except ValueError as error:
    said = str(error)
answer([net.weight.grad.item(), said])
"""


def test_a_model_that_cannot_be_joined_needs_even_loaders(tmp_path):
    for gradient, said in ranks.run_ours(UNJOINABLE, tmp_path):
        assert gradient == 1.5
        assert said.startswith("[join_uneven_inputs] The strategy of model 0 does not support")


LEFT = """
import torch
from accelerate import Accelerator
accelerator = Accelerator(cpu=True)
net = torch.nn.Linear(1, 1, bias=False)
model = accelerator.prepare(net)
try:
    with accelerator.join_uneven_inputs([model], even_batches=False):
        accelerator.backward(model(torch.ones(1, 1)).sum())
        raise KeyError
except KeyError:
    pass
net.weight.grad = None
accelerator.backward(model(torch.full((1, 1), 1.0 + accelerator.process_index)).sum())
answer(net.weight.grad.item())
"""


def test_a_join_that_an_exception_leaves_waits_for_nobody(tmp_path):
    assert ranks.run_ours(LEFT, tmp_path) == [1.5, 1.5]


UNFINISHED = """
import torch
from accelerate import Accelerator
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
net = torch.nn.Linear(1, 1, bias=False)
net.weight.data.fill_(0)
model, optimizer = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=1.0))
said = []
for counts in COUNTS:
    try:
        with accelerator.join_uneven_inputs([model]):
            for _ in range(counts[accelerator.process_index]):
                with accelerator.accumulate(model):
                    weight = {"weight": 1} if WEIGHTED else {}
                    accelerator.backward(model(torch.ones(1, 1)).sum(), **weight)
                    optimizer.step()
                    optimizer.zero_grad()
    except ValueError as error:
        said.append([type(error).__name__, str(error)])
answer([net.weight.item(), said])
"""


@pytest.mark.parametrize("weighted", ["False", "True"])
def test_a_rank_that_ends_in_the_middle_of_a_window_is_named_on_all(tmp_path, weighted):
    script = UNFINISHED.replace("WEIGHTED", weighted)
    for weight, said in ranks.run_ours(script.replace("COUNTS", "[(6, 3)]"), tmp_path):
        ((kind, line),) = said
        assert kind == "UsageError" and "\n" not in line
        assert line.startswith(
            "[join_uneven_inputs] Rank 1 ran out of batches in the middle of gradient "
            "accumulation: it has 1 micro-batch left over, but rank 0 has 0. The gradients of "
            "these micro-batches would be lost"
        )
        # Together once, then rank 0 alone, whose gradients are halved by the other's zeros.
        assert weight == pytest.approx(-3 if weighted == "True" else -2, abs=1e-6)


@pytest.mark.parametrize("weighted", ["False", "True"])
def test_ranks_that_end_at_the_same_place_of_a_window_go_on_from_there(tmp_path, weighted):
    script = UNFINISHED.replace("WEIGHTED", weighted).replace("COUNTS", "[(4, 2), (5, 3), (1, 1)]")
    for weight, said in ranks.run_ours(script, tmp_path):
        assert said == []
        # Five updates, two of them by rank 0 alone; the last began in the previous block.
        assert weight == pytest.approx(-5 if weighted == "True" else -4, abs=1e-6)


FORGOTTEN = """
import torch
from accelerate import Accelerator
class Critic(torch.nn.Linear):
    pass
accelerator = Accelerator(cpu=True)
rank = accelerator.process_index
net, critic = torch.nn.Linear(1, 1, bias=False), Critic(1, 1, bias=False)
critic.weight.data.fill_(2)
model, other = accelerator.prepare(net, critic)
x = torch.full((1, 1), 1.0 + rank)
try:
    with accelerator.join_uneven_inputs([model]):
        for _ in range((1, 3)[rank]):
            with torch.no_grad():
                seen = other(x).item()
            accelerator.backward(model(x).sum())
            accelerator.backward(other(x).sum())
except ValueError as error:
    said = [type(error).__name__, str(error)]
# Nothing was sent of it, and it trains on outside.
accelerator.backward(other(x).sum())
answer([seen, said, critic.weight.grad.item()])
"""


def test_a_model_that_a_join_leaves_out_is_named_where_it_trains(tmp_path):
    for rank, (seen, (kind, line), gradient) in enumerate(ranks.run_ours(FORGOTTEN, tmp_path)):
        assert kind == "UsageError" and "\n" not in line
        assert "The prepared Critic was called with gradients enabled, but was not passed to" in line
        assert seen == 2.0 * (1 + rank) and gradient == 1.5


GIVEN = """
import torch
from accelerate import Accelerator
accelerator = Accelerator(cpu=True)
raw = torch.nn.Sequential(torch.nn.Linear(1, 1))
model, optimizer = accelerator.prepare(raw, torch.optim.SGD(raw.parameters(), lr=0.1))
said = []
for given in (raw, model, None, [], [raw], [model, raw], [optimizer]):
    try:
        accelerator.join_uneven_inputs(given)
        said.append(None)
    except ValueError as error:
        said.append(str(error))
with accelerator.join_uneven_inputs((model,)):
    pass
answer(said)
"""


def test_a_join_wants_a_list_of_prepared_models(tmp_path):
    ours = ranks.run_ours(GIVEN, tmp_path)
    assert ours[0] == ours[1]
    here = "[join_uneven_inputs] "
    wants = [
        f"{here}Got a Sequential. Pass a list",
        f"{here}Got a Sequential. Pass a list",
        f"{here}Got a NoneType. Pass a list",
        f"{here}The list of models is empty",
        f"{here}This Sequential was not prepared",
        f"{here}This Sequential was not prepared",
        f"{here}This AcceleratedOptimizer was not prepared",
    ]
    for line, want in zip(ours[0], wants, strict=True):
        assert line.startswith(want) and "\n" not in line


def test_join_alone_is_nothing():
    AcceleratorState._reset_state(True)
    accelerator = Accelerator(cpu=True)
    model = accelerator.prepare(torch.nn.Linear(1, 1))
    with accelerator.join_uneven_inputs([model], even_batches=False):
        accelerator.backward(model(torch.ones(1, 1)).sum())


def test_join_alone_looks_at_no_model_as_the_original():
    AcceleratorState._reset_state(True)
    accelerator = Accelerator(cpu=True)
    for given in ([torch.nn.Linear(1, 1)], torch.nn.Linear(1, 1), []):
        with accelerator.join_uneven_inputs(given):
            pass
