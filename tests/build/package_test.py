# SPDX-License-Identifier: Apache-2.0
"""Makes packages of the build, unpacks the archive, builds a new project (examples/cmake_project) against
it, and trains. The Debian packages contain the same files.
"""
import hashlib
import os
import pathlib
import re
import subprocess
import sys
import tempfile

cmake, build, torch = sys.argv[1:]
cpack = pathlib.Path(cmake).with_name("cpack")
# ./dev test installs it.
DPKG_DEB = "/usr/bin/dpkg-deb"


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


def contents(folder):
    """What each file of a folder holds, and where each link leads."""
    return {
        path.relative_to(folder).as_posix():
            os.readlink(path) if path.is_symlink() else hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*") if path.is_symlink() or path.is_file()}


def check_run_paths(prefix):
    """Libraries and programs name no folder of this machine."""
    for path in [*prefix.rglob("*.so*"), *(prefix / "bin").iterdir()]:
        said = run("/usr/bin/readelf", "-d", path)
        for found in re.findall(r"(?:RPATH|RUNPATH).*\[(.*)\]", said):
            assert all(entry.startswith("$ORIGIN") for entry in found.split(":")), (path, found)


def make_packages(folder):
    """The folder that the archive unpacks to, and one with the files of the Debian packages."""
    packages, roots = folder / "packages", folder / "debian"
    run(cpack, "--config", pathlib.Path(build, "CPackConfig.cmake"), "-B", packages)
    (archive,) = packages.glob("*.tar.gz")
    run("/usr/bin/tar", "-xf", archive, "-C", folder)
    prefix = folder / archive.name.removesuffix(".tar.gz")
    names = {}
    for package in packages.glob("*.deb"):
        name, version, depends, description = (
            run(DPKG_DEB, "-f", package, field).strip()
            for field in ("Package", "Version", "Depends", "Description"))
        names[name] = version, depends, description
        run(DPKG_DEB, "-x", package, roots)
    assert sorted(names) == ["accelerate-tools", "libaccelerate-dev", "libaccelerate0"], names
    for name, (version, depends, description) in names.items():
        assert re.fullmatch(r"[\d.]+\+torch2\.\d+\.\d+", version), (name, version)
        assert f"for torch {version.split('torch')[1]}" in description, (name, description)
        if name != "libaccelerate0":
            assert f"libaccelerate0 (= {version})" in depends, (name, depends)
    assert "libyaml-cpp" in names["libaccelerate0"][1], names["libaccelerate0"]
    assert contents(roots / "usr") == contents(prefix)
    return prefix, roots / "usr"


with tempfile.TemporaryDirectory() as folder:
    prefix, debian = make_packages(pathlib.Path(folder))
    project = pathlib.Path(folder, "build")
    check_run_paths(prefix)
    assert (prefix / "include/accelerate/version.h").exists()
    # What the user does once per machine.
    link = prefix / "lib/accelerate/torch"
    link.parent.mkdir()
    link.symlink_to(torch)
    # An installation from the build makes this link itself.
    installed = pathlib.Path(folder, "installed")
    run(cmake, "--install", build, "--prefix", installed)
    # Not stripped, as those of the packages are.
    assert contents(installed).keys() == contents(prefix).keys()
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

    # The programs find torch through the link.
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

    # Without the link, the variable says where torch is.
    says = run(cmake, "-S", old, "-B", old / "debian", "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={debian}",
               f"-DACCELERATE_TORCH_DIR={torch}")
    assert f"-- torch={torch}" in says, says

    # A project takes the same targets from a source tree. Configuring finds all of them.
    fetched = pathlib.Path(folder, "fetched")
    fetched.mkdir()
    (fetched / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.25)\nproject(fetched CXX)\ninclude(FetchContent)\n"
        f"FetchContent_Declare(accelerate SOURCE_DIR {pathlib.Path.cwd()})\n"
        "FetchContent_MakeAvailable(accelerate)\n"
        "file(WRITE ${CMAKE_BINARY_DIR}/empty.cpp \"\")\n"
        "add_library(mine SHARED ${CMAKE_BINARY_DIR}/empty.cpp)\n"
        "target_link_libraries(mine PRIVATE accelerate::accelerate accelerate::models accelerate::text\n"
        "                                   accelerate::core)\n")
    run(cmake, "-S", fetched, "-B", fetched / "build", "-G", "Ninja", f"-DACCELERATE_TORCH_DIR={torch}")
    targets = run(cmake, "--build", fetched / "build", "--target", "help")
    assert "libaccelerate_models.so" in targets and "accelerate_python" not in targets, targets

    # The libraries fit one torch: no other is taken in its place.
    other = pathlib.Path(folder, "other_torch")
    make_torch(other, "2.12.7")
    answer = answer_of(cmake, "-S", source, "-B", pathlib.Path(folder, "refused"), "-G", "Ninja",
                       f"-DCMAKE_PREFIX_PATH={prefix}", f"-DACCELERATE_TORCH_DIR={other}")
    message = " ".join(answer.stderr.split())
    assert answer.returncode != 0, answer.stdout
    assert "got torch 2.12.7" in message and "which accelerate was built with" in message, message
print("the installed package builds and trains:", out.strip())
