# SPDX-License-Identifier: Apache-2.0
"""trl, peft, sentence-transformers and diffusers have the same results with this package as with
the original: every loss, learning rate, metric and weight, bit for bit."""

from __future__ import annotations

import pytest
from both_packages import Runs, chosen_scenarios, differences, python_with
from tiers import cases

SCENARIOS = cases(
    [
        "sft",
        "sft_lora",
        "dpo",
        "dpo_reference",
        "reward",
        "grpo",
        "lora_trainer",
        "lora_loop",
        "sentences",
        "gathered_sentences",
        "diffusion_bf16",
        # The last one, because it ends the process group.
        "diffusion",
    ],
    small=["sft", "sft_lora", "dpo", "lora_loop", "sentences", "gathered_sentences", "diffusion"],
)
# The original accumulates the gradients of a cached loss's parts and synchronises once; here each
# part is synchronised. The sum is the same up to rounding. With bf16's 8 bits, that difference may
# flip a rounding, depending on the processor, and change an activation and its gradients by 1 in
# 256.
ROUNDING = {"sentences": 1e-4, "gathered_sentences": 2**-8}
# An epoch is run, saved, continued, loaded and continued again.
RESUMED = {"diffusion", "diffusion_bf16"}
NUM_PROCESSES = cases([1, 2], small=[2])


@pytest.fixture(scope="module", params=NUM_PROCESSES, ids=lambda number: ["one", "two"][number - 1])
def runs(request, tmp_path_factory) -> Runs:
    folder = tmp_path_factory.mktemp("libraries")
    names = chosen_scenarios(request)
    return Runs("libraries.py", folder, python_with("libraries"), request.param, names)


@pytest.mark.parametrize("scenario", ["evaluated_sentences"])
def test_every_row_that_was_evaluated_counts(runs, scenario):
    """On two processes two batches of two rows each are evaluated, because the library drops
    incomplete batches. The original takes the single dropped row for the number of rows in the last
    round: its mean has one row instead of four."""
    original, ours = runs.compared(scenario)
    assert [rank["batches"] for rank in ours] == [rank["batches"] for rank in original]
    if runs.num_processes == 1:
        assert ours == original
        return
    turns = list(zip(*(rank["batches"] for rank in ours)))
    losses = [loss for turn in turns for loss in turn for _ in range(2)]
    assert len(losses) == 8
    for theirs, mine in zip(original, ours):
        assert mine["loss"] == pytest.approx(sum(losses) / 8, rel=1e-6)
        assert theirs["loss"] == pytest.approx(sum(losses[:5]) / 5, rel=1e-6)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_nothing_differs(runs, scenario):
    original, ours = runs.compared(scenario)
    if scenario in RESUMED:
        for answer in ours:
            epoch = len(answer["losses"]) // 3
            assert answer["again"] == answer["second"]
            assert answer["losses"][-epoch:] == answer["losses"][epoch:-epoch]
        if runs.num_processes == 2:
            # The original resumes with another order of rows, so what follows is not compared.
            for answer in [*original, *ours]:
                del answer["losses"][-epoch:], answer["again"], answer["average"]
    if scenario in ROUNDING and runs.num_processes == 2:
        near = ROUNDING[scenario]
        for theirs, mine in zip(original, ours):
            assert len(mine["history"]) == len(theirs["history"])
            for expected, found in zip(theirs["history"], mine["history"]):
                assert found == pytest.approx(expected, rel=near)
            # The gradients of key biases are only rounding errors.
            for norms in (theirs["norms"], mine["norms"]):
                for name in [name for name in norms if name.endswith("key.bias")]:
                    del norms[name]
            assert mine["norms"] == pytest.approx(theirs["norms"], rel=near, abs=1e-5)
    else:
        assert differences(original, ours) == []
    weights = [rank["weights"] for rank in ours if "weights" in rank]
    assert all(other == weights[0] for other in weights)
