# SPDX-License-Identifier: Apache-2.0
"""Processes that synchronise only every few steps, or have different numbers of batches."""

from __future__ import annotations

import json

import pytest
import ranks
import torch

from accelerate import Accelerator
from accelerate.local_sgd import LocalSGD
from accelerate.state import AcceleratorState

LOCAL_SGD = "uneven/local_sgd.py"


def test_local_sgd_trains_as_the_originals(tmp_path):
    ours = ranks.run_ours(LOCAL_SGD, tmp_path)
    assert ours == ranks.run_original(LOCAL_SGD, tmp_path)
    # Alone for two steps, together after the third and at the end.
    assert [a == b for a, b in zip(*ours)] == [False, False, True, False, False, True]


def test_nothing_is_averaged_after_an_exception_and_gradients_synchronise_again(tmp_path):
    assert ranks.run_ours("uneven/exception_in_local_sgd.py", tmp_path) == [[0.0, 1.5], [1.0, 1.5]]


def test_local_sgd_alone_is_nothing():
    AcceleratorState._reset_state(True)
    net = torch.nn.Linear(1, 1)
    with LocalSGD(Accelerator(cpu=True), net, 2) as local_sgd:
        local_sgd.step()
    assert not local_sgd.enabled and local_sgd.num_steps == 1


def test_local_sgd_wants_a_prepared_model(tmp_path):
    for said in ranks.run_ours("uneven/unprepared_in_local_sgd.py", tmp_path):
        assert "[LocalSGD] This Linear was not prepared" in said


@pytest.mark.parametrize(("even", "override"), [(False, None), (True, False), (True, None)])
def test_uneven_inputs_train_as_with_torchs_join(tmp_path, even, override):
    is_even = even and override is None
    ours = ranks.run_ours("uneven/join.py", tmp_path, json.dumps(even), json.dumps(override))
    batches = [[0, 2, 4, 6], [1, 3, 5, 0] if is_even else [1, 3, 5]]
    expected = ranks.run_original("uneven/join_of_torch.py", tmp_path, json.dumps(batches))
    assert [answer[:2] for answer in ours] == expected
    assert ours[0][1] == ours[1][1]
    assert ours[0][2] is even  # as it was before the block


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("options", [{}, {"even_batches": True}])
def test_loops_without_a_loader_are_joined_whatever_loaders_do(tmp_path, options, weighted):
    words = (json.dumps(weighted), json.dumps(options))
    (first, difference), (second, _) = ranks.run_ours("uneven/join_by_hand.py", tmp_path, *words)
    # Float32 and another order of sums.
    assert first == second and difference < 1e-6


def test_a_weight_on_some_ranks_of_a_join_is_named_on_all(tmp_path):
    for kind, said in ranks.run_ours("uneven/weight_on_some_ranks.py", tmp_path):
        assert kind == "MismatchError" and "\n" not in said
        assert "only some of them pass a loss weight" in said


def test_a_model_that_cannot_be_joined_needs_even_loaders(tmp_path):
    for gradient, said in ranks.run_ours("uneven/unjoinable.py", tmp_path):
        assert gradient == 1.5
        assert said.startswith("[join_uneven_inputs] The strategy of model 0 does not support")


def test_a_join_that_an_exception_leaves_does_not_wait(tmp_path):
    assert ranks.run_ours("uneven/exception_in_join.py", tmp_path) == [1.5, 1.5]


@pytest.mark.parametrize("weighted", [False, True])
def test_a_rank_that_ends_in_the_middle_of_an_accumulation_is_named_on_all(tmp_path, weighted):
    words = (json.dumps(weighted), json.dumps([(6, 3)]))
    for weight, said in ranks.run_ours("uneven/unfinished_window.py", tmp_path, *words):
        ((kind, line),) = said
        assert kind == "UsageError" and "\n" not in line
        assert line.startswith(
            "[join_uneven_inputs] Rank 1 ran out of batches in the middle of gradient "
            "accumulation: it has 1 micro-batch left over, but rank 0 has 0. The gradients of "
            "these micro-batches would be lost"
        )
        # Together once, then rank 0 alone, whose gradients are halved by the other's zeros.
        assert weight == pytest.approx(-3 if weighted else -2, abs=1e-6)


@pytest.mark.parametrize("weighted", [False, True])
def test_ranks_that_end_at_the_same_micro_batch_of_an_update_resume_there(tmp_path, weighted):
    words = (json.dumps(weighted), json.dumps([(4, 2), (5, 3), (1, 1)]))
    for weight, said in ranks.run_ours("uneven/unfinished_window.py", tmp_path, *words):
        assert said == []
        # Five updates, two of them by rank 0 alone; the last began in the previous block.
        assert weight == pytest.approx(-5 if weighted else -4, abs=1e-6)


FORGOTTEN = "uneven/forgotten_model.py"


def test_a_model_that_a_join_leaves_out_is_named_where_it_trains(tmp_path):
    for rank, (seen, (kind, line), gradient) in enumerate(ranks.run_ours(FORGOTTEN, tmp_path)):
        assert kind == "UsageError" and "\n" not in line
        assert (
            "The prepared Critic was called with gradients enabled, but was not passed to" in line
        )
        assert seen == 2.0 * (1 + rank) and gradient == 1.5


def test_a_join_wants_a_list_of_prepared_models(tmp_path):
    ours = ranks.run_ours("uneven/what_is_given.py", tmp_path)
    assert ours[0] == ours[1]
    here = "[join_uneven_inputs] "
    wants = [
        f"{here}Got an object of type Sequential. Pass a list",
        f"{here}Got an object of type Sequential. Pass a list",
        f"{here}Got an object of type NoneType. Pass a list",
        f"{here}The list of models is empty",
        f"{here}This Sequential was not prepared",
        f"{here}This Sequential was not prepared",
        f"{here}This AcceleratedOptimizer was not prepared",
    ]
    for line, want in zip(ours[0], wants, strict=True):
        assert line.startswith(want) and "\n" not in line


def test_join_alone_is_nothing():
    AcceleratorState._reset_state(True)
    accelerator = Accelerator(cpu=True)
    model = accelerator.prepare(torch.nn.Linear(1, 1))
    with accelerator.join_uneven_inputs([model], even_batches=False):
        accelerator.backward(model(torch.ones(1, 1)).sum())


def test_join_alone_looks_at_no_model_as_the_original():
    AcceleratorState._reset_state(True)
    accelerator = Accelerator(cpu=True)
    for given in ([torch.nn.Linear(1, 1)], torch.nn.Linear(1, 1), []):
        with accelerator.join_uneven_inputs(given):
            pass
