# SPDX-License-Identifier: Apache-2.0
"""The given programs and libraries need no torch, directly or through others."""
import subprocess
import sys

for file in sys.argv[1:]:
    needed = subprocess.run(
        ["ldd", file], check=True, capture_output=True, text=True).stdout
    assert "libc.so" in needed, f"ldd says nothing about {file}"
    for name in ("torch", "c10", "cuda", "icu", "python"):
        assert f"lib{name}" not in needed, f"{file} needs lib{name}:\n{needed}"
print("no torch among the needed libraries")
