# SPDX-License-Identifier: Apache-2.0
"""Compiled modules in both orders (prepared and then compiled, compiled and then prepared), and
compiled because of the launcher's options."""

from __future__ import annotations

import copy
import json
import subprocess

import pytest
import ranks
import torch
from original import originals_python, run_python
from tiers import cases

from accelerate import Accelerator
from accelerate.errors import UsageError
from accelerate.utils import DynamoBackend


def make_net() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))


def test_unwrapping_finds_what_was_compiled_and_what_was_prepared():
    accelerator = Accelerator(cpu=True)
    net = make_net()
    compiled = torch.compile(net, backend="eager")
    prepared = accelerator.prepare(compiled)
    assert accelerator.unwrap_model(prepared) is compiled
    assert accelerator.unwrap_model(prepared, keep_torch_compile=False) is net

    other = make_net()
    prepared = accelerator.prepare(other)
    compiled = torch.compile(prepared, backend="eager")
    assert accelerator.unwrap_model(compiled, keep_torch_compile=False) is other
    assert accelerator.unwrap_model(compiled) is compiled and compiled._orig_mod is other


@pytest.mark.parametrize("is_compiled_first", [False, True])
def test_a_compiled_model_trains_as_a_plain_one(is_compiled_first):
    accelerator = Accelerator(cpu=True)
    net = make_net()
    twin = copy.deepcopy(net)
    if is_compiled_first:
        model = accelerator.prepare(torch.compile(net, backend="eager"))
    else:
        model = torch.compile(accelerator.prepare(net), backend="eager")
    x = torch.randn(5, 3)
    accelerator.backward(model(x).square().mean())
    twin(x).square().mean().backward()
    for ours, expected in zip(net.parameters(), twin.parameters()):
        assert torch.equal(ours.grad, expected.grad)


TWO = """
import copy
import torch
from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs

accelerator = Accelerator(
    gradient_accumulation_steps=2,
    kwargs_handlers=[DistributedDataParallelKwargs(bucket_cap_mb=1)],
)
rank = accelerator.process_index
graphs = []


def backend(graph, inputs):
    graphs.append(graph)
    return graph.forward


def local_gradient(net, x):
    net = copy.deepcopy(net)
    net(x).mean().backward()
    return torch.cat([p.grad.flatten() for p in net.parameters()])


def gradient(net):
    return torch.cat([p.grad.flatten() for p in net.parameters()])


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(*[torch.nn.Linear(300, 300) for _ in range(6)])

    def forward(self, x):
        return self.layers(x)


def check(order, is_torchs):
    torch.manual_seed(0)
    net = Net().layers if is_torchs else Net()
    torch._dynamo.reset()
    graphs.clear()
    model = net
    for step in order.split():
        compiles = step == "compile"
        model = torch.compile(model, backend=backend) if compiles else accelerator.prepare(model)
    torch.manual_seed(rank)
    x = torch.randn(4, 300)
    own = local_gradient(net, x)
    everybody = accelerator.gather(own[None]).mean(0)

    with accelerator.no_sync(model):
        accelerator.backward(2 * model(x).mean())
    assert torch.allclose(gradient(net), own, atol=1e-6), "no_sync held nothing back"
    net.zero_grad()
    for number in range(2):
        with accelerator.accumulate(model):
            accelerator.backward(model(x).mean())
            expected = own / 2 if number == 0 else everybody
            # Sums in another order.
            assert torch.allclose(gradient(net), expected, atol=1e-6), number
    net.zero_grad()
    accelerator.unwrap_model(model)
    with accelerator.no_sync(model):
        accelerator.backward(2 * model(x).mean())
    assert torch.allclose(gradient(net), own, atol=1e-6), "after unwrap_model"
    return len(graphs)


# 2 MiB of parameters in buckets of 1 MiB: a graph for each.
orders = ["compile prepare", "prepare compile"]
if not torch.__version__.startswith("2.14"):  # It refuses a second compile.
    orders += ["compile prepare compile", "prepare compile compile"]
    orders += ["compile prepare compile compile"]
answer(all(check(order, torchs) > 1 for order in orders for torchs in (True, False)))
"""


def test_accumulation_and_buckets_reach_compiled_models_on_two_processes(tmp_path):
    assert ranks.run_ours(TWO, tmp_path) == [True, True]


WHOLE = """
import torch
from accelerate import Accelerator

accelerator = Accelerator(mixed_precision="bf16")


class Own(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(4, 4)

    def forward(self, x):
        return {"out": [self.inner(x)]}


def num_graphs(net, output_of):
    torch._dynamo.reset()
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    model = torch.compile(accelerator.prepare(net), backend=backend, fullgraph=True)
    for _ in range(2):
        output = output_of(model(torch.ones(2, 4)))
        assert output.dtype == torch.float32
        accelerator.backward(output.sum())
    return len(graphs)


torchs = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
answer([num_graphs(torchs, lambda x: x), num_graphs(Own(), lambda x: x["out"][0])])
"""


def test_on_two_processes_the_compiler_sees_the_whole_forward_and_no_frame_of_ours(tmp_path):
    assert ranks.run_ours(WHOLE, tmp_path) == [[1, 1]] * 2


@pytest.mark.parametrize("is_torchs", [True, False])
def test_a_function_of_a_module_that_is_compiled_twice_is_refused(is_torchs):
    class Net(torch.nn.Sequential):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x)

    net = make_net() if is_torchs else Net(*make_net())
    twice = torch.compile(torch.compile(net, backend="eager"), backend="eager")
    accelerator = Accelerator(cpu=True)
    with pytest.raises(UsageError, match=r"^\[prepare\] Got a function that calls a \w+, because .*$"):
        accelerator.prepare(twice)
    function = torch.compile(lambda x: x, backend="eager")
    assert accelerator.prepare(function) is function
    again = torch.compile(accelerator.prepare(net), backend="eager")
    again = torch.compile(again, backend="eager")
    assert accelerator.prepare(again) is again


# --- by the launcher ----------------------------------------------------------------------------

FLAGS = [
    ["--dynamo_backend=eager"],
    ["--dynamo_backend", "no", "--dynamo_mode", "max-autotune"],
    ["--dynamo_backend=aot_eager", "--dynamo_use_dynamic", "--dynamo_use_regional_compilation"],
    ["--config_file=named.yaml"],
    ["--config_file=named.yaml", "--dynamo_backend=eager", "--dynamo_use_fullgraph"],
]
NAMED = """distributed_type: 'NO'
dynamo_config:
  dynamo_backend: AOT_EAGER
  dynamo_mode: default
  dynamo_use_dynamic: false
  dynamo_use_fullgraph: true
"""
ORIGINAL = f"""
import json, os
from accelerate.commands import launch
from accelerate.utils import TorchDynamoPlugin
from accelerate.utils.launch import prepare_simple_launcher_cmd_env
variables = dict(os.environ)
found = []
for flags in {FLAGS!r}:
    args = launch.launch_command_parser().parse_args(["--cpu", *flags, "script.py"])
    args, _, _ = launch._validate_launch_command(args)
    os.environ.update(prepare_simple_launcher_cmd_env(args)[1])
    found.append(TorchDynamoPlugin().to_dict())
    os.environ.clear()
    os.environ.update(variables)
print(json.dumps(found))
"""
LAUNCHED = """
import json, torch
from accelerate import Accelerator
accelerator = Accelerator()
model = accelerator.prepare(torch.nn.Linear(2, 1))
plugin = accelerator.state.dynamo_plugin
is_compiled = hasattr(model, "_orig_mod") or model._compiled_call_impl is not None
assert is_compiled == (plugin.backend != "NO"), model
print(json.dumps(plugin.to_dict()))
"""


def launch(folder, flags):
    starter = ["accelerate", "launch", "--cpu", "--num_processes=1", *flags]
    return json.loads(ranks.check(ranks.run(starter, folder, LAUNCHED)).splitlines()[-1])


def test_the_launcher_compiles_as_the_originals(tmp_path, monkeypatch):
    (tmp_path / "named.yaml").write_text(NAMED)
    monkeypatch.chdir(tmp_path)
    expected = json.loads(run_python(ORIGINAL, python=originals_python()).splitlines()[-1])
    chosen = cases(list(range(len(FLAGS))), small=[2, 4])
    for number in chosen:
        assert launch(tmp_path, FLAGS[number]) == expected[number], FLAGS[number]


def test_every_backend_is_launched_and_of_a_program_in_cpp_a_line_says_that_it_is_not():
    def told(*words):
        command = ["accelerate", "launch", "--cpu", "--num_processes=1", *words]
        return subprocess.run(command, capture_output=True, text=True)

    for backend in DynamoBackend:
        flag = f"--dynamo_backend={backend.value.lower()}"
        result = told(flag, "--no_python", "true")
        line = "dynamo_backend has no effect on C++ programs: the models of true are not compiled"
        assert result.returncode == 0 and (line in result.stderr) == (backend != "NO")
    refused = told("--dynamo_backend=gcc", "true")
    assert refused.returncode == 2 and "inductor" in refused.stderr
