# SPDX-License-Identifier: Apache-2.0
"""A wheel with the engine of this torch, built as `./dev wheel` does and installed into an environment
that has torch; and `pip install .` into one without."""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest
import torch
from original import PROGRAMS

ROOT = pathlib.Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import make_wheel  # noqa: E402
from wheel_archive import WheelFile, path_in, read_wheel, write_wheel  # noqa: E402

BUILD_SECONDS = 1500


def make_environment(folder: pathlib.Path, with_torch: bool) -> pathlib.Path:
    """A virtual environment in which torch and its dependencies are links to those of this one."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    site = next(folder.glob("lib/python*/site-packages"))
    source = pathlib.Path(torch.__file__).parents[1]
    for path in source.iterdir() if with_torch else ():
        if not (site / path.name).exists() and "accelerate" not in path.name:
            (site / path.name).symlink_to(path)
    return folder / "bin"


def clean_variables() -> dict[str, str]:
    hidden = ("PYTHONPATH", "ACCELERATE_PYTHON")
    kept = {name: value for name, value in os.environ.items() if name not in hidden}
    # The name by which CMake found the compiler before, for which ccache has entries.
    return {"CXX": "/usr/bin/c++", **kept}


# As the build that runs this test, so that ccache has its objects.
WARNING_AS_ERROR = os.environ.get("ACCELERATE_TEST_WARNING_AS_ERROR", "OFF")
BUILD_OPTIONS = [
    f"--config-settings=cmake.define.CMAKE_COMPILE_WARNING_AS_ERROR={WARNING_AS_ERROR}"
]


def pip(programs: pathlib.Path, *words: object) -> subprocess.CompletedProcess:
    # The pip of this environment serves all.
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    command += ["--python", programs / "python", *words]
    variables = clean_variables()
    # The user's pip registry and ccache.
    variables["HOME"] = os.environ.get("ACCELERATE_TEST_USERS_HOME") or variables["HOME"]
    return subprocess.run(
        command, env=variables, capture_output=True, text=True, timeout=BUILD_SECONDS
    )


def output_of(result: subprocess.CompletedProcess) -> str:
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    if os.environ.get("ACCELERATE_DEPS"):
        pytest.skip("pip needs a registry here")
    folder = tmp_path_factory.mktemp("pip")
    programs = make_environment(folder / "venv", with_torch=True)
    output_of(pip(programs, "wheel", "--no-deps", "-w", folder / "engine", *BUILD_OPTIONS, ROOT))
    (engine,) = (folder / "engine").iterdir()
    command = [sys.executable, make_wheel.__file__, folder / "dist", engine]
    # auditwheel is installed beside pytest.
    variables = os.environ | {"PATH": f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"}
    wheel = output_of(
        subprocess.run(command, env=variables, capture_output=True, text=True, timeout=300)
    )
    assert "manylinux_2_" in wheel
    output_of(pip(programs, "install", wheel.strip()))
    return programs


def run(programs: pathlib.Path, *command: str, **options) -> str:
    variables = clean_variables()
    variables["PATH"] = f"{programs}{os.pathsep}/usr/bin{os.pathsep}/bin"
    result = subprocess.run(
        command, env=variables, capture_output=True, text=True, timeout=300, **options
    )
    return output_of(result)


def test_the_package_trains_with_the_program_that_came_with_it(programs, tmp_path):
    words = ("launch", "--cpu", "--num_processes", "2", PROGRAMS / "pip_install/train.py")
    out = run(programs, "accelerate", *words, cwd=tmp_path)
    assert f"installed 0 {programs.parent}" in out and "installed 1" in out


def test_the_programs_find_their_libraries(programs):
    assert "Usage: accelerate" in run(programs, "accelerate", "--help")
    assert "ok" in run(programs, "accelerate", "test").lower()


def test_the_other_programs_of_the_original_are_there(programs):
    for name in ("launch", "config", "estimate-memory", "merge-weights"):
        assert f"Usage: accelerate {name} " in run(programs, f"accelerate-{name}", "--help")


def site_packages(programs: pathlib.Path) -> pathlib.Path:
    return next(programs.parent.glob("lib/python*/site-packages"))


def test_types_are_marked_and_the_original_is_replaced(programs):
    assert (site_packages(programs) / "accelerate" / "py.typed").exists()
    listed = output_of(pip(programs, "list", "--format=freeze"))
    ours = [line for line in listed.splitlines() if line.startswith("accelerate")]
    # Libraries compare the first part, which is the original's version.
    assert len(ours) == 1 and re.fullmatch(r"accelerate==1\.15\.0\+cpp\.\d+\.\d+\.\d+", ours[0])


def test_metadata_names_our_own_page_and_holds_the_licence(programs):
    folder = next(site_packages(programs).glob("accelerate-*.dist-info"))
    fields = dict(re.findall(r"^([\w-]+): (.*)$", (folder / "METADATA").read_text(), re.M))
    # sentence-transformers looks for this word before it takes the package for Accelerate.
    assert "huggingface" in fields["Home-page"]
    assert "github.com/huggingface" not in fields["Home-page"]
    assert fields["Home-page"].endswith("docs/coming_from_huggingface.md")
    assert fields["License-Expression"] == "Apache-2.0"
    assert (folder / "licenses/LICENSE").read_text() == (ROOT / "LICENSE").read_text()


def needed_libraries(file: pathlib.Path) -> list[str]:
    said = subprocess.run(
        ["/usr/bin/readelf", "-d", file], check=True, capture_output=True, text=True
    ).stdout
    return re.findall(r"NEEDED.*\[(.+)\]", said)


def test_only_the_cuda_part_of_the_engine_needs_cuda(programs):
    package = site_packages(programs) / "accelerate"
    release = "_".join(torch.__version__.split(".")[:2])
    (engine,) = (package / "_engines").iterdir()
    assert engine.name == f"torch_{release}"
    (module,) = engine.glob("_C.*.so")
    for file in (module, engine / "libaccelerate.so"):
        assert "libtorch_cpu.so" in needed_libraries(file)
        assert not [name for name in needed_libraries(file) if "cuda" in name]
    # Files that do not depend on torch exist once, however many engines there are.
    for file in (package / "lib").iterdir():
        assert not [name for name in needed_libraries(file) if "torch" in name or "c10" in name]
    cuda = engine / "libaccelerate_cuda.so"
    assert not cuda.exists() or "libtorch_cuda.so" in needed_libraries(cuda)


def test_an_unknown_torch_is_refused_in_one_line(programs):
    release = ".".join(torch.__version__.split(".")[:2])
    said = run(programs, "python", PROGRAMS / "pip_install/unknown_torch.py").splitlines()
    assert len(said) == (2 if torch.version.cuda else 1)
    assert re.fullmatch(
        rf"accelerate \S+ supports torch {re.escape(release)}, but torch 9\.9\.1\+cu999 is installed."
        " Install a supported version of torch, or a different version of accelerate",
        said[0],
    )
    if torch.version.cuda:
        assert re.match(
            r"accelerate \S+ supports torch builds for CUDA \d+ or the CPU, but ", said[1]
        )
        assert "the installed torch is built for CUDA 8.0" in said[1]


def test_an_engine_for_another_python_is_refused_in_one_line(programs, tmp_path):
    package = site_packages(programs) / "accelerate"
    shutil.copytree(package, tmp_path / "accelerate", ignore=shutil.ignore_patterns("_C.*.so"))
    said = run(programs, "python", PROGRAMS / "pip_install/other_python.py", tmp_path)
    assert re.match(r"accelerate \S+ was installed for a version of Python other than 3\.", said)


def test_programs_outside_of_the_environment_use_the_python_that_installed_them(programs, tmp_path):
    # After `pip install --user`, the folder of the programs has no python3.
    away = tmp_path / "a folder/bin"
    shutil.copytree(programs, away, ignore=shutil.ignore_patterns("python*"))
    (tmp_path / "a folder/accelerate").symlink_to(site_packages(programs) / "accelerate")
    (tmp_path / "train.py").write_text("import sys, torch; print('runs', sys.executable)")
    out = run(away, "accelerate", "launch", "--cpu", "train.py", cwd=tmp_path)
    assert f"runs {programs}/python" in out
    assert "ok  the training library finds torch" in run(away, "accelerate", "doctor")
    assert "Everything works" in run(away, "accelerate", "test", "--cpu")


def small_wheel(engine: str) -> dict[str, WheelFile]:
    info = "accelerate-1.dist-info"
    metadata = b"Metadata-Version: 2.4\nName: accelerate\nLicense-File: LICENSE\n\nText\n"
    return {
        f"accelerate/_engines/{engine}/_C.so": WheelFile(engine.encode()),
        "accelerate/__init__.py": WheelFile(b""),
        "accelerate-1.data/scripts/accelerate": WheelFile(b"program", is_program=True),
        f"{info}/METADATA": WheelFile(metadata),
        f"{info}/RECORD": WheelFile(b""),
    }


def test_a_joined_wheel_has_all_engines_and_licence_texts(tmp_path):
    wheel = make_wheel.join([small_wheel("torch_2_11"), small_wheel("torch_2_15")])
    (tmp_path / "text").write_text("Do as you like.")
    make_wheel.add_licences(wheel, {"libx": str(tmp_path / "text")})
    write_wheel(tmp_path / "accelerate-1-py3-none-any.whl", wheel)
    read = read_wheel(tmp_path / "accelerate-1-py3-none-any.whl")
    for engine in ("torch_2_11", "torch_2_15"):
        assert read[f"accelerate/_engines/{engine}/_C.so"].data == engine.encode()
    assert read["accelerate-1.data/scripts/accelerate"].is_program
    assert read["accelerate-1.dist-info/licenses/libraries/libx.txt"].data == b"Do as you like."
    assert b"\nLicense-File: libraries/libx.txt\n" in read[path_in(read, "METADATA")].data
    names = [row.split(",")[0] for row in read[path_in(read, "RECORD")].data.decode().split()]
    assert sorted(names) == sorted(read)


def test_wheels_of_different_versions_are_not_joined():
    other = small_wheel("torch_2_11")
    other[path_in(other, "METADATA")] = WheelFile(b"Version: 2")
    with pytest.raises(SystemExit, match="different versions"):
        make_wheel.join([other, small_wheel("torch_2_15")])


def test_other_libraries_and_their_licence_texts_are_inside(programs):
    site = site_packages(programs)
    assert make_wheel.libraries_opened_at_run_time() == ["libmicrohttpd.so.12"]
    # auditwheel leaves the names of those that are opened, and gives the others a hash.
    names = {path.name.split(".")[0].split("-")[0] for path in (site / "accelerate.libs").iterdir()}
    assert "libsodium" in names
    assert (site / "accelerate/lib/libmicrohttpd.so.12").exists()
    texts = {path.stem for path in site.glob("accelerate-*.dist-info/licenses/libraries/*")}
    assert {"libsodium23", "libmicrohttpd12", "nlohmann-json3-dev"} <= texts


def test_licence_texts_of_headers_come_with_them(tmp_path, monkeypatch):
    for name in ("libcli11-dev", "googletest"):
        text = tmp_path / "usr/share/doc" / name / "copyright"
        text.parent.mkdir(parents=True)
        text.write_text(name)
    monkeypatch.setenv("ACCELERATE_DEPS", str(tmp_path))
    texts = make_wheel.header_licences()
    assert texts == {"libcli11-dev": str(tmp_path / "usr/share/doc/libcli11-dev/copyright")}


def test_without_torch_one_sentence_says_so(tmp_path):
    if os.environ.get("ACCELERATE_DEPS"):
        pytest.skip("pip needs a registry here")
    programs = make_environment(tmp_path / "venv", with_torch=False)
    result = pip(
        programs, "install", "--no-deps", f"--config-settings=build-dir={tmp_path / 'build'}", ROOT
    )
    assert result.returncode != 0
    assert "no torch found in" in result.stderr and "(pip install torch)" in result.stderr
