# SPDX-License-Identifier: Apache-2.0
"""Gradients of two processes compared with PyTorch's DistributedDataParallel on the same data."""

from __future__ import annotations

import json
from fractions import Fraction

import numpy as np
import pytest
import ranks
import torch
from tiers import cases

from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import DDPCommunicationHookType, DistributedDataParallelKwargs

# PyTorch's DDP runs in the same processes on a copy of the module: the same kernels, the same
# buckets and one addition of two numbers per gradient, so results must be bit-identical.


def test_gradients_equal_those_of_pytorch(tmp_path):
    out = ranks.fork_ours("gradients/equal_pytorch.py", tmp_path)
    assert "equal 0" in out and "equal 1" in out


def test_gradients_wait_inside_of_no_sync_and_synchronise_after_it(tmp_path):
    out = ranks.fork_ours("gradients/no_sync.py", tmp_path)
    assert "equal 0" in out and "equal 1" in out


def test_sparse_gradients_equal_those_of_pytorch(tmp_path):
    assert ranks.run_ours("gradients/sparse_gradients.py", tmp_path) == ["equal", "equal"]


def test_sparse_gradients_train_with_a_communication_hook(tmp_path):
    assert ranks.run_ours("gradients/sparse_gradients_with_hook.py", tmp_path) == ["equal", "equal"]


def test_parameters_may_be_frozen_and_unfrozen_after_prepare(tmp_path):
    assert ranks.run_ours("gradients/freeze_after_prepare.py", tmp_path) == ["equal", "equal"]


def test_a_parameter_of_no_model_warns_once(tmp_path):
    script = "gradients/parameter_of_no_model.py"
    for said in ranks.run_ours(script, tmp_path):
        assert len(said) == 1, said
        assert "Parameter 0 of 'optimizer_1' does not belong to a prepared model" in said[0]
    (tmp_path / "alone").mkdir()
    assert ranks.run_ours(script, tmp_path / "alone", num_ranks=1) == [[]]


def test_a_group_that_is_added_after_prepare_is_trained_in_parts(tmp_path):
    script = "gradients/group_added_after_prepare.py"
    assert ranks.run_ours(script, tmp_path) == ["trained", "trained"]


def test_a_users_exception_in_backward_stays_what_it_is(tmp_path):
    folder = tmp_path / "gloo"  # a path that messages about communication have too
    folder.mkdir()
    assert ranks.run_ours("gradients/users_exception_in_backward.py", folder) == ["mine", "mine"]


def test_gradients_that_are_not_synchronised_warn_once_and_raise_in_debug_mode(tmp_path):
    assert ranks.run_ours("gradients/unsynchronised_gradients.py", tmp_path) == ["said", "said"]
    folder = tmp_path / "debug"
    folder.mkdir()
    script = "gradients/unsynchronised_in_debug_mode.py"
    result = ranks.run(ranks.LAUNCH, folder, script, ACCELERATE_DEBUG_MODE="1")
    assert result.returncode != 0
    assert "[backward] This loss does not depend on any prepared model" in result.stderr


def test_gradients_that_are_not_synchronised_warn_for_each_model(tmp_path):
    stayed = "[backward] The gradients of '{}' were not synchronised between processes"
    first, second = ranks.run_ours("gradients/unsynchronised_for_each_model.py", tmp_path)
    assert first == second
    assert "does not depend on any prepared model" in first[0].pop()
    names = ("model_1", "model", "model_2")
    assert first == [[], *([stayed.format(name)] for name in names), []]


def test_a_model_that_was_evaluated_first_trains_together(tmp_path):
    first, second = ranks.run_ours("gradients/evaluated_first.py", tmp_path)
    assert first == second
    assert first[0] == [[1.5, 1.5, 1.5]]
    assert first[2] == ["model.weight"]


def test_weighted_losses_train_as_one_batch(tmp_path):
    script = "gradients/weighted_losses.py"
    # Float32 and another order of sums.
    assert all(difference < 1e-6 for difference in ranks.run_ours(script, tmp_path))


@pytest.mark.parametrize(
    ("weighing", "steps", "each"), [(0, 1, False), (1, 1, False), (0, 2, False), (0, 2, True)]
)
def test_a_weight_on_some_ranks_is_named_when_gradients_are_synchronised(
    tmp_path, weighing, steps, each
):
    script = "gradients/weight_on_some_ranks.py"
    values = map(json.dumps, (steps, weighing, each))
    for said, found in ranks.run_ours(script, tmp_path, *values):
        assert found == (None if each else 1.5)
        for num_done, text in said:
            assert num_done == (0 if each else steps - 1)
            assert "\n" not in text and " was called on rank 1 (" in text
            weighted, plain = "backward() with a weight", "backward() "
            assert weighted in text and plain in text.replace(weighted, "")


def test_a_weight_counts_on_its_own_rank_while_ranks_train_alone(tmp_path):
    # Afterwards weights are synchronised again: (2 * 3 * 1 + 2 * 2 * 2) / 10.
    first, second = ranks.run_ours("gradients/weight_while_ranks_train_alone.py", tmp_path)
    assert first == pytest.approx([(1 * 3 + 3 * 7) / 4, 1.4])
    assert second == pytest.approx([(3 + 7) / 2, 1.4])


@pytest.mark.parametrize("strategy", ["DDP", "stage 2", "stage 3"])
def test_gradients_of_a_failed_backward_are_not_applied(tmp_path, strategy):
    script = "gradients/step_after_failed_backward.py"
    first, second = ranks.run_ours(script, tmp_path, json.dumps(strategy))
    assert first[0] == second[0] and len(first[0]) == 2
    assert "a mistake of the user" in first[0][0]
    assert "Call zero_grad() after a failed backward pass" in first[0][1]
    if strategy == "DDP":
        assert first[1] == second[1]


class _NoNumber:
    def __float__(self) -> float:
        raise ValueError


@pytest.mark.parametrize(
    "weight", ["3", b"3", [3], (3,), {}, 1j, object(), _NoNumber(), 10**400, np.ones((2, 2))]
)
def test_a_weight_that_is_not_a_number_raises_one_line(weight):
    with pytest.raises(ValueError) as caught:
        _backward(weight)
    said = str(caught.value)
    assert said.startswith("[Accelerator.backward] weight is ") and "\n" not in said
    assert type(weight).__name__ in said


@pytest.mark.parametrize(
    "weight",
    [
        -1,
        float("nan"),
        float("inf"),
        1e308,
        1e-320,
        torch.tensor(-1),
        torch.tensor(float("nan")),
        torch.tensor(float("inf")),
        torch.tensor(1j),
        torch.ones(2),
        torch.tensor([]),
        torch.ones(1, device="meta"),
        torch.ones(1).to_sparse(),
        torch.quantize_per_tensor(torch.ones(1), 1.0, 0, torch.quint8),
        torch.nested.nested_tensor([torch.ones(1)], layout=torch.jagged),
    ],
    ids=str,
)
def test_a_weight_that_counts_nothing_is_refused_in_a_line(weight):
    with pytest.raises(ValueError) as caught:
        _backward(weight)
    said = str(caught.value)
    assert said.startswith("[backward] weight is ") and "\n" not in said


@pytest.mark.parametrize(
    "weight",
    [
        3,
        3.0,
        True,
        np.int64(3),
        np.float32(3),
        np.array(3),
        np.array([[3]]),
        Fraction(3),
        torch.tensor([3]),
    ],
)
def test_whatever_is_a_number_is_a_weight(weight):
    # Of the single loss.
    assert _backward(weight) == 2.0


def _backward(weight) -> float:
    """The gradient of 2 w."""
    AcceleratorState._reset_state(True)
    accelerator = Accelerator(cpu=True)
    model = accelerator.prepare(torch.nn.Linear(1, 1, bias=False))
    accelerator.backward(model(torch.full((1, 1), 2.0)).sum(), weight=weight)
    return model.weight.grad.item()


def test_a_hook_of_the_users_on_an_accumulator_is_no_engine(tmp_path):
    script = "gradients/users_hook_on_accumulator.py"
    assert ranks.run_ours(script, tmp_path) == [[[[1.5, 1.5, 1.5]], 1]] * 2


@pytest.mark.parametrize("steps", cases([1, 2, 3], small=[3]))
def test_accumulated_steps_equal_those_of_the_original(tmp_path, steps):
    script = "gradients/accumulated_steps.py"
    ours = ranks.run_ours(script, tmp_path, str(steps))
    theirs = ranks.run_original(script, tmp_path, str(steps))
    for mine, other in zip(ours, theirs, strict=True):
        for step, (a, b) in enumerate(zip(mine, other, strict=True)):
            assert a[1:] == b[1:], step
            # The norm for clipping is summed in another order: a unit in the last place per step.
            assert a[0] == pytest.approx(b[0], rel=2e-5), step


def test_master_weights_train_as_the_same_arithmetic_by_hand(tmp_path):
    """bf16 weights with fp32 master weights: compared with the same arithmetic by hand, and resumed
    from a checkpoint in the middle. Both processes have the same data, whose mean is exact."""
    for got in ranks.run_ours("gradients/masters_by_hand.py", tmp_path):
        assert got[:3] == ["torch.float32", "torch.bfloat16", "torch.float32"]
        assert got[3:7] == [True, True, True, False]
        assert "The parameters of this model have master weights" in got[7]


def test_a_rank_that_skips_an_update_is_named(tmp_path):
    script = "gradients/skip_an_update.py"
    for ddp, masters, *gathering, sharded in ranks.run_ours(script, tmp_path):
        for text in (ddp, masters, sharded):
            assert text == (
                "[backward] Ranks called step() of the optimizer a different number of times: 2 times "
                "on rank 1 but 3 times on rank 0, so their weights now differ. Call it on all "
                "ranks or on none. load_state() makes the weights equal again"
            )
        assert all("was called on rank" in text for text in gathering)


def test_ranks_that_train_differently_are_named(tmp_path):
    script = "gradients/ranks_train_differently.py"
    for accumulation, metric, kept, cleared, second in ranks.run_ours(script, tmp_path):
        assert accumulation == (
            "[backward] Ranks skipped backward() at the end of gradient accumulation a different "
            "number of times: 0 times on rank 0 but 1 time on rank 1, so they accumulate different "
            "micro-batches. Skip a micro-batch on all ranks or on none. load_state() makes the ranks "
            "equal again"
        )
        assert metric.startswith(
            "[backward] The learning rates of the optimizer differ between ranks: 0.01 on rank 1 but "
            "0.1 on rank 0 "
        )
        assert (
            "zero_grad() of the optimizer was called between the last two backward passes on"
            in kept
        )
        assert kept.endswith(
            ": called on rank 0 but not on rank 1. Call it on all ranks or on none"
        )
        assert "step() after zero_grad() a different number of times: 0 times on rank 0" in cleared
        assert "Ranks called step() of the optimizer a different number of times: 0 times" in second


def test_an_unused_parameter_gets_a_hint_in_python(tmp_path):
    for said in ranks.run_ours("gradients/unused_parameter.py", tmp_path):
        assert said == (
            "[forward] 'b.weight', 'b.bias' received no gradient in the last backward pass. Use it in "
            "the loss, freeze it, or pass DistributedDataParallelKwargs(find_unused_parameters=True)"
        )


def test_an_unknown_option_of_powersgd_names_the_known_ones():
    handler = DistributedDataParallelKwargs(
        comm_hook=DDPCommunicationHookType.POWER_SGD, comm_state_option={"rank": 2}
    )
    words = "Unknown PowerSGD option 'rank'. Expected one of: .*matrix_approximation_rank"
    with pytest.raises(ValueError, match=words):
        Accelerator(cpu=True, kwargs_handlers=[handler])


def test_parameters_that_were_made_anew_are_named(tmp_path):
    for anew, replaced in ranks.run_ours("gradients/parameters_made_anew.py", tmp_path):
        assert anew.startswith(
            "UsageError [backward] The gradient of 'weight' was not synchronised"
        )
        assert replaced.startswith("UsageError [forward]")
        assert "'1.weight' was replaced by another tensor after" in replaced
        assert "\n" not in anew + replaced


def test_buffers_that_changed_are_rank_0s_or_named(tmp_path):
    for values, kind, message in ranks.run_ours("gradients/changed_buffers.py", tmp_path):
        assert values == [5.0, 5.0]
        assert kind == "MismatchError" and "\n" not in message
        assert "'cache' is now Float[2]" in message and "'cache' is now Float[3]" in message


def test_a_loader_that_was_not_prepared_is_warned_of_once(tmp_path):
    told = (
        "[backward] The inputs of the first 3 steps were the same on all ranks, so all ranks train "
        "on the same data. Pass the data loader to prepare()"
    )
    said = ranks.run_ours("gradients/shared_batches.py", tmp_path, json.dumps(None))
    assert said == [[told], []]


@pytest.mark.parametrize(
    "options", [{}, {"dispatch_batches": True}, {"split_batches": True}], ids=json.dumps
)
def test_prepared_loaders_are_not_warned_of(tmp_path, options):
    said = ranks.run_ours("gradients/shared_batches.py", tmp_path, json.dumps(options))
    assert said == [[], []]


def test_an_optimizer_that_was_not_prepared_is_warned_of(tmp_path):
    told = (
        "[backward] No prepared optimizer trains 'model'. Pass its optimizer to prepare(); "
        "otherwise the optimizer steps in every micro-batch"
    )
    assert ranks.run_ours("gradients/unprepared_optimizer.py", tmp_path) == [[told], []]


def test_a_loss_that_stays_nan_is_warned_of_once(tmp_path):
    told = (
        "[backward] The loss has been NaN or infinite for 20 steps in a row, so the weights are "
        "probably NaN too. Load an earlier checkpoint, then lower the learning rate or check the "
        "data"
    )
    assert ranks.run_ours("gradients/loss_stays_nan.py", tmp_path) == [[told], []]
