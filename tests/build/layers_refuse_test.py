# SPDX-License-Identifier: Apache-2.0
"""tools/check_layers.py refuses planted includes and imports, unlisted files, circles."""
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
        for name in ("include", "src", "cli", "tools", "python/accelerate"):
            # Files there come and go, and may be another user's.
            without = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, copy / name, ignore=without)
        (copy / path).parent.mkdir(parents=True, exist_ok=True)
        with open(copy / path, "a") as file:
            file.write(text)
        return check(copy)


assert check(ROOT).returncode == 0, check(ROOT).stdout

for path, text, expected in [
    ("src/core/process/detect.cpp", '#include "launcher/launch/plan/plan.h"\n',
     "process may not include launcher/launch/plan/plan.h of launch"),
    ("src/launcher/launch/plan/plan.cpp", '#include "accelerate/accelerator.h"\n',
     "launch may not include accelerate/accelerator.h of accelerator"),
    ("include/accelerate/state/tree.h", "#include <accelerate/distributed/process_group.h>\n",
     "tree may not include accelerate/distributed/process_group.h of comm"),
    ("include/accelerate/unlisted.h", "#pragma once\n", "not listed"),
    ("src/training/process.cpp", "", "process.cpp: not listed"),
    ("src/launcher/process/detect.cpp", "", "detect.cpp: not listed"),
    ("tools/layers.txt", "first : second :\nsecond : first :\n",
     "first may include second, which is no row above it"),
    ("python/accelerate/_base/trees.py", "from accelerate.state import PartialState\n",
     "_base may not import state of _process"),
    ("python/accelerate/_state/files.py", "def late():\n    from .._loaders import dispatch\n",
     "_state may not import _loaders.dispatch of _loaders"),
    ("python/accelerate/_loaders/sharding.py", "def late():\n    from . import dispatch\n",
     "these modules import each other: _loaders.batch_indices, "),
    ("python/accelerate/optimizer.py", "def late():\n    from accelerate import Accelerator\n",
     "import the name from the module that defines it"),
    ("python/accelerate/unlisted.py", "", "unlisted.py: not listed"),
]:
    answer = with_planted(path, text)
    assert answer.returncode == 1, f"{path}: planted line was not refused"
    assert expected in answer.stdout, answer.stdout
print("planted includes and imports are refused")
