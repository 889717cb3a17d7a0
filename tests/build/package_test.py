# SPDX-License-Identifier: Apache-2.0
"""Installs the build, builds a new project (examples/cmake_project) against it, and trains."""
import os
import pathlib
import re
import subprocess
import sys
import tempfile

cmake, build = sys.argv[1:]

def answer_of(*command):
    return subprocess.run(
        [str(part) for part in command], capture_output=True, text=True,
        timeout=500, env={**os.environ, "OMP_NUM_THREADS": "1"})


def run(*command):
    answer = answer_of(*command)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return answer.stdout


def make_torch(folder, version):
    """As much of a torch as is looked at when one is chosen."""
    header = folder / "include/torch/headeronly/version.h"
    header.parent.mkdir(parents=True)
    header.write_text(f'#define TORCH_VERSION "{version}"\n')
    (folder / "lib").mkdir()
    (folder / "lib/libtorch_cpu.so").touch()


with tempfile.TemporaryDirectory() as folder:
    prefix, project = pathlib.Path(folder, "prefix"), pathlib.Path(folder, "build")
    run(cmake, "--install", build, "--prefix", prefix)
    assert (prefix / "include/accelerate/version.h").exists()
    source = pathlib.Path(folder, "new")
    says = run(prefix / "bin/accelerate", "new", source)
    assert f"-DCMAKE_PREFIX_PATH={prefix}" in says, says
    # -O0: what is tested is the package, not the speed of the example.
    run(cmake, "-S", source, "-B", project, "-G", "Ninja",
        f"-DCMAKE_PREFIX_PATH={prefix}", "-DCMAKE_CXX_FLAGS=-Wall -Wextra -Werror",
        "-DCMAKE_CXX_FLAGS_RELEASE=-O0", "-DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON")
    run(cmake, "--build", project)
    # One process, then two that resume after it.
    runs = pathlib.Path(folder, "runs")
    accuracies = []
    for processes, first, epochs in ((1, 0, 2), (2, 2, 5)):
        out = run(prefix / "bin/accelerate", "launch", "--cpu", "--num_processes", processes,
                  project / "train", epochs, runs)
        found = re.findall(r"^epoch (\d+): accuracy ([\d.]+)$", out, re.M)
        assert [int(epoch) for epoch, _ in found] == list(range(first, epochs)), out
        accuracies += [float(accuracy) for _, accuracy in found]
    assert accuracies[-1] > 0.9, accuracies
    lines = (runs / "circle/metrics.jsonl").read_text()
    assert '"accuracy"' in lines, lines

    # The programs find torch wherever the build found it.
    accelerate = prefix / "bin/accelerate"
    doctor = run(accelerate, "doctor", "--cpu")
    assert "ok  the training library finds torch" in doctor, doctor
    for precision in "no", "bf16":
        out_of_test = run(accelerate, "test", "--cpu", "--num_processes", 2,
                          "--mixed_precision", precision)
        assert "you are ready to train" in out_of_test, out_of_test

    # A project may ask for an older CMake; the first configuration must do.
    old = pathlib.Path(folder, "old")
    old.mkdir()
    (old / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.16)\nproject(old CXX)\n"
        "find_package(accelerate REQUIRED)\n"
        "message(STATUS torch=${ACCELERATE_TORCH_DIR})\n")
    says = run(cmake, "-S", old, "-B", old / "build", "-G", "Ninja",
               f"-DCMAKE_PREFIX_PATH={prefix}", "-DACCELERATE_PYTHON=/no/python")
    assert re.search(r"^-- torch=/", says, re.M), says

    # The libraries fit one torch: no other is taken in its place.
    other = pathlib.Path(folder, "other_torch")
    make_torch(other, "2.12.7")
    answer = answer_of(cmake, "-S", source, "-B", pathlib.Path(folder, "refused"), "-G", "Ninja",
                       f"-DCMAKE_PREFIX_PATH={prefix}", f"-DACCELERATE_TORCH_DIR={other}")
    message = " ".join(answer.stderr.split())
    assert answer.returncode != 0, answer.stdout
    assert "got torch 2.12.7" in message and "which accelerate was built with" in message, message
print("the installed package builds and trains:", out.strip())
