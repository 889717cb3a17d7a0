# SPDX-License-Identifier: Apache-2.0
"""trl, peft, sentence-transformers and diffusers give the same with this package as with the
original: every loss, learning rate, metric and weight, bit for bit."""

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
        # The last one: it ends the group of processes.
        "diffusion",
    ],
    small=["sft", "lora_trainer", "sentences", "diffusion"],
)
# The original adds up the gradients of a cached loss's parts, then processes meet once; here they
# meet for each part. The sum is the same, its rounding is not.
ROUNDED = {"sentences", "gathered_sentences"}
ROUNDING = 1e-4
# An epoch is run, saved, gone on with, loaded and gone on with again.
RESUMED = {"diffusion", "diffusion_bf16"}
NUM_PROCESSES = cases([1, 2], small=[2])


@pytest.fixture(scope="module", params=NUM_PROCESSES, ids=lambda number: ["one", "two"][number - 1])
def runs(request, tmp_path_factory) -> Runs:
    folder = tmp_path_factory.mktemp("libraries")
    names = chosen_scenarios(request)
    return Runs("libraries.py", folder, python_with("libraries"), request.param, names)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_nothing_differs(runs, scenario):
    original, ours = runs.compared(scenario)
    if scenario in RESUMED:
        for answer in ours:
            epoch = len(answer["losses"]) // 3
            assert answer["again"] == answer["second"]
            assert answer["losses"][-epoch:] == answer["losses"][epoch:-epoch]
        if runs.num_processes == 2:
            # The original goes on with another order of rows, so what follows is not compared.
            for answer in [*original, *ours]:
                del answer["losses"][-epoch:], answer["again"], answer["average"]
    if scenario in ROUNDED and runs.num_processes == 2:
        for theirs, mine in zip(original, ours):
            assert len(mine["history"]) == len(theirs["history"])
            for expected, found in zip(theirs["history"], mine["history"]):
                assert found == pytest.approx(expected, rel=ROUNDING)
            # The biases of keys have no gradient but rounding.
            assert mine["norms"] == pytest.approx(theirs["norms"], rel=ROUNDING, abs=1e-5)
    else:
        assert differences(original, ours) == []
    weights = [rank["weights"] for rank in ours if "weights" in rank]
    assert all(other == weights[0] for other in weights)
