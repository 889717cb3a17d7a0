# SPDX-License-Identifier: Apache-2.0
"""Configuration files as objects, compared with the original's classes."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import accelerate.utils
import pytest
from accelerate.commands._program import find_program
from accelerate.commands.config import load_config_from_file
from accelerate.commands.config.config_args import ClusterConfig, SageMakerConfig
from accelerate.commands.config.update import update_config
from accelerate.utils import ComputeEnvironment, DistributedType
from original import ROOT
from ranks import fork_original, fork_ours

FILES = sorted((ROOT / "tests/reference/config").glob("*.yaml"))

SAGEMAKER = {
    "compute_environment": "AMAZON_SAGEMAKER",
    "distributed_type": "DATA_PARALLEL",
    "mixed_precision": "fp16",
    "use_cpu": False,
    "debug": False,
    "ec2_instance_type": "ml.p3.16xlarge",
    "iam_role_name": "role",
}


def load_both(tmp_path: Path, paths: list[Path]) -> tuple[dict, dict]:
    words = ("config_files/load_configurations.py", tmp_path, str(tmp_path), *map(str, paths))
    ours, theirs = (fork(*words, num_ranks=1) for fork in (fork_ours, fork_original))
    return json.loads(ours), json.loads(theirs)


def test_files_of_every_version_load_as_the_original_loads_them(tmp_path: Path) -> None:
    sagemaker, json_file = tmp_path / "sagemaker.yaml", tmp_path / "plain.json"
    sagemaker.write_text(json.dumps(SAGEMAKER))
    json_file.write_text(
        json.dumps({"distributed_type": "NO", "mixed_precision": "no", "num_processes": 1})
    )
    ours, theirs = load_both(tmp_path, [*FILES, sagemaker, json_file])
    assert len(theirs) > 40
    refused = [path for path, found in theirs.items() if found == "refused"]
    for path, found in theirs.items():
        # Keys that were removed make the original reject its own old files.
        assert path in refused or ours[path] == found, path
    assert "refused" not in ours.values()
    assert ours[str(sagemaker)][0] == "SageMakerConfig"


def test_what_is_written_is_read_by_the_original(tmp_path: Path) -> None:
    config = ClusterConfig(
        compute_environment="LOCAL_MACHINE",
        distributed_type="MULTI_GPU",
        mixed_precision="bf16",
        use_cpu=False,
        debug=True,
        num_processes=4,
        gpu_ids="0,1,2,3",
        fsdp_config={"fsdp_version": 2},
    )
    assert config.compute_environment is ComputeEnvironment.LOCAL_MACHINE
    assert config.distributed_type is DistributedType.MULTI_GPU
    paths = [tmp_path / "folder" / "one.yaml", tmp_path / "two.json"]
    config.to_yaml_file(paths[0])
    config.to_json_file(paths[1])
    ours, theirs = load_both(tmp_path, paths)
    assert ours == theirs
    assert ours[str(paths[0])][1] == ours[str(paths[1])][1] == config.to_dict()
    assert json.loads(paths[1].read_text())["num_processes"] == 4


def test_keys_of_this_program_survive(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text("distributed_type: NO\nmax_restarts: 3\nlog_dir: logs\n")
    config = load_config_from_file(str(path))
    assert config.max_restarts == 3
    config.to_yaml_file(path)
    assert load_config_from_file(str(path)).to_dict()["log_dir"] == "logs"


def test_errors_name_the_file_and_the_line(tmp_path: Path) -> None:
    path = tmp_path / "wrong.yaml"
    with pytest.raises(FileNotFoundError, match="wrong.yaml` does not exist"):
        load_config_from_file(str(path))
    path.write_text("distributed_type: NO\nnum_proceses: 3\n")
    with pytest.raises(ValueError, match="wrong.yaml:2.*num_proceses.*num_processes"):
        load_config_from_file(str(path))
    path.write_text("num_processes: 3\n")
    with pytest.raises(ValueError, match="A `distributed_type` must be specified"):
        load_config_from_file(str(path))
    path.write_text("compute_environment: AMAZON_SAGEMAKER\ndistributed_type: NO\n")
    with pytest.raises(ValueError, match="wrong.yaml.*iam_role_name"):
        load_config_from_file(str(path))
    assert "ec2_instance_type" in SageMakerConfig.__dataclass_fields__


@pytest.mark.parametrize("variables", [{"HF_HOME": "a"}, {"XDG_CACHE_HOME": "b"}, {}])
@pytest.mark.parametrize("name", ["", "default_config.yaml", "default_config.json"])
def test_the_default_file_is_the_programs(
    tmp_path: Path, variables: dict[str, str], name: str
) -> None:
    environment = {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    environment |= {key: str(tmp_path / value) for key, value in variables.items()}
    home = {"HF_HOME": "a", "XDG_CACHE_HOME": "b/huggingface"}.get(
        next(iter(variables), ""), ".cache/huggingface"
    )
    folder = tmp_path / home / "accelerate"
    if name:
        folder.mkdir(parents=True)
        (folder / name).write_text("distributed_type: NO\n")
    shown = subprocess.run(
        [find_program("test"), "config", "show"], env=environment, capture_output=True, text=True
    ).stdout
    expected = str(folder / (name or "default_config.yaml"))
    assert expected in shown.splitlines()[0]
    told = fork_ours("config_files/default_file.py", tmp_path, json.dumps(environment), num_ranks=1)
    assert told.strip() == expected


def test_write_basic_config_suits_the_machine_and_never_overwrites(tmp_path: Path, capsys) -> None:
    path = tmp_path / "folder" / "basic.yaml"
    assert accelerate.utils.write_basic_config("BF16", path) == path
    written = path.read_text()
    ours, theirs = load_both(tmp_path, [path])
    assert ours == theirs and ours[str(path)][1]["mixed_precision"] == "bf16"
    assert accelerate.utils.write_basic_config(save_location=str(path)) is False
    assert "is not overwritten" in capsys.readouterr().out
    assert path.read_text() == written
    with pytest.raises(ValueError, match="fp12"):
        accelerate.utils.write_basic_config("fp12", tmp_path / "other.yaml")
    assert not (tmp_path / "other.yaml").exists()


def test_update_brings_an_old_file_to_todays_form(tmp_path: Path) -> None:
    from argparse import Namespace

    path = tmp_path / "old.yaml"
    path.write_text("distributed_type: NO\nfp16: true\n")
    assert update_config(Namespace(config_file=str(path))) == str(path)
    assert load_config_from_file(str(path)).mixed_precision == "fp16"
    with pytest.raises(ValueError, match="nowhere.yaml"):
        update_config(Namespace(config_file=str(tmp_path / "nowhere.yaml")))
