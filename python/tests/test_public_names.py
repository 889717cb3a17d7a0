# SPDX-License-Identifier: Apache-2.0
"""Names, signatures and members of the package compared with the original's. Differences are listed
with their reasons in python/differences.txt, from which docs/coming_from_huggingface.md is
generated."""

from __future__ import annotations

import fnmatch
import json
import subprocess
import sys
import typing
from pathlib import Path
from typing import Any

import accelerate
import pytest
from accelerate._placeholders import _table
from original import ROOT, originals_python

sys.path.insert(0, str(ROOT / "tools"))
from coming_from_accelerate import read_differences  # noqa: E402

DESCRIBE = Path(__file__).with_name("describe_package.py")
# What `inspect` does not find may exist in another form.
COVERS = {"not there": ["not there"], "other": ["other", "not there"], "more": ["more"]}
# Parameters of these kinds are passed by position.
PLACED = ("POSITIONAL_ONLY", "POSITIONAL_OR_KEYWORD")


def described(python: str, path: str, names: dict[str, list[str]]) -> dict[str, Any]:
    result = subprocess.run(
        [python, "-P", DESCRIBE],
        input=json.dumps(names),
        env={"PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "HOME": "/nowhere", "PATH": "/usr/bin"},
        text=True,
        capture_output=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def compare_signatures(name: str, theirs: Any, ours: Any) -> dict[str, str]:
    """The effect on a call written for the original: `name(parameter)` to verdict."""
    if theirs is None or ours is None:
        return {}
    found = {}
    there = {parameter[0]: parameter for parameter in ours}
    takes_any = {kind for _, kind, _ in ours} & {"VAR_KEYWORD"}
    for parameter in theirs:
        mine = there.get(parameter[0])
        if mine is None:
            if not (takes_any and parameter[1] == "KEYWORD_ONLY"):
                found[f"{name}({parameter[0]})"] = "not there"
        elif mine[1:] != parameter[1:]:
            found[f"{name}({parameter[0]})"] = "other"
    for parameter in ours:
        if parameter[0] not in {one[0] for one in theirs}:
            found[f"{name}({parameter[0]})"] = "more"
    order = [one[0] for one in theirs if one[1] in PLACED and one[0] in there]
    mine_order = [one[0] for one in ours if one[1] in PLACED]
    if mine_order[: len(order)] != order and not found:
        found[f"{name}()"] = "other"
    return found


def compare_classes(name: str, theirs: Any, ours: Any) -> dict[str, str]:
    found = compare_signatures(name, theirs["signature"], ours["signature"])
    for member, (kind, signature) in theirs["members"].items():
        mine = ours["members"].get(member)
        if mine is None:
            found[f"{name}.{member}"] = "not there"
        elif mine[0] != kind:
            found[f"{name}.{member}"] = "other"
        else:
            found |= compare_signatures(f"{name}.{member}", signature, mine[1])
    for member in ours["members"].keys() - theirs["members"].keys():
        found[f"{name}.{member}"] = "more"
    return found


def compare(name: str, theirs: dict[str, Any], ours: dict[str, Any] | None) -> dict[str, str]:
    if ours is None:
        return {name: "not there"}
    if theirs["is"] != ours["is"]:
        return {name: "other"}
    if theirs["is"] == "class":
        return compare_classes(name, theirs, ours)
    if theirs["is"] == "function":
        return compare_signatures(name, theirs["signature"], ours["signature"])
    return {} if theirs["value"] == ours["value"] else {name: "other"}


class Comparison(typing.NamedTuple):
    # Which of the original's names the package has.
    ours: dict[str, Any]
    # Every difference that `inspect` sees, with its kind.
    differences: dict[str, str]


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    names = {
        module: sorted(table.own)
        for module, table in _table().items()
        if not module.startswith("accelerate.test_utils")
    }
    theirs = described(originals_python(), "", names)
    ours = described(sys.executable, str(Path(accelerate.__file__).parents[1]), names)
    found: dict[str, str] = {}
    for name, description in theirs.items():
        found |= compare(name, description, ours.get(name))
    # Needs an optional package that the original's Python lacks.
    for module, own in names.items():
        for name in own:
            if f"{module}.{name}" not in theirs and f"{module}.{name}" not in ours:
                found[f"{module}.{name}"] = "not there"
    return Comparison(ours, found)


def test_nothing_that_is_there_is_called_missing(comparison: Comparison) -> None:
    patterns = [
        pattern
        for row in read_differences()
        for pattern in row.patterns
        if row.verdict == "not there"
    ]
    assert not [
        (name, pattern)
        for name in comparison.ours
        for pattern in patterns
        if fnmatch.fnmatchcase(name, pattern)
    ]


def test_every_difference_is_in_the_table_and_the_table_has_no_other(
    comparison: Comparison,
) -> None:
    differences = comparison.differences
    unexplained = dict(differences)
    idle = []
    for row in read_differences():
        for pattern in row.patterns:
            matched = [
                name
                for name, verdict in differences.items()
                if verdict in COVERS[row.verdict] and fnmatch.fnmatchcase(name, pattern)
            ]
            for name in matched:
                unexplained.pop(name, None)
            if not matched:
                idle.append(f"[{row.verdict}] {pattern}")
    told = "\n".join(sorted(f"[{verdict}] {name}" for name, verdict in unexplained.items()))
    assert not unexplained, f"not in python/differences.txt:\n{told}"
    assert not idle, "in python/differences.txt, but no difference any more:\n" + "\n".join(idle)
