# SPDX-License-Identifier: Apache-2.0
"""A LibTorch folder, with CUDA or without, gives a build all that it asks of torch.

The folders are links to the files of an installed torch that a LibTorch folder has too. They are
configured one after the other in one build folder, with no Python to find a torch in.
"""
import pathlib
import re
import subprocess
import sys
import tempfile

cmake, source, torch = sys.argv[1:]
ONLY_IN_WHEELS = ("libtorch_python", "libshm")
ONLY_WITH_CUDA = ("libtorch_cuda", "libc10_cuda")


def make_libtorch(folder, has_cuda):
    (folder / "lib").mkdir(parents=True)
    (folder / "include").symlink_to(pathlib.Path(torch, "include"))
    left_out = ONLY_IN_WHEELS if has_cuda else ONLY_IN_WHEELS + ONLY_WITH_CUDA
    for library in pathlib.Path(torch, "lib").glob("*.so*"):
        if not library.name.startswith(left_out):
            (folder / "lib" / library.name).symlink_to(library)


def configure(libtorch, build):
    answer = subprocess.run(
        [cmake, "-S", source, "-B", build, "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={libtorch}",
         "-DACCELERATE_PYTHON=no-python", "-DACCELERATE_TESTS=OFF"],
        capture_output=True, text=True, timeout=300)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "only a wheel has: the Python package is not built" in answer.stdout, answer.stdout
    return (build / "build.ninja").read_text()


with tempfile.TemporaryDirectory() as name:
    root = pathlib.Path(name).resolve()
    for kind in ("cpu", "cuda"):
        libtorch = root / kind
        make_libtorch(libtorch, kind == "cuda")
        rules = configure(libtorch, root / "build")
        assert f"{torch}/" not in rules, f"the build asks for files of {torch}"
        asked = set(re.findall(re.escape(f"{libtorch}/lib/") + r"[\w.]+", rules))
        assert f"{libtorch}/lib/libtorch_cpu.so" in asked, asked
        for file in asked:
            assert pathlib.Path(file).exists(), f"the build asks for {file}"
        has_cuda = (libtorch / "lib/libtorch_cuda.so").exists()
        assert (f"{libtorch}/lib/libtorch_cuda.so" in asked) == has_cuda, asked
        assert has_cuda or "backends/nccl.cpp" not in rules, "NCCL without CUDA"
        print(f"{kind}: {len(asked)} libraries of LibTorch")
