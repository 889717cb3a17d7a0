# SPDX-License-Identifier: Apache-2.0
"""Checkpoints as scripts use them: names, hooks, rotation, registered objects, models alone."""

from __future__ import annotations

import json
import os
import random
import re
import resource
import threading
from collections import OrderedDict

import numpy
import pytest
import ranks
import torch
from new_run import Kept, make  # noqa: F401
from safetensors import safe_open
from safetensors.torch import load_file

from accelerate.errors import AccelerateError, DataError, UsageError
from accelerate.utils import ProjectConfiguration, load, save


def step(accelerator, model, optimizer):
    accelerator.backward(model(torch.randn(4, 3)).square().mean())
    optimizer.step()
    optimizer.zero_grad()


def weights_of(model):
    return [value.clone() for value in model.state_dict().values()]


def assert_equal(one, other):
    assert len(one) == len(other)
    assert all(torch.equal(a, b) for a, b in zip(one, other))


# --- names, rotation ----------------------------------------------------------------------------


def test_automatic_names_are_counted_and_the_oldest_go(make, tmp_path):
    project = ProjectConfiguration(
        project_dir="run", automatic_checkpoint_naming=True, total_limit=2
    )
    accelerator, *others = make(project_config=project)
    assert accelerator.project_dir == accelerator.logging_dir == "run"
    for number in range(4):
        assert accelerator.save_iteration == number
        step(accelerator, *others)
        assert str(accelerator.save_state()) == f"run/checkpoints/checkpoint_{number}"
    kept = sorted(path.name for path in (tmp_path / "run/checkpoints").iterdir())
    assert kept == ["checkpoint_2", "checkpoint_3"]
    expected = weights_of(others[0])
    for name in (None, "latest", "run/checkpoints/checkpoint_3"):
        again = ProjectConfiguration(project_dir="run", automatic_checkpoint_naming=True)
        accelerator, model, _ = make(project_config=again)
        accelerator.load_state(name)
        assert_equal(weights_of(model), expected)
        # The original would take 0 again, which exists.
        assert accelerator.save_iteration == 4
    project.iteration = 3
    accelerator, *_ = make(project_config=project)
    with pytest.raises(ValueError, match=r"^\[save_state\] .*checkpoint_3 already exists"):
        accelerator.save_state()


def test_nothing_is_taken_away_where_the_new_one_fails(make, tmp_path):
    project = ProjectConfiguration("run", automatic_checkpoint_naming=True, total_limit=1)
    accelerator, *_ = make(project_config=project)
    accelerator.save_state()

    def fail(models, weights, folder):
        raise OSError("no space left")

    accelerator.register_save_state_pre_hook(fail)
    with pytest.raises(OSError, match="no space left"):
        accelerator.save_state()
    assert [path.name for path in (tmp_path / "run/checkpoints").iterdir()] == ["checkpoint_0"]
    assert accelerator.save_iteration == 1
    accelerator.load_state()


def test_an_asynchronous_save_runs_during_training(make, tmp_path):
    project = ProjectConfiguration("run", automatic_checkpoint_naming=True, total_limit=2)
    accelerator, *others = make(project_config=project)
    saved = []
    for _ in range(3):
        step(accelerator, *others)
        saved.append(weights_of(others[0]))
        accelerator.save_state(asynchronous=True)
    step(accelerator, *others)
    accelerator.load_state("latest")  # waits for it
    assert_equal(weights_of(others[0]), saved[-1])
    kept = sorted(path.name for path in (tmp_path / "run/checkpoints").iterdir())
    assert kept == ["checkpoint_1", "checkpoint_2"]
    with pytest.raises(ValueError, match="cannot be saved asynchronously"):
        accelerator.save_state(layout="accelerate", asynchronous=True)


def test_an_asynchronous_save_that_failed_raises_once(make, tmp_path):
    accelerator, *others = make()
    accelerator.save_state("state")
    step(accelerator, *others)

    def spoil(models, weights, folder):
        (tmp_path / folder / "optimizer.safetensors").mkdir()

    hook = accelerator.register_save_state_pre_hook(spoil)
    accelerator.save_state("state", asynchronous=True)
    hook.remove()
    step(accelerator, *others)
    with pytest.raises(AccelerateError, match="optimizer.safetensors"):
        accelerator.save_state("other")
    accelerator.wait_for_save()
    assert not (tmp_path / "other").exists()
    make()[0].load_state("state")  # the previous one


@pytest.mark.parametrize("file", ["checkpoint.json", "model.safetensors", "rank_0-at-3.json"])
def test_the_latest_is_the_newest_that_is_sound(make, tmp_path, file):
    def project():
        return ProjectConfiguration("run", automatic_checkpoint_naming=True, total_limit=3)

    accelerator, *others = make(project_config=project())
    for _ in range(3):
        step(accelerator, *others)
        accelerator.save_state()
    path = tmp_path / "run/checkpoints/checkpoint_2" / file
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    accelerator, *others = make(project_config=project())
    with pytest.warns(UserWarning, match=file):
        accelerator.load_state("latest")
    assert accelerator._run.state.state_of("progress")["num_backwards"] == 2
    step(accelerator, *others)
    assert accelerator.save_state().name == "checkpoint_3"


def test_the_latest_has_the_files_of_the_main_process(make, tmp_path):
    project = ProjectConfiguration("run", automatic_checkpoint_naming=True)
    accelerator, *others = make(project_config=project)
    for _ in range(2):
        step(accelerator, *others)
        accelerator.save_state()
    next((tmp_path / "run/checkpoints/checkpoint_1").glob("rank_0-at-*.json")).unlink()
    with pytest.warns(UserWarning, match="the data of rank 0 is missing"):
        accelerator.load_state("latest")
    assert accelerator._run.state.state_of("progress")["num_backwards"] == 1


@pytest.mark.parametrize("is_deleted", [False, True], ids=["truncated", "deleted"])
def test_the_latest_of_the_originals_layout_is_the_newest_that_is_sound(make, tmp_path, is_deleted):
    project = ProjectConfiguration("run", automatic_checkpoint_naming=True)
    accelerator, model, optimizer = make(project_config=project)
    scheduler = accelerator.prepare(torch.optim.lr_scheduler.StepLR(optimizer, 1))
    kept = Kept(0)
    accelerator.register_for_checkpointing(kept)
    for kept.value in range(2):
        step(accelerator, model, optimizer)
        accelerator.save_state(layout="accelerate")
    newest = tmp_path / "run/checkpoints/checkpoint_1"
    names = sorted(path.name for path in newest.iterdir())
    assert len(names) == 5
    for name in names:
        content = (newest / name).read_bytes()
        if is_deleted:
            (newest / name).unlink()
        else:
            (newest / name).write_bytes(content[: len(content) // 2])
        kept.value = 7
        if is_deleted and name == "random_states_0.pkl":
            accelerator.load_state("latest")  # Not a checkpoint without this file.
        else:
            with pytest.warns(UserWarning, match=f"Skipping .*{re.escape(name)}"):
                accelerator.load_state("latest")
        assert kept.value == 0, name
        (newest / name).write_bytes(content)
    accelerator.load_state("latest")
    assert kept.value == 1
    assert scheduler is not None


def test_a_registered_object_that_fails_to_load_is_named(make):
    class Failing(Kept):
        def load_state_dict(self, state):
            raise KeyError("of an older version")

    accelerator, *_ = make()
    accelerator.register_for_checkpointing(Kept(1), Failing(2))
    accelerator.save_state("x")
    with pytest.raises(KeyError), pytest.warns(UserWarning, match="'python_custom_1' could not be"):
        accelerator.load_state("x")


def test_a_folder_that_is_named_latest_wins(make):
    accelerator, model, optimizer = make(project_dir="run")
    accelerator.save_state("latest")
    expected = weights_of(model)
    step(accelerator, model, optimizer)
    accelerator.save_state("run/checkpoints/mine")
    newest = weights_of(model)
    accelerator.load_state("latest")
    assert_equal(weights_of(model), expected)
    accelerator.load_state("run/checkpoints/mine")
    assert_equal(weights_of(model), newest)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda a: a.save_state(), r"^\[save_state\] No output_dir was passed"),
        (lambda a: a.load_state(), r"^\[load_state\] No input_dir was passed"),
        (lambda a: a.load_state("nowhere"), r"^\[load_state\] No checkpoint at 'nowhere'"),
        (lambda a: a.load_state("latest"), r"needs a project_dir"),
        (lambda a: a.load_state("."), r"^\[load_state\] . is not a complete checkpoint"),
        (lambda a: a.save_state("x", layout="zip"), r"layout='zip' is not supported"),
        (lambda a: a.register_for_checkpointing([]), r"list cannot be saved"),
    ],
)
def test_saves_that_are_not_possible_raise(make, call, message):
    accelerator, *_ = make()
    with pytest.raises(ValueError, match=message):
        call(accelerator)


def _refusal(load, *args, **kwargs):
    with pytest.raises(UsageError) as error:
        load(*args, **kwargs)
    return str(error.value)


def test_missing_checkpoint_lists_existing_ones(make):
    accelerator, *_ = make()
    where = "[load_state] No checkpoint at"
    said = _refusal(accelerator.load_state, "run/best")
    assert said == f"{where} 'run/best'. Pass the folder of a saved checkpoint"
    for number in range(7, 12):
        accelerator.save_state(f"run/epoch_{number}")
    said = _refusal(accelerator.load_state, "run/best")
    assert said == f"{where} 'run/best'. Existing: epoch_7, epoch_8, epoch_9, epoch_10, epoch_11"
    accelerator.save_state("run/epoch_12", layout="accelerate")
    said = _refusal(accelerator.load_state, "run/best")
    assert said.endswith("Existing: ..., epoch_8, epoch_9, epoch_10, epoch_11, epoch_12")


def test_mismatched_checkpoint_names_the_model(make):
    make()[0].save_state("x")
    accelerator, model, _ = make(torch.nn.Sequential(torch.nn.Linear(3, 2)))
    before = weights_of(model)
    assert _refusal(accelerator.load_state, "x") == (
        "[load_state_dict] 'model': The saved state does not fit the Sequential: missing tensors "
        "(2): '0.weight', '0.bias'; unexpected tensors (2): 'bias', 'weight'. Was it saved with "
        "a different model?"
    )
    assert_equal(weights_of(model), before)


def test_checkpoint_with_a_loader_needs_one_or_restore_loaders_false(make):
    accelerator, model, optimizer = make()
    loaders = [torch.utils.data.DataLoader(range(4)) for _ in range(2)]
    accelerator.prepare(loaders[0])
    accelerator.save_state("one")
    accelerator.prepare(loaders[1])
    accelerator.save_state("two")
    expected = weights_of(model)
    accelerator, model, _ = make()
    end = (
        " was prepared. Prepare the same objects before load_state(), or pass restore_loaders=False"
    )
    start = "[load_state] The checkpoint contains"
    said = _refusal(accelerator.load_state, "one")
    assert said == f"{start} a DataLoader but none{end}"
    assert _refusal(accelerator.load_state, "two") == f"{start} 2 DataLoaders but none{end}"
    accelerator.load_state("two", restore_loaders=False)
    assert_equal(weights_of(model), expected)
    accelerator.prepare(loaders[0])
    assert _refusal(accelerator.load_state, "two") == f"{start} 2 DataLoaders but only 1{end}"
    accelerator.load_state("two", restore_loaders=False)
    accelerator.load_state("one")


def test_a_damaged_checkpoint_changes_nothing(make, tmp_path):
    accelerator, model, optimizer = make()
    step(accelerator, model, optimizer)
    accelerator.save_state("x")
    file = tmp_path / "x" / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    step(accelerator, model, optimizer)
    expected = weights_of(model)
    with pytest.raises(DataError, match="model.safetensors"):
        accelerator.load_state("x")
    assert_equal(weights_of(model), expected)


# --- what is in it ------------------------------------------------------------------------------


def test_the_generators_of_python_and_numpy_resume(make):
    accelerator, *_ = make()
    accelerator.save_state("x")
    expected = [torch.rand(1).item(), random.random(), numpy.random.rand()]
    torch.manual_seed(1), random.seed(1), numpy.random.seed(1)
    accelerator.load_state("x")
    assert [torch.rand(1).item(), random.random(), numpy.random.rand()] == expected


class Odd:
    def __eq__(self, other):
        return type(other) is Odd


# The original's lines; names of files but the first are ours.
SAVED = ["Saving current state to {}", "Model weights saved in {}/model.safetensors"]
SAVED += ["Optimizer state saved in {}", "Random states saved in {}"]
LOADED = ["Loading states from {}", "All model weights loaded successfully"]
LOADED += [f"All {kind} states loaded successfully" for kind in ("optimizer", "scheduler")]
LOADED += ["All dataloader sampler states loaded successfully"]
LOADED += ["All random states loaded successfully"]


@pytest.mark.parametrize("layout", [None, "accelerate"])
def test_saving_and_loading_are_logged_as_the_original_does(make, caplog, layout):
    accelerator, model, _ = make()
    with caplog.at_level("INFO", logger="accelerate"):
        accelerator.save_state("state", layout=layout)
        accelerator.load_state("state")
        found = [line.removeprefix("[RANK 0] ") for line in caplog.messages]
        caplog.clear()
        accelerator.save_model(model, "whole")
        accelerator.save_model(model, "shards", max_shard_size=20)
    expected = [line.format("state") for line in SAVED + LOADED]
    assert len(found) == len(expected)
    assert all(line.startswith(start) for line, start in zip(found, expected)), found
    whole, shards = caplog.messages
    assert whole.endswith("Model weights saved in whole/model.safetensors")
    assert shards.endswith("in the index located at shards/model.safetensors.index.json.")


def test_registered_objects_come_back_as_they_were(make, tmp_path):
    value = {
        "array": numpy.arange(6, dtype=numpy.uint16).reshape(2, 3),
        "number": numpy.float32(1.5),
        "tensor": torch.arange(3).to(torch.bfloat16),
        5: [1, None, True, "x", (1.5, float("inf"))],
        "bytes": b"\0\1",
        "set": {1, 2},
        "dtype": torch.float16,
    }
    accelerator, *_ = make()
    one, other = Kept(value), Kept(3)
    accelerator.register_for_checkpointing(one, other)
    accelerator.save_state("x")
    one.value = other.value = None
    accelerator.load_state("x")
    assert repr(one.value) == repr(value) and other.value == 3
    assert one.value["array"].dtype == numpy.uint16
    assert not list((tmp_path / "x").glob("*.pkl"))
    accelerator, *_ = make()
    accelerator.register_for_checkpointing(one)
    with pytest.raises(ValueError, match="custom_1"):
        accelerator.load_state("x")


def test_what_only_a_pickle_holds_is_loaded_when_asked_for(make, tmp_path):
    accelerator, model, optimizer = make()
    kept = Kept([Odd(), torch.ones(2)])
    accelerator.register_for_checkpointing(kept)
    with pytest.warns(
        UserWarning, match="'python_custom' is saved as a pickle.*contains an object of type Odd"
    ):
        accelerator.save_state("x")
    manifest = json.loads((tmp_path / "x/checkpoint.json").read_text())
    assert manifest["state"]["python_parts"]["pickles.python_custom.file"] == "python_custom.pkl"
    kept.value = None
    step(accelerator, model, optimizer)
    expected = weights_of(model)
    with pytest.raises(ValueError, match=r"of 'python_custom' as a pickle.*pass allow_pickle=True"):
        accelerator.load_state("x")
    assert_equal(weights_of(model), expected)
    assert kept.value is None
    accelerator.load_state("x", allow_pickle=True)
    assert kept.value[0] == Odd() and kept.value[1].tolist() == [1, 1]
    kept.value = threading.Lock()
    with pytest.raises(
        UsageError, match="'python_custom' cannot be saved as values .* or as a pick"
    ):
        accelerator.save_state("y")
    assert not (tmp_path / "y").exists()


def test_pickles_that_need_no_code_are_loaded(make, tmp_path, recwarn):
    value = {
        "complex": torch.ones(2, dtype=torch.complex128),
        "sparse": torch.eye(2).to_sparse(),
        "names": OrderedDict(a=1),
    }
    value["itself"] = value
    accelerator, *_ = make()
    kept = Kept(value)
    accelerator.register_for_checkpointing(kept)
    accelerator.save_state("x")
    assert not [w for w in recwarn if "pickle" in str(w.message)]
    assert (tmp_path / "x/python_custom.pkl").exists()
    kept.value = None
    accelerator.load_state("x")
    assert kept.value["itself"] is kept.value
    assert torch.equal(kept.value["complex"], value["complex"])
    assert torch.equal(kept.value["sparse"].to_dense(), torch.eye(2))


def test_paths_are_understood_as_the_system_does(make, tmp_path):
    (tmp_path / "there/deep").mkdir(parents=True)
    (tmp_path / "link").symlink_to("there/deep")
    accelerator, *_ = make()
    accelerator.save_state("link/../x/")
    assert (tmp_path / "there/x/checkpoint.json").exists()
    accelerator.load_state("link/../x")
    (tmp_path / "here").mkdir()
    os.chdir("here")
    accelerator.save_state(".")
    assert (tmp_path / "here/checkpoint.json").exists()
    accelerator.load_state(".")


def test_weights_may_be_pickles_that_run_no_code(make, tmp_path):
    accelerator, model, optimizer = make()
    accelerator.save_state("x", safe_serialization=False)
    expected = weights_of(model)
    assert not (tmp_path / "x/model.safetensors").exists()
    assert_equal(list(torch.load(tmp_path / "x/pytorch_model.bin").values()), expected)
    step(accelerator, model, optimizer)
    accelerator.load_state("x")
    assert_equal(weights_of(model), expected)
    # In the same folder the newer one counts.
    step(accelerator, model, optimizer)
    accelerator.save_state("x")
    expected = weights_of(model)
    step(accelerator, model, optimizer)
    accelerator.load_state("x")
    assert_equal(weights_of(model), expected)
    accelerator.save_state("y", safe_serialization=False)
    (tmp_path / "y/pytorch_model.bin").write_bytes(b"other")
    with pytest.raises(DataError, match="pytorch_model.bin' is damaged: it has 5 bytes"):
        accelerator.load_state("y")


class WithExtra(torch.nn.Linear):
    def __init__(self):
        super().__init__(3, 2)
        self.extra = {"seen": 1}

    def get_extra_state(self):
        return self.extra

    def set_extra_state(self, state):
        self.extra = state


def test_what_a_module_adds_to_its_state_is_kept(make, tmp_path):
    accelerator, model, _ = make(WithExtra())
    accelerator.save_state("x")
    model.extra = None
    accelerator.load_state("x")
    assert model.extra == {"seen": 1}
    assert (tmp_path / "x/pytorch_model.bin").exists()


class Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Linear(3, 3, bias=False)
        self.head = torch.nn.Linear(3, 3, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("kept", torch.ones(2))
        self.register_buffer("scratch", torch.zeros(2), persistent=False)

    def forward(self, x):
        return self.head(self.embedding(x))


def test_the_file_of_weights_is_the_state_dict_with_tied_weights_once(make, tmp_path):
    accelerator, model, optimizer = make(Tied())
    accelerator.save_state("x")
    accelerator.save_model(model, "y")
    for folder in ("x", "y"):
        with safe_open(tmp_path / folder / "model.safetensors", "pt") as file:
            assert sorted(file.keys()) == ["embedding.weight", "kept"]
            assert file.metadata() == {"format": "pt", "head.weight": "embedding.weight"}
    expected = weights_of(model)
    step(accelerator, model, optimizer)
    model.scratch += 5
    accelerator.load_state("x")
    assert_equal(weights_of(model), expected)
    assert model.scratch.tolist() == [5, 5]
    assert model.head.weight is model.embedding.weight


def test_arguments_for_the_models_load_state_dict_reach_it(make):
    accelerator, model, optimizer = make(torch.nn.Sequential(torch.nn.Linear(3, 2)))
    accelerator.save_state("x")
    expected = weights_of(model)
    grown = torch.nn.Sequential(torch.nn.Linear(3, 2))
    again, model, _ = make(grown)
    grown.register_buffer("more", torch.ones(1))
    again.load_state("x", strict=False)
    assert_equal(weights_of(model)[-2:], expected)


# --- hooks --------------------------------------------------------------------------------------


def test_hooks_save_and_load_by_themselves(make, tmp_path):
    # As in the scripts of diffusers.
    accelerator, model, optimizer = make()
    second = accelerator.prepare(torch.nn.Linear(2, 2))

    def save_hook(models, weights, folder):
        assert [type(m) for m in models] == [torch.nn.Linear] * 2 and len(weights) == 2
        from pathlib import Path

        (Path(folder) / "mine").mkdir()
        torch.save(models.pop().state_dict(), Path(folder) / "mine" / "second.bin")
        weights.pop()

    def load_hook(models, folder):
        models.pop().load_state_dict(torch.load(f"{folder}/mine/second.bin"))
        assert len(models) == 1

    handles = [
        accelerator.register_save_state_pre_hook(save_hook),
        accelerator.register_load_state_pre_hook(load_hook),
    ]
    for _ in range(2):  # the second replaces the first
        step(accelerator, model, optimizer)
        torch.nn.init.normal_(second.weight)
        accelerator.save_state("x")
    assert sorted(p.name for p in (tmp_path / "x").glob("model*")) == ["model.safetensors"]
    expected = weights_of(model), weights_of(second)
    step(accelerator, model, optimizer)
    torch.nn.init.zeros_(second.weight)
    accelerator.load_state("x")
    assert_equal(weights_of(model), expected[0])
    assert_equal(weights_of(second), expected[1])
    for handle in handles:
        handle.remove()
    with pytest.raises(ValueError, match="model_1"):
        accelerator.load_state("x")
    accelerator.save_state("y")
    assert (tmp_path / "y/model_1.safetensors").exists()


def test_weights_that_a_hook_changes_are_saved_so(make, tmp_path):
    accelerator, model, _ = make()

    def keep_one(models, weights, folder):
        del weights[0]["bias"]

    accelerator.register_save_state_pre_hook(keep_one)
    accelerator.save_state("x")
    assert list(load_file(tmp_path / "x/model.safetensors")) == ["weight"]
    accelerator.load_state("x", strict=False)

    accelerator.register_save_state_pre_hook(lambda m, weights, f: weights.append({}))
    with pytest.raises(ValueError, match="A pre-hook added 1 new dictionaries"):
        accelerator.save_state("y")


# --- models alone, files ------------------------------------------------------------------------


@pytest.mark.parametrize("is_safe", [True, False])
def test_a_model_is_saved_in_files_of_a_size(make, tmp_path, is_safe):
    accelerator, model, _ = make(torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(3))))
    accelerator.save_model(model, "m", max_shard_size=600, safe_serialization=is_safe)
    ending = "safetensors" if is_safe else "bin"
    start = "model" if is_safe else "pytorch_model"
    index = json.loads((tmp_path / f"m/{start}.{ending}.index.json").read_text())
    read = load_file if is_safe else torch.load
    state = {}
    for file in sorted(set(index["weight_map"].values())):
        part = read(tmp_path / "m" / file)
        assert all(index["weight_map"][name] == file for name in part)
        state |= part
    assert_equal([state[name] for name in model.state_dict()], weights_of(model))
    assert index["metadata"]["total_size"] == 3 * (64 + 8) * 4
    accelerator.save_model(model, "m", safe_serialization=is_safe)
    assert [path.name for path in (tmp_path / "m").iterdir()] == [f"{start}.{ending}"]


def test_objects_are_written_whole(make, tmp_path):
    accelerator, model, _ = make()
    accelerator.save({"a": torch.ones(2), "b": numpy.ones(2, dtype=numpy.uint32)}, "x.bin")
    assert load("x.bin")["b"].tolist() == [1, 1]
    save(accelerator.get_state_dict(model), "x.safetensors", safe_serialization=True)
    assert sorted(load_file("x.safetensors")) == ["bias", "weight"]
    with pytest.raises((AttributeError, TypeError)):
        accelerator.save(threading.Lock(), "x.bin")
    assert load("x.bin")["a"].tolist() == [1, 1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.bin", "x.safetensors"]
    with pytest.raises(AccelerateError, match="needs a dictionary of tensors and a path"):
        save([1], "y", safe_serialization=True)


def test_a_file_that_does_not_fit_is_named_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(AccelerateError, match="Cannot write 'x.bin': File too large. Free"):
            save({"a": torch.ones(4096)}, "x.bin")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == []


# --- several processes --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "how", [{}, {"asynchronous": True}, {"layout": "accelerate"}], ids=json.dumps
)
def test_a_replaced_checkpoint_of_all_ranks_is_complete_before_one_loads_it(tmp_path, how):
    out = ranks.fork_ours("checkpoints/replace_another.py", tmp_path, json.dumps(how))
    assert "equal 0" in out and "equal 1" in out


@pytest.mark.parametrize("layout", [None, "accelerate"])
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_a_rollback_drops_gradients_that_were_not_stepped(tmp_path, layout, num_ranks):
    script = "checkpoints/rollback.py"
    out = ranks.fork_ours(script, tmp_path, layout or "", num_ranks=num_ranks)
    assert all(f"equal {rank}" in out for rank in range(num_ranks))


def test_the_main_process_saves_alone_without_waiting(tmp_path):
    out = ranks.fork_ours("checkpoints/main_process_saves_alone.py", tmp_path)
    assert "done 0" in out and "done 1" in out
    out = ranks.fork_ours("checkpoints/load_what_one_saved_alone.py", tmp_path)
    assert "equal 0" in out and "equal 1" in out
    # One process resumes from what two have saved: after 3 rounds of 2 batches.
    assert "left 6" in ranks.fork_ours("checkpoints/load_on_one_process.py", tmp_path, num_ranks=1)


# --- schedulers that were not prepared ------------------------------------------------------------


def _schedulers(optimizer):
    """Each kind, on the optimizer that `prepare` returned."""
    lr = torch.optim.lr_scheduler
    return {
        "lambda": lambda: lr.LambdaLR(optimizer, lambda step: 1 / (step + 1)),
        "plateau": lambda: lr.ReduceLROnPlateau(optimizer, factor=0.5, patience=0),
        "sequential": lambda: lr.SequentialLR(
            optimizer,
            [lr.LinearLR(optimizer, 0.1, total_iters=2), lr.ExponentialLR(optimizer, 0.9)],
            milestones=[2],
        ),
    }


@pytest.mark.parametrize("kind", ["lambda", "plateau", "sequential"])
@pytest.mark.parametrize("is_raw", [False, True], ids=["prepared", "raw"])
def test_a_scheduler_of_a_prepared_optimizer_is_saved(make, kind, is_raw, recwarn):
    def begun():
        accelerator, model, optimizer = make()
        driven = optimizer.optimizer if is_raw else optimizer
        return accelerator, model, optimizer, _schedulers(driven)[kind]()

    def run(accelerator, model, optimizer, scheduler, num_steps):
        rates = []
        for _ in range(num_steps):
            step(accelerator, model, optimizer)
            scheduler.step(*([1.0] if kind == "plateau" else []))
            rates.append(optimizer.param_groups[0]["lr"])
        return rates

    first = begun()
    run(*first, 3)
    first[0].save_state("x")
    names = json.loads(open("x/checkpoint.json").read())["state"]
    assert [name for name in names if name.startswith("scheduler")] == ["scheduler"]
    expected = run(*first, 4)
    again = begun()
    again[0].load_state("x")
    assert run(*again, 4) == expected
    assert not [w for w in recwarn if "load_state" in str(w.message)]


def test_a_prepared_scheduler_is_saved_once(make):
    accelerator, _, optimizer = make()
    made = _schedulers(optimizer)
    unprepared, prepared = made["lambda"](), made["sequential"]()
    accelerator.prepare(prepared)
    unprepared.last_epoch = 7
    accelerator.save_state("x")
    states = json.loads(open("x/checkpoint.json").read())["state"]
    schedulers = {name: s for name, s in states.items() if name.startswith("scheduler")}
    assert {name: s["torch_class"] for name, s in schedulers.items()} == {
        "scheduler": "SequentialLR",
        "scheduler_1": "LambdaLR",
    }
    # A destroyed one is not saved.
    del unprepared
    accelerator.save_state("y")
    assert "scheduler_1" not in json.loads(open("y/checkpoint.json").read())["state"]


def test_a_checkpoint_or_a_run_may_lack_an_unprepared_scheduler(make):
    accelerator, *_ = make()
    accelerator.save_state("without")
    accelerator, _, optimizer = make()
    scheduler = _schedulers(optimizer)["lambda"]()
    with pytest.warns(UserWarning, match="has no state for 'scheduler', which was not passed"):
        accelerator.load_state("without")
    scheduler.last_epoch = 3
    accelerator.save_state("with")
    del scheduler
    accelerator, *_ = make()
    with pytest.warns(UserWarning, match="contains the state of 'scheduler', which this run"):
        accelerator.load_state("with")
    # Prepared here, or there.
    accelerator, _, optimizer = make()
    scheduler = accelerator.prepare(_schedulers(optimizer)["lambda"]())
    accelerator.load_state("with")
    assert scheduler.scheduler.last_epoch == 3


@pytest.mark.parametrize("layout", [None, "accelerate"])
def test_the_main_process_saves_alone_with_automatic_names(tmp_path, layout):
    out = ranks.fork_ours("checkpoints/automatic_names.py", tmp_path, layout or "")
    assert "done 0" in out and "done 1" in out and "refused 0" in out


@pytest.mark.parametrize("limit", [None, 1])
def test_saves_of_the_main_process_alone_move_the_numbers_of_all(tmp_path, limit):
    script = "checkpoints/automatic_names_of_one_process.py"
    out = ranks.fork_ours(script, tmp_path, json.dumps(limit))
    assert "done 0" in out and "done 1" in out


def test_all_processes_refuse_what_is_damaged_for_one(tmp_path):
    script = "checkpoints/load_damaged.py"
    lines = [line for line in ranks.fork_ours(script, tmp_path).splitlines() if "refused" in line]
    reason = r"\[load_state\] rank 1 failed: .*rank_1-at-0.safetensors' is damaged"
    for rank in (0, 1):
        assert any(re.search(f"refused {rank} {reason}", line) for line in lines), lines


def test_all_processes_fail_where_a_pickle_of_one_does(tmp_path):
    """What Python itself reads is also agreed on, even in the original's layout."""
    out = ranks.fork_ours("checkpoints/hook_fails_on_one.py", tmp_path)
    assert out.count("failed 1 KeyError 'mine'") == 2, out
    others = "failed 0 AccelerateError [load_state] rank 1 failed: KeyError: 'mine'"
    assert out.count(others) == 2, out


@pytest.mark.parametrize("layout", ["ours", "accelerate"])
@pytest.mark.parametrize("failing", [0, 1])
def test_processes_use_the_same_names_after_the_save_of_one_failed(tmp_path, failing, layout):
    script = "checkpoints/save_fails_on_one.py"
    names = ranks.run_ours(script, tmp_path, layout, str(failing))
    assert names[failing] == ["checkpoint_0", "failed", "checkpoint_2"]
    assert names[1 - failing] == ["checkpoint_0", "checkpoint_1", "checkpoint_2"]
    newest = tmp_path / "ours/run/checkpoints/checkpoint_2"
    ending = "rank_1-at-*.json" if layout == "ours" else "random_states_1.pkl"
    assert list(newest.glob(ending)), sorted(path.name for path in newest.iterdir())


@pytest.mark.parametrize(
    "where, loaded", [("before", 1), ("hook", 0), ("state_dict", 0), ("late", 0), ("after", 1)]
)
def test_a_process_that_is_killed_while_it_saves_leaves_the_checkpoint_before(
    make, tmp_path, where, loaded
):
    result = ranks.run(ranks.LAUNCH, tmp_path, "checkpoints/killed_while_saving.py", where)
    assert result.returncode != 0
    assert (tmp_path / "run/checkpoints/checkpoint_1/checkpoint.json").exists(), result.stderr
    accelerator, *_ = make(project_dir="run")
    latest, said = accelerator._run.checkpoints.latest_intact_on_all_ranks("run/checkpoints")
    assert latest == f"run/checkpoints/checkpoint_{loaded}", said
    assert loaded == 1 or "the data of rank 1 was not fully written" in said[0]
