# SPDX-License-Identifier: Apache-2.0
"""Unusual values in checkpoints: saved exactly, or rejected by name when they are saved."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import json
import pathlib
import sys
import types
import zoneinfo
from collections import Counter, defaultdict, deque

import pytest
import torch
from new_run import Kept
from safetensors.torch import load_file

from accelerate import Accelerator
from accelerate.errors import UsageError
from accelerate.state import AcceleratorState


class Buffered(torch.nn.Module):
    def __init__(self, buffer: torch.Tensor):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(2))
        self.register_buffer("kept", buffer)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_conjugate_is_saved_with_its_values(tmp_path, asynchronous):
    base = torch.randn(3, dtype=torch.complex64)
    accelerator = Accelerator(cpu=True)
    accelerator.prepare(Buffered(base.conj()))
    accelerator.save_state(tmp_path / "state", asynchronous=asynchronous)
    accelerator.wait_for_save()
    expected = base.conj().resolve_conj()
    written = load_file(tmp_path / "state" / "model.safetensors")["kept"]
    assert torch.equal(written, expected)
    accelerator.save_model(Buffered(base.conj()), tmp_path / "model")
    written = load_file(tmp_path / "model" / "model.safetensors")["kept"]
    assert torch.equal(written, expected)


def test_a_tensor_and_its_conjugate_are_two(tmp_path):
    base = torch.randn(3, dtype=torch.complex64)
    model = Buffered(base)
    model.register_buffer("other", base.conj())
    Accelerator(cpu=True).save_model(model, tmp_path)
    written = load_file(tmp_path / "model.safetensors")
    assert torch.equal(written["kept"], base)
    assert torch.equal(written["other"], base.conj().resolve_conj())


UNFIT = {
    "sparse": lambda: torch.eye(3).to_sparse(),
    "quantized": lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
}


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("make", UNFIT.values(), ids=UNFIT.keys())
def test_values_that_files_cannot_contain_are_named_in_an_error(tmp_path, make, asynchronous):
    accelerator = Accelerator(cpu=True)
    accelerator.prepare(Buffered(make()))
    with pytest.raises(UsageError, match=r"'kept' has dtype .* safe_serialization=False"):
        accelerator.save_state(tmp_path / "state", asynchronous=asynchronous)
        accelerator.wait_for_save()
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize("make", UNFIT.values(), ids=UNFIT.keys())
def test_a_pickle_holds_it_and_is_loaded(tmp_path, make):
    accelerator = Accelerator(cpu=True)
    model = accelerator.prepare(Buffered(make()))
    before = model.weight.detach().clone()
    accelerator.save_state(tmp_path / "state", safe_serialization=False)
    with torch.no_grad():
        model.weight.zero_()
    accelerator.load_state(tmp_path / "state")
    assert torch.equal(model.weight, before)


class Counting(torch.optim.SGD):
    """Keeps state that belongs to no parameter, and a number of more than 64 bits."""

    def step(self, closure=None):
        result = super().step(closure)
        self.state["all"] = {"num_steps": 3}
        self.state["name"] = "counting"
        self.state[self.param_groups[0]["params"][0]]["large"] = 2**70
        return result


def test_an_optimizer_may_keep_what_it_likes(tmp_path):
    def prepared():
        model = torch.nn.Linear(2, 1)
        optimizer = Counting(model.parameters(), lr=0.1, momentum=0.9)
        accelerator = Accelerator(cpu=True)
        return accelerator, *accelerator.prepare(model, optimizer)

    accelerator, model, optimizer = prepared()
    accelerator.backward(model(torch.ones(1, 2)).sum())
    optimizer.step()
    accelerator.save_state(tmp_path / "state")
    again, _, loaded = prepared()
    again.load_state(tmp_path / "state")
    state = loaded.state_dict()["state"]
    assert state["all"] == {"num_steps": 3}
    assert state["name"] == optimizer.state_dict()["state"]["name"]
    assert state[0]["large"] == 2**70


def run_of(optimizer, schedule):
    model = torch.nn.Linear(2, 1)
    optimizer = optimizer(model)
    accelerator = Accelerator(cpu=True)
    return accelerator, *accelerator.prepare(model, optimizer, schedule(optimizer))


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=0.1)


def adamw_of_two_groups(model):
    return torch.optim.AdamW([{"params": [p]} for p in model.parameters()], lr=0.1)


def steps(optimizer):
    return torch.optim.lr_scheduler.StepLR(optimizer, 2)


def function(optimizer):
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5)


@pytest.mark.parametrize(
    "optimizer, schedule, message",
    [
        (adamw_of_two_groups, steps, "Create the same groups before loading"),
        (adamw, function, "The saved state of type StepLR lacks lr_lambdas, which LambdaLR needs"),
    ],
)
def test_what_does_not_fit_changes_nothing(tmp_path, optimizer, schedule, message):
    accelerator, model, used, _ = run_of(adamw, steps)
    accelerator.backward(model(torch.ones(1, 2)).sum())
    used.step()
    accelerator.save_state(tmp_path / "state")
    other, model, used, scheduler = run_of(optimizer, schedule)
    before = [model.weight.detach().clone(), used.state_dict(), scheduler.state_dict()]
    with pytest.raises(UsageError, match=message):
        other.load_state(tmp_path / "state")
    assert torch.equal(model.weight, before[0])
    assert used.state_dict() == before[1]
    assert scheduler.state_dict() == before[2]


@pytest.mark.parametrize(
    "optimizer, schedule, message",
    [
        (lambda model: torch.optim.Adam(model.parameters()), steps, "but the optimizer is Adam"),
        (
            adamw,
            lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.9),
            "this scheduler is of type Expon",
        ),
    ],
)
def test_the_state_of_a_different_class_raises(tmp_path, optimizer, schedule, message):
    accelerator, *_ = run_of(adamw, steps)
    accelerator.save_state(tmp_path / "state")
    other, *_ = run_of(optimizer, schedule)
    with pytest.warns(UserWarning, match=message):
        other.load_state(tmp_path / "state")


def of_kind(kind, **options):
    return lambda model: getattr(torch.optim, kind)(model.parameters(), lr=0.1, **options)


def saved_after_a_step(tmp_path, optimizer):
    accelerator, model, used, _ = run_of(optimizer, steps)
    accelerator.backward(model(torch.ones(1, 2)).sum())
    used.step()
    accelerator.save_state(tmp_path / "state")


@pytest.mark.parametrize(
    "saving, loading, kinds",
    [
        (of_kind("Adamax"), adamw, "Adamax, but the optimizer is AdamW"),
        (of_kind("NAdam"), of_kind("Adamax"), "NAdam, but the optimizer is Adamax"),
        (adamw, of_kind("Adagrad"), "AdamW, but the optimizer is Adagrad"),
        (adamw, of_kind("SGD"), "AdamW, but the optimizer is SGD"),
        (adamw, of_kind("Adafactor"), "AdamW, but the optimizer is Adafactor"),
        (adamw, lambda m: torch.optim.LBFGS(m.parameters()), "AdamW, but the optimizer is LBFGS"),
    ],
)
def test_the_state_of_another_class_without_what_a_step_needs_is_refused(
    tmp_path, saving, loading, kinds
):
    saved_after_a_step(tmp_path, saving)
    other, model, *_ = run_of(loading, steps)
    before = model.weight.detach().clone()
    message = rf"^\[load_state\] The saved state belongs to {kinds}. Load it into [^\n]*$"
    with pytest.raises(UsageError, match=message):
        other.load_state(tmp_path / "state")
    assert torch.equal(model.weight, before)


@pytest.mark.parametrize(
    "saving, loading",
    [
        (of_kind("Adam"), adamw),
        (adamw, of_kind("Adam")),
        (of_kind("Adam"), of_kind("AdamW", amsgrad=True)),
        (of_kind("NAdam"), of_kind("RAdam")),
    ],
)
def test_the_state_of_a_different_class_with_what_a_step_needs_resumes(tmp_path, saving, loading):
    saved_after_a_step(tmp_path, saving)
    other, model, used, _ = run_of(loading, steps)
    with pytest.warns(UserWarning, match="Any state that the two optimizers do not share is lost"):
        other.load_state(tmp_path / "state")
    before = model.weight.detach().clone()
    other.backward(model(torch.ones(1, 2)).sum())
    used.step()
    assert not torch.equal(model.weight, before)


@pytest.mark.parametrize("kind", ["Adafactor", "AdamW"])
def test_an_optimizer_of_master_weights_loads_its_own_state(kind):
    model = torch.nn.Linear(4, 3)
    optimizer = getattr(torch.optim, kind)(model.parameters(), lr=0.1)
    AcceleratorState._reset_state(True)
    accelerator = Accelerator(cpu=True, mixed_precision="bf16", master_weights=True)
    model, optimizer = accelerator.prepare(model, optimizer)
    accelerator.backward(model(torch.ones(1, 4)).sum())
    optimizer.step()
    state = optimizer.state_dict()
    optimizer.load_state_dict(state)
    again = optimizer.state_dict()["state"]
    assert again.keys() == state["state"].keys()
    for index, entries in state["state"].items():
        assert again[index].keys() == entries.keys()
        assert all(torch.equal(again[index][key], value) for key, value in entries.items())


class Mode(enum.Enum):
    FAST = "fast"
    SLOW = "slow"


class Level(enum.IntEnum):
    ONE = 1


class Rights(enum.Flag):
    READ = 1
    WRITE = 2


@dataclasses.dataclass
class Best:
    loss: float
    mode: Mode
    history: list = dataclasses.field(default_factory=list)

    def __post_init__(self):
        self.is_new = True


@dataclasses.dataclass(frozen=True)
class Frozen:
    path: pathlib.Path


@dataclasses.dataclass
class Slotted:
    __slots__ = ("tensor",)
    tensor: torch.Tensor


UTC = datetime.timezone.utc
VALUES = [
    datetime.datetime(2026, 11, 18, 4, 5, 6, 789),
    datetime.datetime(2026, 11, 18, tzinfo=UTC, fold=1),
    datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone(datetime.timedelta(minutes=-90), "X")),
    datetime.datetime(2026, 7, 1, tzinfo=zoneinfo.ZoneInfo("UTC")),
    datetime.date(2026, 11, 18),
    datetime.time(1, 2, 3, 4, tzinfo=UTC),
    datetime.timedelta(days=-1, seconds=3, microseconds=5),
    pathlib.Path("runs/best"),
    pathlib.PureWindowsPath("C:/runs"),
    Mode.SLOW,
    Level.ONE,
    Rights.READ | Rights.WRITE,
    deque([1, Mode.FAST], maxlen=3),
    defaultdict(list, {"a": [1], 2: [Level.ONE]}),
    defaultdict(None, {1: 2}),
    Best(0.5, Mode.FAST, [datetime.date(2026, 1, 1)]),
    Frozen(pathlib.Path("x")),
    Counter("aab"),
]


@pytest.fixture
def kept(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    accelerator = Accelerator(cpu=True)
    kept = Kept(None)
    accelerator.register_for_checkpointing(kept)
    return accelerator, kept


def test_common_classes_are_kept_without_pickles(kept, tmp_path):
    accelerator, held = kept
    best = Best(1.0, Mode.SLOW)
    best.is_new = False
    held.value = [*VALUES, best, Slotted(torch.arange(3))]
    accelerator.save_state("x")
    assert not list((tmp_path / "x").glob("*.pkl"))
    held.value = None
    accelerator.load_state("x")
    *values, again, slotted = held.value
    assert values == VALUES
    for value, expected in zip(values, VALUES):
        assert type(value) is type(expected) and repr(value) == repr(expected)
    assert values[1].fold == 1 and values[3].tzinfo.key == "UTC"
    assert values[12].maxlen == 3 and values[13]["new"] == []
    assert again == best and again.is_new is False
    assert slotted.tensor.tolist() == [0, 1, 2]


def test_classes_are_neither_imported_nor_run(kept, tmp_path):
    """A class named in a file is only loaded if it is already imported and stores values."""
    accelerator, held = kept
    module = types.ModuleType("not_imported")
    exec("import enum\nclass Late(enum.Enum):\n    A = 1\n", module.__dict__)
    sys.modules["not_imported"] = module
    held.value = module.Late.A
    accelerator.save_state("x")
    held.value = None
    with torch.no_grad():
        generator = torch.get_rng_state()
    del sys.modules["not_imported"]
    torch.rand(1)
    changed = torch.get_rng_state()
    with pytest.raises(UsageError, match="not_imported.Late.*Import not_imported before load"):
        accelerator.load_state("x")
    assert held.value is None and torch.equal(torch.get_rng_state(), changed)
    sys.modules["not_imported"] = module
    try:
        accelerator.load_state("x")
    finally:
        del sys.modules["not_imported"]
    assert held.value is module.Late.A and torch.equal(torch.get_rng_state(), generator)
    for name in ("enum", "flag", "dataclass"):
        state = {"value": json.dumps({name: ["subprocess", "Popen", {"dict": [["args", "ls"]]}]})}
        with pytest.raises(UsageError, match="subprocess.Popen"):
            accelerator._context.custom_states[0].load_state_dict(state)


def test_what_a_class_does_by_itself_is_left_to_pickles(kept):
    accelerator, held = kept

    @dataclasses.dataclass
    class Local:
        x: int = 0

    held.value = defaultdict(lambda: 3)
    with pytest.raises(UsageError, match="defaultdict whose factory is a function"):
        accelerator.save_state("x")
    held.value = Local()
    with pytest.raises(UsageError, match="cannot be saved as values"):
        accelerator.save_state("x")
