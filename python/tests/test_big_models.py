# SPDX-License-Identifier: Apache-2.0
"""Models on the CPU and the disk: the same results, files and errors as with Hugging Face
Accelerate, memory that does not grow with the model, and what happens if files are damaged."""

from __future__ import annotations

import copy
import json
import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from accelerate import (
    Accelerator,
    cpu_offload,
    disk_offload,
    dispatch_model,
    init_empty_weights,
    load_checkpoint_and_dispatch,
    load_checkpoint_in_model,
)
from accelerate.errors import AccelerateError, DataError
from accelerate.hooks import remove_hook_from_submodules
from accelerate.utils import OffloadedWeightsLoader, find_tied_parameters
from original import PROGRAMS, originals_python, run_python
from torch.utils.checkpoint import checkpoint

PROGRAM = PROGRAMS / "big_models/dispatched.py"
OURS = os.environ.get("PYTHONPATH", "")
SCENARIOS = ["dispatch", "offload", "load", "errors", "hooks", "helpers", "write"]


@pytest.fixture(scope="module")
def answers(tmp_path_factory) -> tuple[dict, dict]:
    folder = tmp_path_factory.mktemp("dispatched")
    original = run_python(PROGRAM, folder / "original", *SCENARIOS, python=originals_python())
    # Each reads the folders that the other has written.
    ours = run_python(PROGRAM, folder / "ours", *SCENARIOS, path=OURS)
    of_ours = run_python(PROGRAM, folder / "ours", "read", python=originals_python())
    of_originals = run_python(PROGRAM, folder / "original", "read", path=OURS)
    first, second = (json.loads(output.splitlines()[-1]) for output in (original, ours))
    first |= json.loads(of_ours.splitlines()[-1])
    second |= json.loads(of_originals.splitlines()[-1])
    return first, second


@pytest.mark.parametrize("scenario", [*SCENARIOS, "read"])
def test_the_answers_are_the_originals(answers, scenario):
    original, ours = (side[scenario] for side in answers)
    assert not isinstance(original, str), original
    assert not isinstance(ours, str), ours
    assert ours == original


def test_a_map_with_one_entry_offloads_everything(tmp_path):
    model = dispatch_model(frozen(), {"": "disk"}, offload_dir=tmp_path)
    assert all(parameter.device.type == "meta" for parameter in model.parameters())
    assert torch.equal(model(torch.ones(1, 8)), frozen()(torch.ones(1, 8)))


# --- memory -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def large(tmp_path_factory) -> tuple[Path, dict]:
    folder = tmp_path_factory.mktemp("large")
    output = run_python(PROGRAMS / "big_models/within_limit.py", folder, "write", path=OURS)
    return folder, json.loads(output)


def in_a_third(folder: Path, what: str):
    program = PROGRAMS / "big_models/within_limit.py"
    return json.loads(run_python(program, folder, what, path=OURS))


@pytest.mark.parametrize("what", ["forward", "train"])
def test_a_model_runs_in_a_third_of_its_memory(large, what):
    """Training too: autograd does not keep the weights of the base for the backward."""
    folder, expected = large
    assert in_a_third(folder, what) == expected[what]


def test_the_limit_is_enforced(large):
    assert in_a_third(large[0], "whole") is True


# --- training -----------------------------------------------------------------------------------


class Counted(OffloadedWeightsLoader):
    """Counts how often each weight is read."""

    def __getitem__(self, key: str) -> torch.Tensor:
        self.reads = getattr(self, "reads", [])
        self.reads.append(key)
        return super().__getitem__(key)


def frozen(width: int = 8) -> torch.nn.Sequential:
    torch.manual_seed(0)
    layers = (torch.nn.Linear(width, width), torch.nn.Tanh(), torch.nn.Linear(width, width))
    return torch.nn.Sequential(*layers).requires_grad_(False)


def offloaded(model: torch.nn.Module, folder: Path) -> tuple[torch.nn.Module, Counted]:
    disk_offload(model, folder)
    counted = Counted(save_folder=folder)
    for part in model.modules():
        weights = getattr(getattr(part, "_hf_hook", None), "weights_map", None)
        if weights is not None:
            weights.dataset = counted
    return model, counted


def gradient(run, x: torch.Tensor) -> torch.Tensor:
    leaf = x.clone().requires_grad_()
    run(leaf).square().sum().backward()
    return leaf.grad


@pytest.mark.parametrize("how", ["plain", "checkpointed", "reentrant", "own hooks"])
def test_backward_reads_the_weights_again(tmp_path, how):
    x = torch.randn(3, 8)
    model, counted = offloaded(frozen(), tmp_path)
    packed = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        packed.append(tensor.shape)
        return tensor

    def run(leaf: torch.Tensor, model=model) -> torch.Tensor:
        if how in ("checkpointed", "reentrant"):
            return checkpoint(model, leaf, use_reentrant=how == "reentrant")
        if how == "own hooks":
            with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
                return model(leaf)
        return model(leaf)

    expected = gradient(frozen(), x)
    assert torch.equal(gradient(run, x), expected)
    # A checkpoint that is reentrant also repeats the forward of the last layer.
    assert counted.reads.count("2.weight") == (3 if how == "reentrant" else 2)
    assert all(p.device.type == "meta" for p in model.parameters())
    # The program's own hooks get what autograd saves, without the weights.
    assert (3, 8) in packed if how == "own hooks" else packed == []
    assert (8, 8) not in packed


def test_the_memory_of_a_released_weight_is_not_mistaken_for_it(tmp_path):
    """A library may load weights itself and replace them before the forward."""
    model, _ = offloaded(frozen(), tmp_path)
    hook = model[0]._hf_hook
    hook.pre_forward(model[0])
    replaced = torch.nn.Parameter(torch.ones(8, 8), requires_grad=False)
    model[0].weight = replaced
    x = torch.randn(3, 8)
    leaf = x.clone().requires_grad_()
    model[0]._old_forward(leaf).sum().backward()
    assert torch.equal(leaf.grad, torch.full((3, 8), 8.0))


def test_a_failed_forward_releases_the_weights(tmp_path):
    model, _ = offloaded(frozen(), tmp_path)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        model(torch.ones(1, 3))
    assert all(p.device.type == "meta" for p in model.parameters())
    assert torch.equal(model(torch.ones(1, 8)), frozen()(torch.ones(1, 8)))
    # Hooks for saved tensors are no longer active.
    weight = torch.ones(2, requires_grad=True)
    weight.square().sum().backward()
    assert torch.equal(weight.grad, torch.full((2,), 2.0))


def test_threads_share_an_offloaded_model(tmp_path):
    plain = frozen()
    inputs = torch.arange(32.0).reshape(4, 8)
    expected = [plain(row) for row in inputs]
    model = disk_offload(frozen(), tmp_path)

    def run(row: int) -> list[torch.Tensor]:
        with torch.no_grad():
            return [model(inputs[row]) for _ in range(30)]

    with ThreadPoolExecutor(4) as threads:
        results = list(threads.map(run, range(4)))
    for row, outputs in enumerate(results):
        assert all(torch.equal(output, expected[row]) for output in outputs)
    assert all(parameter.is_meta for parameter in model.parameters())


def test_copies_and_pickles_run(tmp_path):
    model, _ = offloaded(frozen(), tmp_path)
    x = torch.ones(1, 8)
    expected = model(x)
    again = copy.deepcopy(model)
    assert torch.equal(again(x), expected)
    remove_hook_from_submodules(model)
    assert torch.equal(again(x), expected)
    plain = cpu_offload(frozen())
    assert torch.equal(pickle.loads(pickle.dumps(plain))(x), expected)


def test_prepare_leaves_a_dispatched_model_where_it_is(tmp_path):
    model = frozen()
    model.append(torch.nn.Linear(8, 1))
    dispatch_model(model, {"0": "disk", "1": "cpu", "2": "disk", "3": "cpu"}, offload_dir=tmp_path)
    before = {name: p.device.type for name, p in model.named_parameters()}
    accelerator = Accelerator(cpu=True)
    optimizer = torch.optim.SGD(model[3].parameters(), 0.1)
    prepared, optimizer = accelerator.prepare(model, optimizer)
    assert {name: p.device.type for name, p in model.named_parameters()} == before
    plain = frozen()
    plain.append(copy.deepcopy(model[3]))
    remove_hook_from_submodules(plain[3])
    x = torch.randn(4, 8)
    for _ in range(2):
        accelerator.backward(prepared(x).square().mean())
        optimizer.step()
        optimizer.zero_grad()
    reference = torch.optim.SGD(plain[3].parameters(), 0.1)
    for _ in range(2):
        plain(x).square().mean().backward()
        reference.step()
        reference.zero_grad()
    assert torch.equal(model[3].weight, plain[3].weight)
    accelerator.save_model(prepared, tmp_path / "saved")
    with init_empty_weights():
        loaded = frozen()
        loaded.append(torch.nn.Linear(8, 1))
    load_checkpoint_and_dispatch(loaded, tmp_path / "saved", device_map={"": "cpu"}, strict=True)
    assert torch.equal(loaded(x), plain(x))


# --- faults -------------------------------------------------------------------------------------


def saved(folder: Path) -> Path:
    """A model in two files with an index."""
    Accelerator(cpu=True).save_model(frozen(), folder, max_shard_size=300)
    assert len(list(folder.glob("*.safetensors"))) == 2
    return folder


def empty() -> torch.nn.Sequential:
    with init_empty_weights():
        return frozen()


def shrink(path: Path, size: int) -> None:
    with open(path, "r+b") as file:
        file.truncate(size)


def test_a_file_that_shrinks_while_it_is_in_use(tmp_path):
    model, _ = offloaded(frozen(), tmp_path)
    model(torch.ones(1, 8))
    shrink(tmp_path / "2.weight.dat", 100)
    with pytest.raises(DataError, match=r"2\.weight\.dat' has 100 bytes, but .* has 256"):
        model(torch.ones(1, 8))


def test_a_safetensors_file_that_shrinks_while_it_is_in_use(tmp_path):
    path = next(saved(tmp_path).glob("*-00002-*"))
    loader = OffloadedWeightsLoader(index={"2.weight": {"safetensors_file": str(path)}})
    assert torch.equal(loader["2.weight"], frozen()[2].weight)
    shrink(path, path.stat().st_size - 200)
    with pytest.raises(DataError, match="was truncated. Write it again"):
        loader["2.weight"]


def test_a_replaced_safetensors_file_keeps_its_content(tmp_path):
    path = next(saved(tmp_path).glob("*-00002-*"))
    loader = OffloadedWeightsLoader(index={"2.weight": {"safetensors_file": str(path)}})
    first = loader["2.weight"].clone()
    (tmp_path / "other").write_bytes(b"other")
    (tmp_path / "other").rename(path)
    assert torch.equal(loader["2.weight"], first)


def test_a_missing_shard(tmp_path):
    path = next(saved(tmp_path).glob("*-00002-*"))
    path.unlink()
    with pytest.raises(FileNotFoundError, match=f"{path.name}', which does not exist"):
        load_checkpoint_in_model(empty(), tmp_path, device_map={"": "cpu"})


def test_a_damaged_shard(tmp_path):
    path = next(saved(tmp_path).glob("*-00002-*"))
    shrink(path, 20)
    with pytest.raises(AccelerateError, match=path.name):
        load_checkpoint_in_model(empty(), tmp_path, device_map={"": "cpu"})


def test_a_damaged_pickle(tmp_path):
    torch.save(frozen().state_dict(), tmp_path / "pytorch_model.bin")
    shrink(tmp_path / "pytorch_model.bin", 400)
    with pytest.raises(DataError, match=r"pytorch_model\.bin' is damaged"):
        load_checkpoint_in_model(empty(), tmp_path, device_map={"": "cpu"})


@pytest.mark.parametrize("content", ["{", "[]", '{"a": 1}', '{"0.weight": {"dtype": "float32"}}'])
def test_a_damaged_index(tmp_path, content):
    disk_offload(frozen(), tmp_path)
    (tmp_path / "index.json").write_text(content)
    with pytest.raises((DataError, KeyError), match="Offload"):
        disk_offload(frozen(), tmp_path)(torch.ones(1, 8))


@pytest.mark.parametrize("shape", [[-8, 8], [2**62, 2**62], [8, 9]])
def test_a_wrong_shape_in_the_index(tmp_path, shape):
    disk_offload(frozen(), tmp_path)
    index = json.loads((tmp_path / "index.json").read_text())
    index["0.weight"]["shape"] = shape
    (tmp_path / "index.json").write_text(json.dumps(index))
    with pytest.raises(DataError, match="Offload the model again"):
        disk_offload(frozen(), tmp_path)(torch.ones(1, 8))


def test_a_missing_offload_file(tmp_path):
    model, _ = offloaded(frozen(), tmp_path)
    (tmp_path / "0.bias.dat").unlink()
    with pytest.raises(FileNotFoundError, match=r"0\.bias\.dat' does not exist. Offload"):
        model(torch.ones(1, 8))


def test_weights_that_the_folder_does_not_have(tmp_path):
    disk_offload(frozen(), tmp_path)
    other = torch.nn.ModuleDict({"other": torch.nn.Linear(8, 8)})
    other.forward = lambda x: other["other"](x)
    disk_offload(other, tmp_path)
    with pytest.raises(KeyError, match=r"no 'other\.weight'. Offload the whole model"):
        other(torch.ones(1, 8))


def test_a_full_disk_leaves_no_partial_file(tmp_path):
    program = PROGRAMS / "big_models/full_disk.py"
    output = run_python(program, tmp_path / "offload", "1000", path=OURS)
    assert "AccelerateError [offload] Cannot write" in output
    assert "Free some space or choose a different offload folder" in output
    # The model is as before.
    assert output.splitlines()[-1] == "cpu"
    assert sorted(p.name for p in (tmp_path / "offload").iterdir()) == [
        "0.bias.dat",
        "0.weight.dat",
    ]


def test_names_that_are_not_in_the_model(tmp_path):
    with (
        pytest.warns(UserWarning, match=r"do not match any submodules in the model: \['third'\]"),
        pytest.raises(ValueError, match="for the following parameters: 2.weight, 2.bias"),
    ):
        dispatch_model(frozen(), {"0": "cpu", "third": "disk"}, offload_dir=tmp_path)


def test_tied_parameters_on_one_device_stay_tied(tmp_path):
    model = frozen()
    model[2].weight = model[0].weight
    dispatch_model(model, {"0": "cpu", "1": "cpu", "2": "cpu"}, force_hooks=True)
    assert model[0].weight is model[2].weight
    assert find_tied_parameters(model) == [["0.weight", "2.weight"]]


def test_quantized_weights_are_refused(tmp_path):
    from accelerate.utils import BnbQuantizationConfig

    with pytest.raises(NotImplementedError, match="Load the model without quantization"):
        BnbQuantizationConfig(load_in_8bit=True)
    with pytest.raises(NotImplementedError, match="offload_8bit_bnb=False"):
        load_checkpoint_in_model(frozen(), tmp_path, offload_8bit_bnb=True)
