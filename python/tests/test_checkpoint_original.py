# SPDX-License-Identifier: Apache-2.0
"""Hugging Face Accelerate's checkpoints load here, and ours in its layout load there."""

from __future__ import annotations

import json

import pytest
import ranks
import tiers


def train(is_ours, folder, num_processes, begin=0, at=0, load="", save="", **how):
    told = {"begin": begin, "at": at, "load": load, "save": save, "how": how}
    fork = ranks.fork_ours if is_ours else ranks.fork_original
    fork("checkpoints/train_for_original.py", folder, json.dumps(told), num_ranks=num_processes)
    answers = [folder / f"answer{rank}" for rank in range(num_processes)]
    found = [json.loads(answer.read_text()) for answer in answers]
    for answer in answers:
        answer.unlink()
    return found


@pytest.mark.parametrize("num_processes", tiers.cases([1, 2], small=[2]))
def test_a_checkpoint_of_the_original_resumes_here_and_ours_resumes_there(tmp_path, num_processes):
    theirs = train(False, tmp_path, num_processes, at=4, save="theirs")
    assert not (tmp_path / "theirs/checkpoint.json").exists()
    # A new loop draws from generators, so resumed runs are compared with resumed runs there.
    rest = train(False, tmp_path, num_processes, begin=4, load="theirs")
    assert train(True, tmp_path, num_processes, begin=4, load="theirs") == rest
    ours = train(True, tmp_path, num_processes, at=4, save="ours", layout="accelerate")
    assert ours == theirs
    names = {path.name for path in (tmp_path / "ours").iterdir()}
    assert names == {path.name for path in (tmp_path / "theirs").iterdir()}
    assert train(False, tmp_path, num_processes, begin=4, load="ours") == rest
    assert train(True, tmp_path, num_processes, begin=4, load="ours") == rest


def test_weights_of_the_original_as_pickles_load(tmp_path):
    train(False, tmp_path, 1, at=4, save="theirs", safe_serialization=False)
    assert (tmp_path / "theirs/pytorch_model.bin").exists()
    rest = train(False, tmp_path, 1, begin=4, load="theirs")
    assert train(True, tmp_path, 1, begin=4, load="theirs") == rest
    train(True, tmp_path, 1, at=4, save="ours", layout="accelerate", safe_serialization=False)
    assert train(False, tmp_path, 1, begin=4, load="ours") == rest


def test_a_model_of_transformers_with_tied_weights_resumes_and_is_read_by_it(tmp_path):
    pytest.importorskip("transformers")
    assert "equal" in ranks.fork_ours("checkpoints/tied_transformer.py", tmp_path, num_ranks=1)
