# SPDX-License-Identifier: Apache-2.0
"""Each of the given libraries and programs needs only the libraries that it may use: of ours those
in MAY_NEED, and of others no torch and no ICU unless MAY_USE allows it. All symbols that it uses
are in these libraries, so each library links without the rest of the project.

    python3 tests/build/needed_libraries_test.py FILE...
"""
import pathlib
import re
import subprocess
import sys

CORE, ENGINE = "libaccelerate_core", "libaccelerate"
MAY_NEED = {
    CORE: set(),
    "libaccelerate_launcher": {CORE},
    "accelerate": {CORE, "libaccelerate_launcher"},
    "libaccelerate_text": {CORE},
    "libaccelerate_kernels": set(),
    ENGINE: {CORE},
    "libaccelerate_cuda": {CORE, ENGINE, "libaccelerate_kernels"},
    "libaccelerate_models": {CORE, ENGINE},
}
TORCH = ("torch", "c10", "cuda")
MAY_USE = {
    "libaccelerate_text": ("icu",),
    # Not torch: nvcc compiles it without torch's headers.
    "libaccelerate_kernels": ("cuda",),
    ENGINE: TORCH,
    "libaccelerate_cuda": TORCH,
    "libaccelerate_models": TORCH,
}


def problems(name, listing):
    """What the listing of `ldd -r` has that the library must not need."""
    needed = re.findall(r"^\s*(lib[\w.+-]*?)\.so", listing, re.M)
    ours = {one for one in needed if one.startswith("libaccelerate")} - {name}
    for one in sorted(ours - MAY_NEED[name]):
        yield f"{name} needs {one}"
    for kind in (*TORCH, "icu", "python"):
        found = [one for one in needed if one.startswith(f"lib{kind}")]
        if found and kind not in MAY_USE.get(name, ()):
            yield f"{name} needs {found[0]}"
    # Programs bring the symbols of sanitizers.
    for symbol in re.findall(r"undefined symbol: (?!__[a-z]+san_|__sanitizer_)(\S+)", listing):
        yield f"{name} uses {symbol}, which none of its libraries has"


EXAMPLE = "\tlibaccelerate_core.so.0 => /a/libaccelerate_core.so.0 (0x1)\n\tlibc.so.6 => /b (0x2)\n"
assert not list(problems("libaccelerate_text", EXAMPLE))
assert list(problems(CORE, EXAMPLE.replace("_core", "_text")))
assert list(problems("libaccelerate_launcher", EXAMPLE + "\tlibtorch_cpu.so => /c (0x3)\n"))
assert list(problems(CORE, EXAMPLE + "undefined symbol: accelerate_x\t(/a)\n"))
for file in sys.argv[1:]:
    result = subprocess.run(["ldd", "-r", file], check=True, capture_output=True, text=True)
    assert "libc.so" in result.stdout, f"ldd says nothing about {file}"
    name = pathlib.Path(file).name.partition(".so")[0]
    found = list(problems(name, result.stdout + result.stderr))
    assert not found, "\n".join(found) + "\ntools/layers.txt lists the libraries and their modules"
print(f"{len(sys.argv) - 1} files need only what they may use")
