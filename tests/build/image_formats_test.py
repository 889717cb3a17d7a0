# SPDX-License-Identifier: Apache-2.0
"""Without libjpeg and libpng a build configures, and takes the files that refuse pictures.

data_test compiles these files and compares what they say.
"""
import pathlib
import subprocess
import sys
import tempfile

cmake, source, torch = sys.argv[1:]
with tempfile.TemporaryDirectory() as folder:
    subprocess.run(
        [cmake, "-S", source, "-B", folder, "-G", "Ninja", f"-DACCELERATE_TORCH_DIR={torch}",
         "-DACCELERATE_TESTS=OFF", "-DACCELERATE_EXAMPLES=OFF",
         "-DCMAKE_DISABLE_FIND_PACKAGE_JPEG=ON", "-DCMAKE_DISABLE_FIND_PACKAGE_PNG=ON"],
        check=True, stdout=subprocess.DEVNULL, timeout=300)
    sources = (pathlib.Path(folder) / "build.ninja").read_text() + "".join(
        path.read_text() for path in pathlib.Path(folder).rglob("unity_*.cxx"))
for kind in ("jpeg", "png"):
    assert f"/data/no_{kind}.cpp" in sources, f"no_{kind}.cpp is not compiled"
    assert f"/data/{kind}.cpp" not in sources, f"{kind}.cpp is compiled"
print("a build without libjpeg and libpng takes the files that refuse pictures")
