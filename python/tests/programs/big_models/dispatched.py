# SPDX-License-Identifier: Apache-2.0
"""What dispatched and offloaded models do; runs with either package. Arguments: a folder, and
whether to write offload folders there or to use those of the other package."""

from __future__ import annotations

import hashlib
import json
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any

import torch
from accelerate import (
    cpu_offload,
    cpu_offload_with_hook,
    disk_offload,
    dispatch_model,
    init_empty_weights,
    load_checkpoint_and_dispatch,
    load_checkpoint_in_model,
)
from accelerate.big_modeling import attach_layerwise_casting_hooks
from accelerate.hooks import (
    AlignDevicesHook,
    ModelHook,
    SequentialHook,
    add_hook_to_module,
    attach_align_device_hook,
    remove_hook_from_module,
    remove_hook_from_submodules,
)
from accelerate.utils import (
    OffloadedWeightsLoader,
    PrefixedDataset,
    align_module_device,
    extract_submodules_state_dict,
    load_offloaded_weight,
    offload_state_dict,
    set_module_tensor_to_device,
)
from accelerate.utils.modeling import (
    find_tied_parameters,
    get_state_dict_from_offload,
    get_state_dict_offloaded_model,
    load_offloaded_weights,
    retie_parameters,
)
from safetensors.torch import save_file


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(6, 8)
        self.norm = torch.nn.BatchNorm1d(8)
        self.second = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())
        self.last = torch.nn.Linear(8, 3)
        self.scale = torch.nn.Parameter(torch.full((), 1.5))
        self.register_buffer("shift", torch.arange(3.0), persistent=False)

    def forward(self, x: torch.Tensor, more: dict | None = None) -> dict:
        y = self.last(self.second(self.norm(self.first(x))))
        return {"y": y * self.scale + self.shift, "more": more}


def net() -> Net:
    torch.manual_seed(1)
    return Net().eval()


def inputs() -> torch.Tensor:
    return torch.linspace(-1, 1, 24).reshape(4, 6)


def digest(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        if value.device.type == "meta":
            return ["meta", str(value.dtype), list(value.shape)]
        plain = value.detach().cpu().contiguous()
        data = plain.reshape(-1).view(torch.uint8) if plain.numel() else plain
        return [str(plain.dtype), list(plain.shape), hashlib.sha1(bytes(data.tolist())).hexdigest()]
    if isinstance(value, dict):
        return {str(key): digest(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [digest(item) for item in value]
    return value


def state_of(model: torch.nn.Module) -> dict:
    """Its hooks, and where its tensors are."""
    tensors = [*model.named_parameters(), *model.named_buffers()]
    return {
        "hooks": {name: repr_of(m) for name, m in model.named_modules() if hasattr(m, "_hf_hook")},
        "devices": {name: str(tensor.device) for name, tensor in tensors},
        "map": getattr(model, "hf_device_map", None),
        "attributes": sorted(
            name for name in vars(model) if name in ("_hf_hook", "_old_forward", "to", "forward")
        ),
    }


def repr_of(module: torch.nn.Module) -> str:
    hook = module._hf_hook
    hooks = hook.hooks if isinstance(hook, SequentialHook) else [hook]
    return f"{type(hook).__name__} {[repr(one) for one in hooks]}"


def refusal(function, *args, **kwargs) -> list[str]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            function(*args, **kwargs)
    except Exception as error:
        return [type(error).__name__, str(error)]
    return ["nothing"]


MAPS = {
    "parts": {"first": "cpu", "norm": "cpu", "second": "disk", "last": "disk", "scale": "cpu"},
    "disk": {"": "disk"},
    "cpu": {"": "cpu"},
    "nested": {
        "first": "disk",
        "norm": "disk",
        "second.0": "cpu",
        "second.1": "cpu",
        "last": "disk",
        "scale": "disk",
    },
}


def dispatch(folder: Path) -> dict:
    found = {}
    expected = digest(net()(inputs()))
    for name, device_map in MAPS.items():
        # The original writes no files for a map with one entry.
        if name == "disk":
            continue
        for buffers in (False, True):
            model = dispatch_model(
                net(),
                device_map,
                offload_dir=folder / f"{name}{buffers}",
                offload_buffers=buffers,
                force_hooks=True,
            )
            answer = {
                "before": state_of(model),
                "output": digest(model(inputs())),
                "again": digest(model(inputs())),
                "after": state_of(model),
            }
            assert answer["output"] == answer["again"] == expected
            answer["state"] = digest(get_state_dict_offloaded_model(model))
            # The original leaves out tensors of the model itself.
            del answer["state"]["scale" if "scale" in answer["state"] else "first.weight"]
            answer["state"].pop("first.weight", None)
            answer["move"] = refusal(model.to, "cpu"), refusal(model.to, torch.float32)
            index = folder / f"{name}{buffers}" / "index.json"
            answer["index"] = json.loads(index.read_text()) if index.exists() else None
            remove_hook_from_submodules(model)
            answer["removed"] = state_of(model)
            found[f"{name} {buffers}"] = answer
    return found


def offload(folder: Path) -> dict:
    found = {}
    expected = digest(net()(inputs()))
    for preload in (None, ["Sequential"]):
        for buffers in (False, True):
            key = f"{preload} {buffers}"
            model = cpu_offload(net(), offload_buffers=buffers, preload_module_classes=preload)
            found[f"cpu {key}"] = [state_of(model), digest(model(inputs())), state_of(model)]
            model = disk_offload(
                net(),
                folder / f"disk{key}",
                offload_buffers=buffers,
                preload_module_classes=preload,
            )
            found[f"disk {key}"] = [state_of(model), digest(model(inputs())), state_of(model)]
            assert found[f"cpu {key}"][1] == found[f"disk {key}"][1] == expected
    model, hook = cpu_offload_with_hook(net(), "cpu")
    second, last = cpu_offload_with_hook(torch.nn.Linear(3, 3), "cpu", prev_module_hook=hook)
    found["with hook"] = [
        digest(model(inputs())),
        type(hook.hook).__name__,
        type(second._hf_hook).__name__,
    ]
    last.offload()
    last.remove()
    hook.remove()
    found["removed"] = [hasattr(model, "_hf_hook"), hasattr(second, "_old_forward")]
    return found


def save_checkpoints(folder: Path) -> dict[str, Path]:
    state = net().state_dict()
    torch.save(state, folder / "all.bin")
    save_file(state, folder / "all.safetensors", {"format": "pt"})
    (folder / "shards").mkdir()
    names = list(state)
    weight_map = {}
    for number in range(3):
        part = {name: state[name] for name in names[number::3]}
        save_file(part, folder / "shards" / f"part{number}.safetensors", {"format": "pt"})
        weight_map |= dict.fromkeys(part, f"part{number}.safetensors")
    index = folder / "shards" / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    extra = {**state, "unknown.weight": torch.ones(2)}
    torch.save(extra, folder / "extra.bin")
    return {
        "bin": folder / "all.bin",
        "safetensors": folder / "all.safetensors",
        "shards": folder / "shards",
        "index": index,
        "extra": folder / "extra.bin",
    }


def load(folder: Path) -> dict:
    found = {}
    for name, path in save_checkpoints(folder).items():
        for device_map in (None, "auto", "sequential", "parts", "disk"):
            # The original cannot read safetensors files to the disk alone.
            if device_map == "disk" and name not in ("bin", "extra"):
                continue
            for dtype in (None, "float64", torch.bfloat16) if name == "shards" else (None,):
                key = f"{name} {device_map} {dtype}"
                with init_empty_weights():
                    model = Net().eval()
                offload_folder = folder / f"offload {key}"
                load_checkpoint_and_dispatch(
                    model,
                    str(path),
                    device_map=MAPS.get(device_map, device_map),
                    dtype=dtype,
                    offload_folder=offload_folder,
                    max_memory={"cpu": 700} if device_map in ("auto", "sequential") else None,
                )
                answer: dict[str, Any] = {"state": state_of(model)}
                if dtype is None:
                    answer["output"] = digest(model(inputs()))
                elif device_map is not None:
                    model = model.to(dtype) if device_map == "cpu" else model
                    answer["dtypes"] = {n: str(p.dtype) for n, p in model.named_parameters()}
                found[key] = answer
    model = net()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    load_checkpoint_in_model(model, str(folder / "shards"))
    found["in place"] = digest(model(inputs()))
    path = str(folder / "all.bin")
    found["strict"] = refusal(load_checkpoint_in_model, torch.nn.Linear(1, 1), path, strict=True)[0]
    return found


def errors(folder: Path) -> dict:
    empty = folder / "empty"
    empty.mkdir()
    two = folder / "two"
    two.mkdir()
    for number in range(2):
        (two / f"{number}.index.json").write_text("{}")
    with init_empty_weights():
        meta = Net()
    return {
        "map": refusal(dispatch_model, net(), {"first": "cpu", "norm": "disk"}),
        "folder": refusal(dispatch_model, net(), {"": "disk"}),
        "strategy": refusal(load_checkpoint_and_dispatch, net(), str(empty), device_map="best"),
        "empty": [refusal(load_checkpoint_in_model, net(), str(empty))[0]],
        "two": [refusal(load_checkpoint_in_model, net(), str(two))[0]],
        "nothing": [refusal(load_checkpoint_in_model, net(), str(folder / "not there"))[0]],
        "no folder": refusal(load_checkpoint_in_model, net(), str(empty), device_map={"": "disk"}),
        "loader": refusal(OffloadedWeightsLoader),
        "name": refusal(set_module_tensor_to_device, net().first, "other", "cpu")[0],
        "value": refusal(set_module_tensor_to_device, meta, "first.weight", "cpu"),
        "shape": refusal(
            set_module_tensor_to_device, meta, "first.weight", "cpu", value=torch.ones(2)
        ),
    }


class Recorder(ModelHook):
    def __init__(self, name: str, calls: list, no_grad: bool = False):
        self.name, self.calls, self.no_grad = name, calls, no_grad

    def init_hook(self, module):
        self.calls.append(f"init {self.name}")
        return module

    def pre_forward(self, module, *args, **kwargs):
        self.calls.append(f"pre {self.name}")
        return (args[0] * 2, *args[1:]), kwargs

    def post_forward(self, module, output):
        self.calls.append(f"post {self.name} {torch.is_grad_enabled()} {output.requires_grad}")
        return output + 1

    def detach_hook(self, module):
        self.calls.append(f"detach {self.name}")
        return module


def hooks(folder: Path) -> dict:
    import inspect

    calls: list[str] = []
    torch.manual_seed(0)
    layer = torch.nn.Linear(2, 2)
    plain = digest(layer(torch.ones(1, 2)))
    add_hook_to_module(layer, Recorder("one", calls))
    outputs = [digest(layer(torch.ones(1, 2)))]
    add_hook_to_module(layer, Recorder("two", calls, no_grad=True), append=True)
    outputs.append(digest(layer(torch.ones(1, 2))))
    kind = type(layer._hf_hook).__name__
    signature = str(inspect.signature(layer.forward))
    add_hook_to_module(layer, Recorder("three", calls, no_grad=True))
    outputs.append(digest(layer(torch.ones(1, 2))))
    remove_hook_from_module(layer)
    outputs.append(digest(layer(torch.ones(1, 2))))
    assert outputs[-1] == plain
    cast = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LayerNorm(4), torch.nn.Linear(4, 2))
    attach_layerwise_casting_hooks(
        cast, torch.float8_e4m3fn, torch.float32, skip_modules_pattern=("2",)
    )
    stored = {n: str(p.dtype) for n, p in cast.named_parameters()}
    ran = digest(cast(torch.ones(1, 4)))
    model = net()
    attach_align_device_hook(model, "cpu", offload=True)
    ran_aligned = digest(model(inputs()))
    return {
        "calls": calls,
        "outputs": outputs,
        "kind": kind,
        "signature": signature,
        "stored": stored,
        "ran": ran,
        "aligned": [state_of(model), ran_aligned],
    }


def helpers(folder: Path) -> dict:
    model = cpu_offload(net())
    found: dict[str, Any] = {}
    with align_module_device(model.first, "cpu"):
        found["aligned"] = digest(model.first.weight)
    found["not aligned"] = digest(model.first.weight)
    other = net()
    with align_module_device(other.first, torch.device("cpu")):
        found["moved"] = str(other.first.weight.device)
    state = {"first.weight": None, "first.bias": None}
    found["from offload"] = digest(get_state_dict_from_offload(model.first, "first.weight", state))
    tied = torch.nn.ModuleDict({"a": torch.nn.Linear(2, 2), "b": torch.nn.Linear(2, 2)})
    tied["a"].weight = tied["b"].weight
    groups = find_tied_parameters(tied)
    set_module_tensor_to_device(tied, "a.weight", "cpu", value=torch.ones(2, 2))
    retie_parameters(tied, groups)
    found["tied"] = [groups, tied["a"].weight is tied["b"].weight, digest(tied["b"].weight)]
    found["extracted"] = list(extract_submodules_state_dict(net().state_dict(), ["first", "scale"]))
    prefixed = PrefixedDataset({"a.x": 1, "a.y": 2, "b": 3}, "a.")
    found["prefixed"] = [prefixed["x"], list(prefixed), len(prefixed)]
    hook = AlignDevicesHook("cpu", offload=True, skip_keys="more")
    found["repr"] = repr(hook)
    return found


def all_dtypes() -> dict[str, torch.Tensor]:
    values = torch.arange(6).reshape(2, 3)
    kinds = (
        torch.float32,
        torch.float64,
        torch.float16,
        torch.bfloat16,
        torch.int8,
        torch.uint8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.bool,
        torch.complex64,
        torch.float8_e4m3fn,
        torch.float8_e5m2,
    )
    return {
        **{f"a.{kind}".replace("torch.", ""): values.to(kind) for kind in kinds},
        "scalar": torch.tensor(2.5),
        "strided": torch.arange(12.0).reshape(3, 4).t(),
    }


def write(folder: Path) -> dict:
    offload_state_dict(folder / "dtypes", all_dtypes())
    disk_offload(net(), folder / "net")
    return {"index": json.loads((folder / "dtypes" / "index.json").read_text())}


def read(folder: Path) -> dict:
    index = json.loads((folder / "dtypes" / "index.json").read_text())
    for name, value in all_dtypes().items():
        read = load_offloaded_weight(folder / "dtypes" / f"{name}.dat", index[name])
        assert digest(read) == digest(value), name
    loader = OffloadedWeightsLoader(
        save_folder=folder / "dtypes", state_dict={"more": torch.ones(1)}
    )
    assert list(loader) == ["more", *all_dtypes()] and len(loader) == len(all_dtypes()) + 1
    with init_empty_weights():
        model = Net().eval()
    disk_offload(model, folder / "net", execution_device="cpu")
    assert digest(model(inputs())) == digest(net()(inputs()))
    with init_empty_weights():
        model = Net().eval()
    index = json.loads((folder / "net" / "index.json").read_text())
    load_offloaded_weights(model, index, folder / "net")
    assert digest(model(inputs())) == digest(net()(inputs()))
    return {"files": sorted(path.name for path in (folder / "dtypes").iterdir())}


SCENARIOS = {f.__name__: f for f in (dispatch, offload, load, errors, hooks, helpers, write, read)}

if __name__ == "__main__":
    found = {}
    for name in sys.argv[2:]:
        folder = Path(sys.argv[1])
        if name not in ("write", "read"):
            folder = folder / name
        folder.mkdir(parents=True, exist_ok=True)
        try:
            found[name] = SCENARIOS[name](folder)
        except Exception:
            found[name] = traceback.format_exc()
    print(json.dumps(found))
