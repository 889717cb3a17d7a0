# SPDX-License-Identifier: Apache-2.0
"""Every source file is formatted. Mend with ./dev format."""
import subprocess
import sys

files = subprocess.run(
    ["git", "ls-files", "*.h", "*.cpp", "*.cu"],
    check=True, capture_output=True, text=True).stdout.split()
assert files, "git lists no source files"
answer = subprocess.run(
    [sys.argv[1], "--dry-run", "--Werror", "--ferror-limit=1", *files],
    capture_output=True, text=True)
if answer.returncode != 0:
    sys.exit(answer.stderr + "\nrun ./dev format")
print(f"{len(files)} files are formatted")
