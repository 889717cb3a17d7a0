# SPDX-License-Identifier: Apache-2.0
"""Every source file is formatted, and no line is longer than 80 columns.

The formatter does not reflow comments, because that would break examples; their lines are only
measured. Fix code with ./dev format, and comments by hand.
"""
import pathlib
import subprocess
import sys

# Debian's, whatever other one is on the PATH. Other versions format differently.
VERSION = 14
PROGRAMS = (f"/usr/bin/clang-format-{VERSION}", "/usr/bin/clang-format")
COLUMNS = 80
FOLDERS = ("benchmarks", "cli", "examples", "include", "python", "src", "tests")


def is_ours(program):
    if not pathlib.Path(program).exists():
        return False
    said = subprocess.run([program, "--version"], capture_output=True, text=True).stdout
    return f"version {VERSION}." in said


formatter = next(filter(is_ours, PROGRAMS), None)
if formatter is None:
    print(f"skipped: Debian's clang-format {VERSION} is not installed")
    sys.exit(77)

# Not by git: a tree from an archive has no repository, and git lists none of another user.
files = sorted(
    str(path) for folder in FOLDERS for path in pathlib.Path(folder).rglob("*")
    if path.suffix in (".h", ".cpp", ".cu", ".cuh"))
assert len(files) > 300, f"only {len(files)} source files"
answer = subprocess.run(
    [formatter, "--dry-run", "--Werror", "--ferror-limit=1", *files],
    capture_output=True, text=True)
if answer.returncode != 0:
    sys.exit(answer.stderr + "\nrun ./dev format")
long_lines = [
    f"{file}:{number}: {len(line)} columns, at most {COLUMNS}"
    for file in files
    for number, line in enumerate(pathlib.Path(file).read_text().splitlines(), 1)
    if len(line) > COLUMNS]
if long_lines:
    sys.exit("\n".join(long_lines) + "\nbreak them by hand")
print(f"{len(files)} files are formatted")
