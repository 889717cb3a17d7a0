# SPDX-License-Identifier: Apache-2.0
"""Runs pytest on the package of a build folder, as CTest does:

    python3 python/tests/run.py BUILD FILE... [PYTEST OPTIONS]

ACCELERATE_TEST_PYTHON names a Python with torch and the imports of the tests. Exits with 77, which
CTest shows as skipped, if it is not set."""

from __future__ import annotations

import os
import pathlib
import sys


def main() -> None:
    python = os.environ.get("ACCELERATE_TEST_PYTHON")
    if not python:
        print("skipped: ACCELERATE_TEST_PYTHON is not set; ./dev test sets it")
        sys.exit(77)
    build = pathlib.Path(sys.argv[1]).resolve()
    # The program starts the `python3` on the PATH, as it does for users.
    folders = [str(build / "bin"), str(pathlib.Path(python).parent), os.environ["PATH"]]
    os.environ["PATH"] = os.pathsep.join(folders)
    paths = [str(build / "python")]
    if deps := os.environ.get("ACCELERATE_DEPS"):
        paths.append(os.path.join(deps, "python"))  # pytest, on machines without a network.
    if own := os.environ.get("PYTHONPATH"):
        paths.append(own)
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    os.environ["OMP_NUM_THREADS"] = "1"
    options = ["-q", "-rs", "-p", "no:cacheprovider"]
    os.execv(python, [python, "-m", "pytest", *options, *sys.argv[2:]])


main()
