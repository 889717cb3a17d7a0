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
from original import PROGRAMS, originals_python, run_python
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


def test_accumulation_and_buckets_reach_compiled_models_on_two_processes(tmp_path):
    assert ranks.run_ours("compiled/accumulation_and_buckets.py", tmp_path) == [True, True]


def test_on_two_processes_the_compiler_sees_the_whole_forward_and_no_frame_of_ours(tmp_path):
    assert ranks.run_ours("compiled/whole_forward.py", tmp_path) == [[1, 1]] * 2


@pytest.mark.parametrize("is_torchs", [True, False])
def test_a_function_of_a_module_that_is_compiled_twice_is_refused(is_torchs):
    class Net(torch.nn.Sequential):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x)

    net = make_net() if is_torchs else Net(*make_net())
    twice = torch.compile(torch.compile(net, backend="eager"), backend="eager")
    accelerator = Accelerator(cpu=True)
    with pytest.raises(
        UsageError,
        match=r"^\[prepare\] Got a function that calls an object of type \w+, because .*$",
    ):
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
LAUNCHED = "compiled/launched_plugin.py"


def launch(folder, flags):
    starter = ["accelerate", "launch", "--cpu", "--num_processes=1", *flags]
    return json.loads(ranks.check(ranks.run(starter, folder, LAUNCHED)).splitlines()[-1])


def test_the_launcher_compiles_as_the_originals(tmp_path, monkeypatch):
    (tmp_path / "named.yaml").write_text(NAMED)
    monkeypatch.chdir(tmp_path)
    program = PROGRAMS / "compiled/originals_plugins.py"
    out = run_python(program, json.dumps(FLAGS), python=originals_python())
    expected = json.loads(out.splitlines()[-1])
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
