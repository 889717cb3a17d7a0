# SPDX-License-Identifier: Apache-2.0
"""Mistakes that the compiler finds are said in one sentence, in its first error.

    python3 tests/build/refused_programs_test.py BUILD

Compiles the functions of refused_programs.cpp, without output, with the flags and the
precompiled header of the headers' examples.
"""
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys

SENTENCES = [
    "this value contains neither tensors nor numbers: pass a tensor",
    "prepare takes a module in a std::shared_ptr or a TORCH_MODULE holder",
    "DataLoader: this type is not a dataset. It needs `size_t size() const` and `get(int64_t index)`",
    "torch::save cannot take a prepared optimizer: use accelerator.save_state(folder)",
    "prepare shares the module: pass a std::shared_ptr or a TORCH_MODULE holder",
    "the number of columns of a TensorDataset is not known to the compiler: write batch[0] and",
]
here = pathlib.Path(__file__).resolve().parent
commands = json.loads(pathlib.Path(sys.argv[1], "compile_commands.json").read_text())
command = next(c for c in commands if c["file"].endswith("/header_examples.cpp"))
flags = shlex.split(command["command"])
flags = [f for f in flags[:flags.index("-o")] if "ccache" not in f]
answer = subprocess.run([*flags, "-fsyntax-only", "-fmax-errors=0", str(here / "refused_programs.cpp")],
                        cwd=command["directory"], capture_output=True, text=True, timeout=500,
                        env={**os.environ, "LC_ALL": "C"})
assert answer.returncode != 0, "all functions compile"

# An error stands at a line of the file, or below the lines that say what it was needed for.
first_errors = {}
line = 0
for text in answer.stderr.splitlines():
    if place := re.search(r"refused_programs\.cpp:(\d+):", text):
        line = int(place[1])
    if error := re.search(r"error: (?:static assertion failed: )?(.*)", text):
        first_errors.setdefault(line // 100 - 1, error[1])
for number, sentence in enumerate(SENTENCES):
    error = first_errors.pop(number, "none")
    assert error.startswith(sentence), f"function {number}: {error}"
assert not first_errors, first_errors
print(f"{len(SENTENCES)} mistakes are named in one sentence each")
