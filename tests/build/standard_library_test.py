# SPDX-License-Identifier: Apache-2.0
"""A compiler that links the C++ standard library statically is refused, in one line."""
import subprocess
import sys
import tempfile

cmake, source, torch = sys.argv[1:]
with tempfile.TemporaryDirectory() as folder:
    answer = subprocess.run(
        [cmake, "-S", source, "-B", folder, "-G", "Ninja", f"-DACCELERATE_TORCH_DIR={torch}",
         "-DACCELERATE_TESTS=OFF", "-DCMAKE_SHARED_LINKER_FLAGS=-static-libstdc++"],
        capture_output=True, text=True, timeout=300)
assert answer.returncode != 0, answer.stdout
message = " ".join(answer.stderr.split())
assert "links the C++ standard library statically" in message, answer.stderr
assert "leave out -static-libstdc++" in message, answer.stderr
print("refused:", message)
