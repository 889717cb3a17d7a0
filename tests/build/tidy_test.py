# SPDX-License-Identifier: Apache-2.0
"""clang-tidy accepts .clang-tidy, finds planted mistakes with it, and nothing in correct code."""
import pathlib
import subprocess
import sys
import tempfile

PROGRAM = pathlib.Path("/usr/bin/clang-tidy-16")
if not PROGRAM.exists():
    print(f"skipped: {PROGRAM} is not installed; ./dev test installs it")
    sys.exit(77)

PLANTED = {
    "bugprone-use-after-move":
        "#include <string>\n#include <utility>\n"
        "size_t f(std::string a) { std::string b = std::move(a); return a.size() + b.size(); }\n",
    "bugprone-unused-raii": "struct G { G(); ~G(); };\nvoid f() { G(); int x = 1; (void)x; }\n",
    "performance-for-range-copy":
        "#include <string>\n#include <vector>\n"
        "size_t f(const std::vector<std::string>& v)"
        " { size_t n = 0; for (const auto s : v) n += s.size(); return n; }\n",
    "":
        "#include <string>\n#include <utility>\nstd::string f(std::string a) { return a + 'b'; }\n",
}
for name, source in PLANTED.items():
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder, "planted.cpp")
        file.write_text(source)
        answer = subprocess.run(
            [PROGRAM, "--config-file=.clang-tidy", "--quiet", file, "--", "-std=c++20"],
            capture_output=True, text=True)
        found = answer.stdout + answer.stderr
        if name:
            assert answer.returncode != 0 and f"[{name}" in found, f"{name} is not found: {found}"
        else:
            assert answer.returncode == 0 and "warning:" not in found, found
print(f"{len(PLANTED) - 1} planted mistakes are found")
