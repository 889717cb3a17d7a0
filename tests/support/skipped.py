# SPDX-License-Identifier: Apache-2.0
"""Names what the last run of CTest left out:

    python3 tests/support/skipped.py BUILD...

One line per test that was skipped, with the reason where it gave one."""

from __future__ import annotations

import pathlib
import re
import sys

# A script says `skipped: REASON`; pytest -rs names each test, and GoogleTest does so after the
# reason.
SCRIPT = re.compile(r"^skipped: (.*)$", re.M)
PYTEST = re.compile(r"^SKIPPED \[\d+\] (?:.*/)?([^/:]+:\d+): (.*)$", re.M)
GTEST = re.compile(r"^\[ RUN      \] (\S+)\n((?:(?!\[).*\n)*)\[  SKIPPED \] \1", re.M)


def reason_of(output: str) -> str:
    """The last line that is no place in a file."""
    lines = [line for line in output.splitlines() if line and not line.endswith(": Skipped")]
    return lines[-1] if lines else "no reason given"


def skipped(log: str):
    """(CTest name, test, reason) of every test that was skipped."""
    for part in re.split(r"^\d+/\d+ Testing: ", log, flags=re.M)[1:]:
        name = part.split("\n", 1)[0]
        for reason in SCRIPT.findall(part):
            yield name, "all", reason
        for test, reason in PYTEST.findall(part):
            yield name, test, reason
        for test, output in GTEST.findall(part):
            yield name, test, reason_of(output)


def main() -> None:
    for build in sys.argv[1:]:
        log = pathlib.Path(build, "Testing/Temporary/LastTest.log").read_text(errors="replace")
        lines = sorted({f"  {name}: {test}: {reason}" for name, test, reason in skipped(log)})
        print(f"{build}: skipped: {len(lines)}" if lines else f"{build}: nothing was skipped")
        print("".join(line + "\n" for line in lines), end="")


main()
