# SPDX-License-Identifier: Apache-2.0
"""Makes docs/coming_from_huggingface.md from python/differences.txt and the
table of the original's names:

    python3 tools/coming_from_accelerate.py > docs/coming_from_huggingface.md

A section of python/differences.txt is a verdict with a reason, and the names
that it is true of, one or more patterns per line:

    [not there] Megatron-LM's engine is not part of this package
    accelerate.utils.megatron_lm.*

Verdicts are "not there", "other" (in another way) and "more". A parameter is written
`accelerate.launchers.notebook_launcher(log_line_prefix_template)`.
python/tests/test_public_names.py checks that this is how things are.
"""
from __future__ import annotations

import fnmatch
import pathlib
import sys
from dataclasses import dataclass, field

ROOT = pathlib.Path(__file__).resolve().parents[1]
VERDICTS = ("not there", "other", "more")


@dataclass
class Row:
    verdict: str
    reason: str
    patterns: list[str] = field(default_factory=list)


def read_differences() -> list[Row]:
    rows: list[Row] = []
    path = ROOT / "python/differences.txt"
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if line.startswith("["):
            verdict, _, reason = line[1:].partition("] ")
            if verdict not in VERDICTS or not reason:
                sys.exit(f"[{path}:{number}] got '{line}', expected '[verdict] reason' with one "
                         f"of {', '.join(VERDICTS)}")
            rows.append(Row(verdict, reason))
        elif line and not line.startswith("#"):
            rows[-1].patterns += line.split()
    return rows


def own_names() -> dict[str, list[str]]:
    """By module, what the original defines there; its own tests are left out."""
    modules: dict[str, list[str]] = {}
    for line in (ROOT / "python/accelerate/_original_names.txt").read_text().splitlines():
        kind, *words = line.split()
        if kind.startswith("["):
            names = modules.setdefault(kind.strip("[]"), [])
        elif kind not in ("#", "from"):
            names += words
    return {name: sorted(names) for name, names in modules.items()
            if names and not name.startswith("accelerate.test_utils")}


def code(names: list[str]) -> str:
    return ", ".join(f"`{name.removeprefix('accelerate.')}`" for name in names)


def table(rows: list[Row], verdict: str, heads: tuple[str, str]) -> list[str]:
    lines = [f"| {heads[0]} | {heads[1]} |", "|---|---|"]
    lines += [f"| {row.reason} | {code(row.patterns)} |" for row in rows if row.verdict == verdict]
    return lines


def document() -> str:
    rows = read_differences()
    missing = [pattern for row in rows if row.verdict == "not there" for pattern in row.patterns]
    total = 0
    there: dict[str, list[str]] = {}
    for module, names in own_names().items():
        for name in names:
            total += 1
            full = f"{module}.{name}"
            if not any(fnmatch.fnmatchcase(full, pattern) for pattern in missing):
                there.setdefault(module, []).append(name)
    count = sum(map(len, there.values()))
    lines = [INTRODUCTION.format(count=count, total=total)]
    lines += ["| module | names |", "|---|---|"]
    lines += [f"| `{module}` | {code(names)} |" for module, names in there.items()]
    lines += ["", BETTER, *table(rows, "more", ("purpose", "names"))]
    lines += ["", OTHER, *table(rows, "other", ("reason", "names"))]
    lines += ["", NOT_THERE, *table(rows, "not there", ("reason", "names"))]
    return "\n".join(lines) + "\n"


INTRODUCTION = """\
# Coming from Hugging Face Accelerate

<!-- tools/coming_from_accelerate.py writes this page, and a test checks it. -->

This package has the same name, version (1.15.0) and modules as Hugging Face Accelerate ("the original"), so you do not have to change your code. To switch,
run `pip install accelerate-*.whl` ([guide_python.md](guide_python.md)).

This page lists what is the same and what differs. A test uses `inspect` to compare names, signatures and class members with the original. In the tables,
names do not include the prefix `accelerate.`, and a parameter appears in parentheses after its function.

## The same

The package has {count} of the {total} public names of the original, in the same modules. These figures do not include re-exported names. Arguments and
defaults are the same as in the original, unless the tables below say otherwise.
"""
BETTER = """\
## Better

Many calls also behave better with the same arguments. For example, gradients are always synchronised, metrics count each sample once, and errors name the
rank. For all intended differences, see [guide_python.md](guide_python.md#different-on-purpose). In addition, you can:
"""
OTHER = """\
## Different
"""
NOT_THERE = """\
## Not supported

You can import all of these names. If you use one, it raises `NotImplementedError`.
"""

if __name__ == "__main__":
    print(document(), end="")
