# SPDX-License-Identifier: Apache-2.0
"""Downloads what a build against a torch release needs, without what torch itself needs:

    torch_release.py FOLDER VERSION [--libraries]

FOLDER/VERSION/torch/include are its headers. With --libraries, FOLDER/VERSION/torch/lib are the
libraries to link with, and FOLDER/VERSION/nvidia/nccl/include has the header of its NCCL, whose
version decides how torch's classes look. A release that is there already is left as it is.
"""

from __future__ import annotations

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile

LIBRARIES = ("c10", "c10_cuda", "torch", "torch_cpu", "torch_cuda", "torch_python")


def download(requirement: str, folder: pathlib.Path) -> zipfile.ZipFile:
    subprocess.run(
        [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps",
         "--only-binary=:all:", "-d", folder, requirement],
        check=True,
    )
    name = re.split("[=<>~]", requirement)[0].replace("-", "_")
    return zipfile.ZipFile(next(folder.glob(f"{name}-*.whl")))


def extract(archive: zipfile.ZipFile, pattern: str, folder: pathlib.Path) -> None:
    archive.extractall(folder, [name for name in archive.namelist() if re.match(pattern, name)])


def main() -> None:
    root, version = pathlib.Path(sys.argv[1]), sys.argv[2]
    with_libraries = sys.argv[3:] == ["--libraries"]
    target = root / version
    if target.exists():
        return
    root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root, prefix=".") as temporary:
        work = pathlib.Path(temporary)
        torch = download(f"torch=={version}", work)
        extract(torch, "torch/include/", work / "new")
        if with_libraries:
            extract(torch, rf"torch/lib/lib({'|'.join(LIBRARIES)})\.so$", work / "new")
            extract(torch, r"torch-[^/]+\.dist-info/licenses/third_party/pybind11/", work / "new")
            metadata = torch.read(f"torch-{version}.dist-info/METADATA").decode()
            nccl = re.search(r"^Requires-Dist: (nvidia-nccl-cu\d+==[\d.]+)", metadata, re.M)
            if nccl:  # A torch without CUDA has none.
                extract(download(nccl[1], work), "nvidia/nccl/include/", work / "new")
        shutil.move(work / "new", target)


if __name__ == "__main__":
    main()
