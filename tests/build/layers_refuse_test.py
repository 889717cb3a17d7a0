# SPDX-License-Identifier: Apache-2.0
"""tools/check_layers.py refuses planted includes, an unlisted header, a circle."""
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]


def check(root):
    return subprocess.run(
        [sys.executable, str(ROOT / "tools/check_layers.py"), str(root)],
        capture_output=True, text=True)


def with_planted(path, text):
    """The checker's answer for a copy of the tree with one more line."""
    with tempfile.TemporaryDirectory() as folder:
        copy = pathlib.Path(folder)
        for name in ("include", "src", "cli", "tools"):
            # Files there come and go, and may be another user's.
            without = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, copy / name, ignore=without)
        with open(copy / path, "a") as file:
            file.write(text)
        return check(copy)


assert check(ROOT).returncode == 0, check(ROOT).stdout

for path, text, expected in [
    ("src/process/detect.cpp", '#include "launch/plan/plan.h"\n',
     "process may not include launch/plan/plan.h of launch"),
    ("src/launch/plan/plan.cpp", '#include "accelerate/accelerator.h"\n',
     "launch may not include accelerate/accelerator.h of accelerator"),
    ("include/accelerate/tree.h", "#include <accelerate/process_group.h>\n",
     "tree may not include accelerate/process_group.h of comm"),
    ("include/accelerate/unlisted.h", "#pragma once\n", "not listed"),
    ("tools/layers.txt", "first : second :\nsecond : first :\n",
     "first may include second, which is no row above it"),
]:
    answer = with_planted(path, text)
    assert answer.returncode == 1, f"{path}: planted line was not refused"
    assert expected in answer.stdout, answer.stdout
print("planted includes are refused")
