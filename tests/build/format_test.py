# SPDX-License-Identifier: Apache-2.0
"""Every source file is formatted, and no line is longer than 80 columns.

The formatter leaves comments as they are, so that it tears no example apart;
their lines are counted here. Mend with ./dev format, and comments by hand.
"""
import pathlib
import subprocess
import sys

COLUMNS = 80

files = subprocess.run(
    ["git", "ls-files", "*.h", "*.cpp", "*.cu", "*.cuh"],
    check=True, capture_output=True, text=True).stdout.split()
assert files, "git lists no source files"
answer = subprocess.run(
    [sys.argv[1], "--dry-run", "--Werror", "--ferror-limit=1", *files],
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
