# SPDX-License-Identifier: Apache-2.0
"""The command line as Python code sees it: parsers, launches, console scripts, other commands."""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from accelerate.commands import _program
from accelerate.commands.launch import (
    _validate_launch_command,
    launch_command,
    launch_command_parser,
)
from accelerate.commands.utils import CustomArgumentParser
from accelerate.utils.launch import (
    _filter_args,
    env_var_path_add,
    prepare_simple_launcher_cmd_env,
)
from original import PROGRAMS, ROOT, originals_python, run_python


@pytest.fixture
def script() -> Path:
    return PROGRAMS / "commands/print_words.py"


def python_m(module: str, *words: str, **settings: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", module, *words],
        capture_output=True,
        text=True,
        timeout=300,
        **settings,
    )


# --- parsers ----------------------------------------------------------------------------------


def test_the_parser_has_every_flag_that_the_document_of_the_program_lists() -> None:
    documented = re.findall(r"^\| .*?`--(\w+)` \|", (ROOT / "docs/options.md").read_text(), re.M)
    assert len(documented) > 30
    known = launch_command_parser()._option_string_actions
    for name in ["config_file", *documented]:
        assert known[f"--{name}"] is known[f"--{name.replace('_', '-')}"]
        assert known[f"--{name}"].dest == name
    assert known["-m"].dest == "module" and known["-q"].dest == "quiet"


def test_the_help_has_the_groups_and_the_words_of_the_program() -> None:
    text = launch_command_parser().format_help()
    for part in ("Several machines", "--num_processes", "training_script", "Total number of"):
        assert part in text
    assert "parent_folder" not in text and "=false" not in text


def test_values_are_those_of_the_original_where_it_has_the_flag() -> None:
    words = "--cpu --num-processes 2 --main_process_ip host --max_restarts=3 -m pkg.train --cpu x"
    ours = launch_command_parser().parse_args(words.split())
    code = (
        "from accelerate.commands.launch import launch_command_parser as p; import json\n"
        f"print(json.dumps(vars(p().parse_args({words.split()!r})), default=sorted))"
    )
    theirs = json.loads(run_python("-c", code, python=originals_python()))
    for name in ("cpu", "multi_gpu", "num_processes", "num_machines", "main_process_ip", "module"):
        assert getattr(ours, name) == theirs[name], name
    assert ours.training_script == theirs["training_script"] == "pkg.train"
    assert ours.training_script_args == theirs["training_script_args"] == ["--cpu", "x"]
    assert sorted(ours.nondefault) == theirs["nondefault"]


def test_a_namespace_becomes_the_command_line_that_it_came_from() -> None:
    parse = launch_command_parser().parse_args
    given = "--num_processes auto --debug=false --export A --export B,C --log_dir= -q t.py -x"
    args = parse(given.split())
    assert _program.command_line(args, "launch") == [
        "launch",
        "--num_processes=auto",
        "--export=A,B,C",
        "--log_dir=",
        "--quiet=true",
        "--debug=false",
        "--",
        "t.py",
        "-x",
    ]
    args = parse(["t.py"])
    args.num_machines, args.timestamps = 2, True
    words = _program.command_line(args, "launch")
    assert words == ["launch", "--num_machines=2", "--timestamps=true", "--", "t.py"]


def test_a_flag_of_another_engine_is_explained_by_the_program(capsys) -> None:
    for flag, part in (
        ("--use_megatron_lm", "Megatron-LM is not supported"),
        ("--num_proceses", "mean"),
    ):
        with pytest.raises(SystemExit) as error:
            launch_command_parser().parse_args([flag, "train.py"])
        assert error.value.code == 2
        assert part in capsys.readouterr().err


def test_subparsers_get_the_command_with_its_function() -> None:
    from accelerate.commands.config import get_config_parser
    from accelerate.commands.env import env_command, env_command_parser
    from accelerate.commands.estimate import estimate_command_parser
    from accelerate.commands.merge import merge_command_parser
    from accelerate.commands.test import test_command_parser
    from accelerate.commands.to_fsdp2 import to_fsdp2_command_parser
    from accelerate.commands.tpu import tpu_command_parser

    parser = CustomArgumentParser("accelerate", allow_abbrev=False)
    subparsers = parser.add_subparsers()
    for add in (
        get_config_parser,
        env_command_parser,
        estimate_command_parser,
        launch_command_parser,
        merge_command_parser,
        test_command_parser,
        to_fsdp2_command_parser,
        tpu_command_parser,
    ):
        add(subparsers=subparsers)
    assert parser.parse_args(["env"]).func is env_command
    assert parser.parse_args(["launch", "--cpu", "x.py"]).func is launch_command
    args = parser.parse_args(["estimate-memory", "folder", "--dtypes", "int8", "int4"])
    assert _program.command_line(args, "estimate-memory")[1:] == [
        "folder",
        "--dtypes",
        "int8",
        "int4",
    ]
    args = parser.parse_args(["config", "default", "--config-file", "here"])
    assert args.config_file == "here"


def test_the_parser_class_is_the_originals() -> None:
    program = PROGRAMS / "commands/parser_class.py"
    theirs = run_python(program, python=originals_python())
    assert run_python(program, path=os.environ["PYTHONPATH"]) == theirs


# --- launches ---------------------------------------------------------------------------------


def test_launch_command_starts_the_script_on_its_processes(script: Path, capfd) -> None:
    words = ["--cpu", "--num_processes", "2", str(script), "--lr", "1e-3", "--cpu"]
    launch_command(launch_command_parser().parse_args(words))
    lines = re.findall(r"of .*", capfd.readouterr().out)
    assert sorted(lines) == [f"of {rank} {sys.prefix} --lr 1e-3 --cpu" for rank in "01"]


def test_helpers_of_other_peoples_launchers(script: Path, tmp_path: Path, monkeypatch) -> None:
    words = ["--cpu", "--num_processes", "2", "--main_training_function", "main", str(script), "x"]
    parsed = launch_command_parser().parse_args(words)
    config = tmp_path / "config.yaml"
    config.write_text(
        "compute_environment: LOCAL_MACHINE\ndistributed_type: 'NO'\nmixed_precision: bf16\n"
        "num_processes: 1\nuse_cpu: true\n"
    )
    args, defaults, is_from_file = _validate_launch_command(parsed)
    assert args is parsed and (defaults, is_from_file) == (None, False)
    parsed.config_file = str(config)
    args, defaults, is_from_file = _validate_launch_command(parsed)
    assert defaults.mixed_precision == "bf16" and is_from_file
    command, environment = prepare_simple_launcher_cmd_env(args)
    launched = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert launched.returncode == 0, launched.stderr
    lines = re.findall(r"of .*", launched.stdout)
    assert sorted(lines) == [f"of {rank} {sys.prefix} x" for rank in "01"]
    args.use_megatron_lm = True
    with pytest.raises(NotImplementedError, match="Megatron-LM"):
        _validate_launch_command(args)
    # As the original, which filters the arguments of torchrun so.
    parser = argparse.ArgumentParser()
    parser.add_argument("--rank", type=int, default=1)
    parser.add_argument("--color", default="red")
    given = argparse.Namespace(color="blue", other=3)
    assert vars(_filter_args(given, parser, ["--rank", "5"])) == {"rank": 5, "color": "blue"}
    monkeypatch.setenv("FOLDERS", "/a::/b")
    assert env_var_path_add("FOLDERS", Path("/c")) == "/a:/b:/c"
    assert env_var_path_add("NO_FOLDERS", "/c") == "/c"


def test_a_failed_launch_raises_and_a_quiet_one_exits(tmp_path: Path, capfd) -> None:
    failing = tmp_path / "fail.py"
    failing.write_text("raise SystemExit(3)")
    parse = launch_command_parser().parse_args
    with pytest.raises(subprocess.CalledProcessError) as error:
        launch_command(parse(["--cpu", "--num_processes", "2", str(failing)]))
    assert error.value.returncode == 3
    with pytest.raises(SystemExit):
        launch_command(parse(["--quiet", "--cpu", "--num_processes", "2", str(failing)]))


def test_an_attribute_that_asks_for_another_engine_is_refused() -> None:
    args = launch_command_parser().parse_args(["train.py"])
    args.use_megatron_lm = True
    args.my_own = True
    with pytest.raises(NotImplementedError, match="Megatron-LM"):
        launch_command(args)


def test_python_dash_m_is_the_program(script: Path) -> None:
    launched = python_m(
        "accelerate.commands.launch", "--cpu", "--num_processes", "2", str(script), "a b"
    )
    assert launched.returncode == 0, launched.stderr
    lines = re.findall(r"of .*", launched.stdout)
    assert sorted(lines) == [f"of {rank} {sys.prefix} a b" for rank in "01"]
    for module, usage in (
        ("accelerate.commands.launch", "accelerate launch"),
        ("accelerate.commands.accelerate_cli", "accelerate"),
        ("accelerate.commands.config.config", "accelerate config"),
        ("accelerate.commands.estimate", "accelerate estimate-memory"),
        ("accelerate.commands.merge", "accelerate merge-weights"),
        ("accelerate.commands.test", "accelerate test"),
    ):
        assert f"Usage: {usage} " in python_m(module, "--help").stdout
    refused = python_m("accelerate.commands.launch", "--use_megatron_lm", "train.py")
    assert refused.returncode == 2 and "Megatron-LM" in refused.stderr


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_signal_to_the_calling_process_ends_the_workers(tmp_path: Path) -> None:
    words = [PROGRAMS / "commands/launch_and_wait.py", PROGRAMS / "commands/wait.py"]
    caller = subprocess.Popen([sys.executable, *words], cwd=tmp_path)
    limit = time.monotonic() + 120
    while not all((tmp_path / rank).exists() for rank in "01"):
        assert caller.poll() is None and time.monotonic() < limit
        time.sleep(0.02)
    pids = [int((tmp_path / rank).read_text()) for rank in "01"]
    caller.send_signal(signal.SIGTERM)
    assert caller.wait(120) != 0
    while any(map(is_alive, pids)):
        assert time.monotonic() < limit
        time.sleep(0.02)


# --- other commands ---------------------------------------------------------------------------


def test_env_prints_what_it_returns(capsys) -> None:
    from accelerate.commands.env import env_command, env_command_parser

    info = env_command(env_command_parser().parse_args([]))
    printed = capsys.readouterr().out
    assert len(info) > 5
    assert all(f"- {name}: {value}" in printed for name, value in info.items())


def test_estimate_memory_and_merge_weights_run_the_program(tmp_path: Path, capfd) -> None:
    from accelerate.commands.estimate import estimate_command, estimate_command_parser
    from accelerate.commands.merge import merge_command, merge_command_parser

    with pytest.raises(subprocess.CalledProcessError):
        estimate_command(estimate_command_parser().parse_args([str(tmp_path / "no")]))
    words = [str(tmp_path / "no"), str(tmp_path / "out")]
    with pytest.raises(subprocess.CalledProcessError):
        merge_command(merge_command_parser().parse_args(words))
    assert capfd.readouterr().err.count(str(tmp_path / "no")) == 2


GCLOUD = [
    ["--command", "ls", "--command", "echo a", "b", "--tpu_name", "t", "--tpu_zone", "z"],
    "--command ls --tpu_name t --tpu_zone z --install_accelerate --use_alpha".split(),
    "--command ls --tpu_name t --tpu_zone z --install_accelerate --accelerate_version 1.0".split(),
    "--command ls --tpu_name t --tpu_zone z --install_accelerate --accelerate_version dev".split(),
    "--command_file file --tpu_name t --tpu_zone z".split(),
]


def test_the_command_for_a_tpu_pod_is_the_originals(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("one\ntwo three\n")
    words = (PROGRAMS / "commands/tpu_pods.py", tmp_path, json.dumps(GCLOUD))
    theirs = run_python(*words, python=originals_python())
    assert theirs.count("gcloud") == len(GCLOUD)
    assert run_python(*words, path=os.environ["PYTHONPATH"]) == theirs


def test_a_tpu_pod_is_reached_by_the_gcloud_on_the_path(tmp_path: Path, monkeypatch) -> None:
    from accelerate.commands.tpu import tpu_command_launcher, tpu_command_parser

    # The machine may have a gcloud of its own, which no test may run.
    monkeypatch.setenv("PATH", str(tmp_path))
    args = tpu_command_parser().parse_args(GCLOUD[0])
    with pytest.raises(FileNotFoundError, match="^.tpu-config. The program `gcloud`[^\n]*$"):
        tpu_command_launcher(args)
    program = tmp_path / "gcloud"
    program.write_text(f"#!/bin/sh\nprintf '%s\\n' \"$@\" > '{tmp_path}/given'\n")
    program.chmod(0o755)
    tpu_command_launcher(args)
    assert (tmp_path / "given").read_text().splitlines() == [
        *"compute tpus tpu-vm ssh t --zone z --command".split(),
        "cd /usr/share; ls; echo a; b",
        *"--worker all".split(),
    ]


def test_what_is_missing_for_tpus_and_sagemaker_is_one_line() -> None:
    from accelerate.commands import launch
    from accelerate.commands.config.sagemaker import get_sagemaker_input

    nothing = argparse.Namespace()
    for call, words in (
        (lambda: launch.tpu_pod_launcher(nothing), "TPUs are not supported"),
        (lambda: launch.sagemaker_launcher(nothing, nothing), "SageMaker is not supported"),
        (get_sagemaker_input, "SageMaker is not supported"),
    ):
        with pytest.raises(NotImplementedError, match=f"^[^\n]*{words}[^\n]*$"):
            call()
    for command in ("tpu-config", "to-fsdp2"):
        told = python_m("accelerate.commands.accelerate_cli", command)
        assert told.returncode == 2
        assert (
            f"'{command}' is a command of the Python package; run `python -m accelerate."
            in told.stderr
        )


FSDP_SECTION = {
    "fsdp_sharding_strategy": "SHARD_GRAD_OP",
    "fsdp_backward_prefetch": "BACKWARD_PRE",
    "fsdp_forward_prefetch": False,
    "fsdp_use_orig_params": True,
    "fsdp_offload_params": True,
    "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
    "fsdp_of_tomorrow": 3,
}


def test_to_fsdp2_converts_as_the_original_does(tmp_path: Path) -> None:
    from accelerate.commands.to_fsdp2 import load_config, to_fsdp2_command, to_fsdp2_command_parser

    sections = [FSDP_SECTION, {}, {"fsdp_version": 2}, {"fsdp_reshard_after_forward": "FULL_SHARD"}]
    words = (PROGRAMS / "commands/convert_to_fsdp2.py", json.dumps(sections))
    theirs = run_python(*words, python=originals_python())
    assert json.loads(run_python(*words, path=os.environ["PYTHONPATH"])) == json.loads(theirs)

    source, target = tmp_path / "one.yaml", tmp_path / "two.yaml"
    source.write_text(json.dumps({"distributed_type": "FSDP", "fsdp_config": FSDP_SECTION}))
    parse = to_fsdp2_command_parser().parse_args
    with pytest.raises(ValueError, match="--output_file must be provided"):
        to_fsdp2_command(parse(["--config_file", str(source)]))
    to_fsdp2_command(parse(["--config_file", str(source), "--output_file", str(target)]))
    assert load_config(str(target))["fsdp_config"]["fsdp_version"] == 2
    with pytest.raises(FileExistsError):
        to_fsdp2_command(parse(["--config_file", str(source), "--output_file", str(target)]))
