# SPDX-License-Identifier: Apache-2.0
"""The program `accelerate-selftest` of an installed package. `accelerate test` runs it on every
rank. `accelerate doctor` runs it with --load to check that the engine can be loaded."""

from __future__ import annotations

import sys


def main() -> None:
    try:
        from accelerate import _C  # This import loads torch, which may fail.

        if sys.argv[1:] != ["--load"]:
            _C.run_selftest()
    except Exception as error:
        sys.exit(str(error))
