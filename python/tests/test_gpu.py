# SPDX-License-Identifier: Apache-2.0
"""On a GPU: precision, placement, and groups with and without NCCL."""

from __future__ import annotations

import os

import pytest
import ranks
import torch
from both_packages import Runs, differences, python_with

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


def nccl_variables(num_ranks: int) -> dict[str, str]:
    """Environment variables with which NCCL ranks run here. They share a GPU if there are fewer
    than ranks, which NCCL 2.30 and later allow; see docs/building.md."""
    if torch.cuda.device_count() >= num_ranks:
        return {}
    variables = {
        "NCCL_MULTI_RANK_GPU_ENABLE": "1",
        "NCCL_NVLS_ENABLE": "0",
        # With few blocks per kernel, ranks do not wait for each other to get onto the GPU.
        "NCCL_MAX_CTAS": "4",
    }
    if library := os.environ.get("ACCELERATE_TEST_NCCL"):
        return {**variables, "LD_PRELOAD": library}
    version = torch.cuda.nccl.version()
    if version < (2, 30):
        pytest.skip(
            f"{num_ranks} NCCL ranks need {num_ranks} GPUs, or NCCL 2.30 or later to share one. "
            f"This machine has {torch.cuda.device_count()} and NCCL {'.'.join(map(str, version))}. "
            "Set ACCELERATE_TEST_NCCL to a newer libnccl.so.2 (docs/building.md)."
        )
    return variables


def launch(num_processes: int) -> list[str]:
    return ["accelerate", "launch", "--num_processes", str(num_processes)]


def test_fp16_trains_as_pytorchs_own_scaler(tmp_path):
    import sys

    assert "equal" in ranks.check(ranks.run([sys.executable], tmp_path, "gpu/fp16.py"))


def test_trainer_resumes_in_fp16_as_if_it_had_not_ended(tmp_path):
    runs = Runs("trainer.py", tmp_path, python_with("libraries"), 1, ["resumed_fp16"])
    original, ours = (answers[0] for answers in runs.compared("resumed_fp16"))
    assert ours["device"] == "cuda" and "scaler.pt" in ours["files"]
    # Our kernel adds the squares of a norm in another order, which changes its last bit.
    norms = {
        name: [
            entry.pop("grad_norm")
            for run in ("whole", "resumed")
            for entry in answer[run]["history"]
            if "grad_norm" in entry
        ]
        for name, answer in (("original", original), ("ours", ours))
    }
    assert len(norms["ours"]) > 10
    assert norms["ours"] == pytest.approx(norms["original"], rel=2e-7)
    assert norms["ours"][len(norms["ours"]) // 2 :] == norms["ours"][: len(norms["ours"]) // 2]
    assert differences(original, ours) == []
    whole, resumed = ours["whole"], ours["resumed"]
    # The last line has the mean of the losses since the start.
    assert differences(whole.pop("history")[:-1], resumed.pop("history")[:-1]) == []
    assert differences(whole, resumed) == []


def test_processes_that_share_a_gpu_end_with_the_same_weights(tmp_path):
    out = ranks.check(
        ranks.run(["accelerate", "launch", "--num_processes", "2"], tmp_path, "gpu/shared_gpu.py")
    )
    assert "same 0" in out and "same 1" in out


@pytest.mark.parametrize("backend", ["nccl", "cpu:gloo,cuda:nccl"])
def test_a_group_of_nccl_that_the_user_has_made_carries_cpu_values_too(tmp_path, backend):
    import sys

    result = ranks.run([sys.executable], tmp_path, "gpu/own_nccl_group.py", backend)
    assert "carried" in ranks.check(result)


def test_a_notebook_with_cuda_in_use_launches_fresh_processes(tmp_path):
    import sys

    pytest.importorskip("cloudpickle")
    out = ranks.check(ranks.run([sys.executable], tmp_path, "gpu/notebook_with_cuda.py"))
    assert "('cuda', 1.0)" in out and "processes 2" in out


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_sharded_training_of_processes_that_share_a_gpu_equals_ddp(tmp_path, backend):
    variables = nccl_variables(2) if backend == "nccl" else {}
    out = ranks.check(ranks.run(launch(2), tmp_path, "gpu/sharded_by_two.py", backend, **variables))
    assert "sharded 0" in out and "sharded 1" in out


@pytest.mark.parametrize("variables", [{}, {"TORCH_CUDA_SANITIZER": "1"}], ids=["", "sanitizer"])
def test_sharded_training_by_nccl_equals_ddp(tmp_path, variables):
    """Also with torch's CUDA sanitizer, which detects streams that use memory too early."""
    import sys

    result = ranks.run([sys.executable], tmp_path, "gpu/sharded_by_nccl.py", **variables)
    assert "sharded" in ranks.check(result)
    assert "CUDASanitizerErrors" not in result.stderr


CAPTURED_BY_NCCL = "gpu/captured_by_nccl.py"


@pytest.mark.parametrize("backend", ["nccl", "cpu:gloo,cuda:nccl"])
def test_captured_steps_that_synchronise_by_nccl_train_as_they_are_written(tmp_path, backend):
    import sys

    result = ranks.run([sys.executable], tmp_path, CAPTURED_BY_NCCL, backend)
    assert "captured" in ranks.check(result)
    assert "stream does not match" not in result.stderr


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_captured_steps_of_several_nccl_ranks_train_as_they_are_written(tmp_path, num_ranks):
    variables = nccl_variables(num_ranks)
    result = ranks.run(
        launch(num_ranks), tmp_path, CAPTURED_BY_NCCL, "cpu:gloo,cuda:nccl", **variables
    )
    assert ranks.check(result).count("captured") == num_ranks
    assert "stream does not match" not in result.stderr


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_replayed_passes_of_several_nccl_ranks_train_as_they_are_written(tmp_path, num_ranks):
    variables = nccl_variables(num_ranks)
    result = ranks.run(launch(num_ranks), tmp_path, "gpu/fast_by_nccl.py", **variables)
    assert ranks.check(result).count("fast\n") == num_ranks


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_several_nccl_ranks_train_as_pytorch_in_one_process(tmp_path, num_ranks):
    variables = nccl_variables(num_ranks)
    result = ranks.run(launch(num_ranks), tmp_path, "gpu/several_nccl_ranks.py", **variables)
    out = ranks.check(result)
    assert all(f"equal {rank}" in out for rank in range(num_ranks)), out
