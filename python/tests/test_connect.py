# SPDX-License-Identifier: Apache-2.0
"""Connecting: decisions in C++, and a connection that ends and is made again."""

from __future__ import annotations

import copy
import datetime
import os
import socket
import subprocess
import sys

import pytest
import ranks

from accelerate import _C, InitProcessGroupKwargs
from accelerate._process import connect as _connect
from accelerate.errors import ConfigError


def test_backend_and_timeouts_are_decided_once():
    environment = _C.environment_of_group(rank=0, world_size=2, local_rank=0, local_world_size=2)
    assert environment.choose_backend(None, cpu=True) == "gloo"
    assert environment.choose_backend("gloo", cpu=True) == "gloo"
    for wanted in ("nccl", "cpu:gloo,cuda:nccl", "mpi"):
        with pytest.raises(ConfigError, match=f"'{wanted}' is not available. Use gloo, or"):
            environment.choose_backend(wanted, cpu=True)
    assert _C.collective_timeout() == datetime.timedelta(minutes=10)


def test_what_the_user_gives_is_known_even_if_it_equals_the_default():
    assert InitProcessGroupKwargs()._given() == {}
    assert InitProcessGroupKwargs(backend="nccl")._given() == {"backend": "nccl"}
    minutes = datetime.timedelta(minutes=10)
    assert InitProcessGroupKwargs(timeout=minutes)._given() == {"timeout": minutes}
    copied = copy.deepcopy(InitProcessGroupKwargs(init_method="env://"))
    assert copied._given() == {"init_method": "env://"}


@pytest.mark.parametrize(
    ("given", "kind", "said"),
    [
        ({"timeout": 77}, TypeError, "must be a datetime.timedelta, got 77"),
        ({"timeout": datetime.timedelta(0)}, ConfigError, "must be positive, got 0:00:00"),
        ({"timeout": datetime.timedelta(seconds=-1)}, ConfigError, "must be positive"),
        ({"backend": 3}, ConfigError, "must be a string such as 'gloo', got 3"),
    ],
)
def test_arguments_of_the_group_are_checked_before_first_contact(monkeypatch, given, kind, said):
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(kind, match=said):
        _connect.connect(True, given)


def test_a_chosen_backend_has_the_timeout_of_the_original(tmp_path):
    assert ranks.launch_ours("connect/gloo_timeout.py", tmp_path) == [1800.0] * 2


def test_nccl_on_cpus_becomes_gloo_with_a_warning(tmp_path):
    said = 'backend="nccl" needs GPUs. This run uses the CPU and Gloo.'
    assert ranks.launch_ours("connect/nccl_on_cpus.py", tmp_path) == [["gloo", [said]]] * 2


def test_one_process_is_alone():
    group = _C.ProcessGroup()
    assert group.is_solo and not group.is_shut_down
    group.shutdown()
    assert not group.is_shut_down


def test_the_timeout_of_the_group_is_that_of_first_contact(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    found = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    said = subprocess.run(
        [sys.executable, str(ranks.PROGRAMS / "connect/first_contact_times_out.py")],
        env=os.environ | found,
        capture_output=True,
        text=True,
    )
    assert "did not find rank 0 within 1 s" in said.stdout, said.stderr


def test_an_accelerator_after_the_end_connects_anew(tmp_path):
    expected = [1, 1, 3, 3, 5, 5, 7, 7]
    assert ranks.run_ours("connect/connect_again.py", tmp_path) == [expected, expected]
