# SPDX-License-Identifier: Apache-2.0
"""The library and the Python module compile against every torch release that the README names:

    torch_releases_test.py CMAKE SOURCE SITE_PACKAGES PYTHON

ACCELERATE_TEST_TORCH_HEADERS is a folder with VERSION/torch/include for each of them, which
`./dev test long` makes. CUDA's headers come from SITE_PACKAGES. Nothing is linked, so that a release
costs minutes and 60 MB instead of gigabytes."""

from __future__ import annotations

import concurrent.futures
import json
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile

# What CMake looks for in a wheel; the files stay empty.
LIBRARIES = ("libtorch_cpu.so", "libtorch_cuda.so", "libtorch_python.so")


def configure(cmake: str, source: str, torch: pathlib.Path, python: str, build: str) -> list[dict]:
    """The compiler calls of a build with that torch."""
    lib = torch / "lib"
    lib.mkdir(exist_ok=True)
    for name in LIBRARIES:
        (lib / name).touch()
    subprocess.run(
        [cmake, "-S", source, "-B", build, "-G", "Ninja", f"-DACCELERATE_TORCH_DIR={torch}",
         f"-DACCELERATE_PYTHON={python}", "-DACCELERATE_TESTS=OFF", "-DACCELERATE_EXAMPLES=OFF",
         "-DCMAKE_COMPILE_WARNING_AS_ERROR=ON", "-DCMAKE_CXX_COMPILER_LAUNCHER=env"],
        check=True, stdout=subprocess.DEVNULL,
    )
    calls = json.loads(pathlib.Path(build, "compile_commands.json").read_text())
    return [call for call in calls if str(torch) in call["command"]]


def check(call: dict) -> str:
    """What the compiler says of one file; empty if it takes it."""
    words = shlex.split(call["command"])
    output = words.index("-o")
    del words[output : output + 2]
    result = subprocess.run(
        [*words, "-fsyntax-only"], cwd=call["directory"], capture_output=True, text=True
    )
    return f"{call['file']}:\n{result.stderr}" if result.returncode else ""


def main() -> None:
    headers = os.environ.get("ACCELERATE_TEST_TORCH_HEADERS")
    if not headers:
        print("skipped: ACCELERATE_TEST_TORCH_HEADERS is not set; ./dev test long sets it")
        sys.exit(77)
    cmake, source, site_packages, python = sys.argv[1:]
    releases = sorted(pathlib.Path(headers).iterdir())
    assert releases, f"no torch release in {headers}"
    problems = []
    for release in releases:
        nvidia = release / "nvidia"
        nvidia.unlink(missing_ok=True)
        nvidia.symlink_to(pathlib.Path(site_packages) / "nvidia")
        with tempfile.TemporaryDirectory() as build:
            calls = configure(cmake, source, release / "torch", python, build)
            names = {pathlib.Path(call["file"]).name for call in calls}
            assert any("unity" in name for name in names), names
            with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
                said = [text for text in pool.map(check, calls) if text]
        print(f"torch {release.name}: {len(calls)} files, {len(said)} do not compile", flush=True)
        problems += [f"torch {release.name}: {text}" for text in said]
    print("\n".join(problems))
    sys.exit(1 if problems else 0)


main()
