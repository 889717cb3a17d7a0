# SPDX-License-Identifier: Apache-2.0
"""Joins wheels of one engine each into one that runs on any machine:

    make_wheel.py OUTPUT WHEEL... --licence NAME=FILE...

The result has the engines of all WHEELs, the libraries that it links or opens at run time, and
their licence texts. NAME=FILE: a licence text of something that was compiled in. auditwheel and
patchelf must be on the path. Prints the path of the result.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import re
import subprocess
import sys
import tempfile

from wheel_archive import Wheel, WheelFile, path_in, read_wheel, write_wheel

ROOT = pathlib.Path(__file__).resolve().parents[1]
ENGINES = "accelerate/_engines/"
# The environment's torch has them.
EXCLUDED = ("libtorch*.so*", "libc10*.so*", "libcudart.so.*", "libcuda.so*")
# Header files that are compiled in, as found by the compiler.
HEADERS = ("CLI/CLI.hpp", "nlohmann/json.hpp", "xxhash.h")
# Of those headers and of yaml-cpp, if a folder of `./dev deps` provides them.
DEPS_LICENCES = "usr/share/doc/*/copyright"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("output", type=pathlib.Path)
    parser.add_argument("wheels", type=pathlib.Path, nargs="+")
    parser.add_argument("--licence", action="append", default=[])
    arguments = parser.parse_args()
    wheel = join([read_wheel(path) for path in arguments.wheels])
    licences = dict(licence.split("=", 1) for licence in arguments.licence)
    for name in libraries_opened_at_run_time():
        wheel[f"accelerate/lib/{name}"] = WheelFile(system_library(name).read_bytes(), True)
    name, wheel = repair(wheel, arguments.wheels[-1].name)
    add_licences(wheel, {**licences, **system_licences(wheel)})
    arguments.output.mkdir(parents=True, exist_ok=True)
    write_wheel(arguments.output / name, wheel)
    print(arguments.output / name)


def join(wheels: list[Wheel]) -> Wheel:
    """The last one, with the engines of all."""
    joined = dict(wheels[-1])
    metadata = joined[path_in(joined, "METADATA")].data
    for wheel in wheels:
        if wheel[path_in(wheel, "METADATA")].data != metadata:
            sys.exit("[wheel] the wheels are of different versions; build all of them again")
        joined |= {name: file for name, file in wheel.items() if name.startswith(ENGINES)}
    return joined


def libraries_opened_at_run_time() -> list[str]:
    """Of `accelerate watch`. libcurl sends metrics of C++ programs alone, which no wheel has headers
    for; Python's trackers are those packages themselves."""
    text = "".join(path.read_text() for path in sorted(ROOT.glob("src/launcher/watch/*.cpp")))
    names = re.findall(r'OptionalLibrary \w+\(\s*"([^"]+)"', text)
    assert names, "no OptionalLibrary in src/launcher/watch"
    return names


def system_library(name: str) -> pathlib.Path:
    """Of this machine and processor."""
    listed = subprocess.run(
        ["/sbin/ldconfig", "-p"], check=True, capture_output=True, text=True
    ).stdout
    found = re.search(rf"^\s+{re.escape(name)} .*=> (\S+)$", listed, re.M)
    if not found:
        sys.exit(f"[wheel] {name} is not installed. Install the package that has it")
    return pathlib.Path(found[1]).resolve()


def repair(wheel: Wheel, name: str) -> tuple[str, Wheel]:
    """With the libraries of this machine that it needs; the name says what it runs on. Programs
    stay as they are: they need only our own library, and auditwheel would start them by Python."""
    programs = {path: file for path, file in wheel.items() if ".data/scripts/" in path}
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        write_wheel(folder / name, {k: v for k, v in wheel.items() if k not in programs})
        excluded = [word for library in EXCLUDED for word in ("--exclude", library)]
        result = subprocess.run(
            ["auditwheel", "repair", *excluded, "-w", folder / "repaired", folder / name],
            capture_output=True, text=True,
        )
        if result.returncode:
            sys.exit(f"[wheel] auditwheel repair failed:\n{result.stdout}{result.stderr}")
        repaired = next((folder / "repaired").glob("*.whl"))
        return repaired.name, read_wheel(repaired) | programs


def system_licences(wheel: Wheel) -> dict[str, str]:
    """By package, the licence text of each library that was taken from this machine."""
    names = [path.rpartition("/")[2] for path in wheel if path.startswith("accelerate.libs/")]
    # auditwheel puts a hash into the name: libpng16-d1c9b7e4.so.16.39.0.
    files = [system_library_file(re.sub(r"-[0-9a-f]{8}(?=\.)", "", name, count=1)) for name in names]
    files += [system_library(name) for name in libraries_opened_at_run_time()]
    return dict(map(licence_of, files)) | header_licences()


def header_licences() -> dict[str, str]:
    deps = os.environ.get("ACCELERATE_DEPS")
    if not deps:
        return dict(licence_of(pathlib.Path("/usr/include", name)) for name in HEADERS)
    texts = {path.parent.name: str(path) for path in pathlib.Path(deps).glob(DEPS_LICENCES)}
    texts.pop("googletest", None)  # Only tests use it.
    if not texts:
        sys.exit(f"[wheel] no licence texts in {deps}. Make the folder again with ./dev deps")
    return texts


def system_library_file(name: str) -> pathlib.Path:
    for folder in ("/usr/lib", "/lib", "/usr/lib64", "/usr/local/lib", "/usr/local/lib64"):
        for found in (pathlib.Path(folder, name), *pathlib.Path(folder).glob(f"*/{name}")):
            if found.exists():
                return found.resolve()
    sys.exit(f"[wheel] {name} was taken from this machine, but is not in a folder of libraries")


def licence_of(file: pathlib.Path) -> tuple[str, str]:
    """The package that has a file, and where its licence text is."""
    if pathlib.Path("/usr/bin/dpkg-query").exists():
        # Packages name files as they were before /lib became a link to /usr/lib.
        paths = [str(file), str(file).removeprefix("/usr")]
        listed = answer_of("dpkg-query", "-S", *paths)
        package = listed.partition(":")[0]
        text = f"/usr/share/doc/{package}/copyright"
    else:
        package = answer_of("rpm", "-qf", "--qf", "%{NAME}", str(file))
        text = answer_of("rpm", "-q", "--licensefiles", package).partition("\n")[0]
    if not package or not pathlib.Path(text).exists():
        sys.exit(f"[wheel] no licence text found for {file}; install the package that has both")
    return package, text


def answer_of(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()


def add_licences(wheel: Wheel, licences: dict[str, str]) -> None:
    metadata = path_in(wheel, "METADATA")
    folder = metadata.rpartition("/")[0] + "/licenses"
    lines = ""
    for package, path in sorted(licences.items()):
        name = f"libraries/{package}.txt"
        wheel[f"{folder}/{name}"] = WheelFile(pathlib.Path(path).read_bytes())
        lines += f"License-File: {name}\n"
    head, own, rest = wheel[metadata].data.decode().partition("License-File: LICENSE\n")
    wheel[metadata] = WheelFile((head + own + lines + rest).encode())


if __name__ == "__main__":
    main()
