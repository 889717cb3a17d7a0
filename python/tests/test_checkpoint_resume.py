# SPDX-License-Identifier: Apache-2.0
"""A run that is stopped and resumed in new processes equals an uninterrupted one, bit for bit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import ranks
import tiers

# 3 epochs of 10 batches over all processes. An uninterrupted run saves after the given steps;
# others resume from one of these.
TRAIN = "checkpoints/train_and_resume.py"


def _train(folder: Path, num_processes: int, **told) -> list[dict]:
    told["folder"] = str(folder / "checkpoints")
    out = ranks.fork_ours(TRAIN, folder, json.dumps(told), num_ranks=num_processes)
    answers = [
        json.loads(line.partition("ANSWER ")[2]) for line in out.splitlines() if "ANSWER" in line
    ]
    assert len(answers) == num_processes
    return sorted(answers, key=lambda answer: answer["rank"])


def _cases():
    whole = [
        (num_processes, precision, workers, skip, beside, list(range(1, 30 // num_processes, 1)))
        for num_processes in (1, 2)
        for precision in ("no", "bf16")
        for workers, skip, beside in (
            (0, False, False),
            (0, False, True),
            (0, True, False),
            (2, False, False),
            (2, True, False),
        )
    ]
    # During an accumulation, in an epoch, and at the end of one.
    first_tier = {
        (1, "no", 0, False, False): [3, 10],
        (2, "bf16", 0, False, True): [4, 5],
        (2, "no", 2, True, False): [7],
        (1, "bf16", 2, False, False): [13],
    }
    small = [(*case, steps) for case, steps in first_tier.items()]
    return tiers.cases(whole + small, small=small)


@pytest.mark.parametrize("num_processes, precision, workers, skip, beside, steps", _cases())
def test_a_resumed_run_equals_one_that_was_not_stopped(
    tmp_path, num_processes, precision, workers, skip, beside, steps
):
    common = {"precision": precision, "workers": workers, "skip": skip, "asynchronous": beside}
    whole = _train(tmp_path, num_processes, save=steps, **common)
    for step in steps:
        rest = _train(tmp_path, num_processes, resume=step, **common)
        for expected, answer in zip(whole, rest, strict=True):
            expected = {**expected, "losses": expected["losses"][step:]}
            assert answer == expected, f"resumed after step {step}"


@pytest.mark.parametrize("seedable", [False, True])
def test_another_number_of_processes_sees_each_sample_once(tmp_path, seedable):
    seen = []
    # Three processes resume in the middle of one of their rounds.
    for num_processes, resume in ((2, False), (3, True)):
        told = json.dumps({"seedable": seedable, "resume": resume})
        out = ranks.fork_ours("checkpoints/one_epoch.py", tmp_path, told, num_ranks=num_processes)
        lines = [line for line in out.splitlines() if "SEEN" in line]
        assert len(lines) == num_processes
        seen += [sample for line in lines for sample in json.loads(line.partition("SEEN ")[2])]
    assert sorted(seen) == list(range(30))


# The loop of the original's examples/complete_nlp_example.py, reduced to what determines batches: a
# whole run with the checkpoints named in `names`, and one that resumes from each.
EXAMPLE = "checkpoints/originals_example.py"


def _example(fork, folder: Path, num_processes: int, **told) -> tuple[list, dict[str, list]]:
    """What each rank of a whole run sees, and each of those that resume, by checkpoint."""
    out = fork(EXAMPLE, folder, json.dumps(told), num_ranks=num_processes)
    found = [json.loads(line.partition("SEEN ")[2]) for line in out.splitlines() if "SEEN" in line]
    assert len(found) == num_processes
    found.sort(key=lambda answer: answer["rank"])
    whole, *rests = zip(*(answer["answers"] for answer in found), strict=True)
    return whole, dict(zip(told["names"], rests, strict=True))


def _num_done(name: str, num_processes: int) -> int:
    """Batches of a process before the checkpoint of this name."""
    kind, number = name.split("_")
    return int(number) if kind == "step" else (int(number) + 1) * 12 // num_processes


def _examples(small):
    """Every step to stop at, six per start of the ranks: a loaded machine takes long for each."""
    whole = []
    for n in (1, 2):
        names = [f"step_{step}" for step in range(1, 24 // n)] + ["epoch_0"]
        whole += [
            (n, seedable, way, names[first : first + 6])
            for seedable in (False, True)
            for way in ("skip_first_batches", "continue")
            for first in range(0, len(names), 6)
        ]
    return tiers.cases(whole + small, small=small)


@pytest.mark.parametrize(
    "num_processes, seedable, way, names",
    _examples(
        [
            (1, False, "continue", ["step_5", "step_13"]),
            (1, True, "skip_first_batches", ["step_12", "epoch_0"]),
            (2, False, "skip_first_batches", ["step_3", "step_6", "step_7"]),
            (2, True, "continue", ["step_4"]),
        ]
    ),
)
def test_the_originals_way_to_resume_sees_the_samples_of_a_whole_run(
    tmp_path, num_processes, seedable, way, names
):
    whole, rests = _example(
        ranks.fork_ours, tmp_path, num_processes, seedable=seedable, way=way, names=names
    )
    assert [len(seen) for seen in whole] == [24 // num_processes] * num_processes
    for name, rest in rests.items():
        if name == "step_12" and num_processes == 1 and not seedable:
            # The generator that the evaluation behind it draws from, which a run that resumes
            # does not repeat, decides on the order of the next epoch.
            continue
        num_done = _num_done(name, num_processes)
        assert rest == tuple(seen[num_done:] for seen in whole), f"resumed from {name}"


@pytest.mark.parametrize(
    "num_processes, seedable, way, names", _examples([(2, True, "continue", ["step_5"])])
)
def test_the_originals_way_to_resume_sees_as_many_batches_as_there(
    tmp_path, num_processes, seedable, way, names
):
    counts = []
    for fork in (ranks.fork_ours, ranks.fork_original):
        folder = tmp_path / fork.__name__
        folder.mkdir()
        _, rests = _example(fork, folder, num_processes, seedable=seedable, way=way, names=names)
        counts.append({name: [len(seen) for seen in rest] for name, rest in rests.items()})
    assert counts[0] == counts[1]
    num_left = 24 // num_processes - _num_done(names[0], num_processes)
    assert counts[0][names[0]] == [num_left] * num_processes
