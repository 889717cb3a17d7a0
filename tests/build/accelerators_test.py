# SPDX-License-Identifier: Apache-2.0
"""No place that means "the accelerator" names one kind of it.

    python3 tests/build/accelerators_test.py

Prints one line per place and exits 1. Rows of the tables, and what is of one kind by its nature,
may name it."""
import pathlib
import re
import sys

FOLDERS = ["src", "include", "python/src", "python/accelerate"]
ENDINGS = {".cpp", ".h", ".py"}
NAMES = re.compile(
    r"\bk(CUDA|HIP|XPU|MPS|PrivateUse1)\b|\bis_(cuda|hip|xpu|mps|privateuseone)\(\)"
    r"|\btorch::(cuda|xpu|mps)::|\btorch\.(cuda|xpu|mps)\b|\b(c10|at)::cuda::"
    r"|CUDA_VISIBLE_DEVICES|nvidia-smi|libnvidia"
)
ALLOWED = {
    # The rows, and the names of all variables.
    "src/core/base/variables.h",
    "include/accelerate/device/accelerator_kind.h",
    "src/training/device/accelerator_kinds.cpp",
    "src/core/hardware/nvidia.cpp",
    "src/training/comm/backends/gloo.cpp",
    "src/training/comm/backends/nccl.cpp",
    # CUDA's graphs, and operators of kernels: cuBLASLt's and those that nvcc has
    # compiled.
    "src/training/device/cuda_graph.cpp",
    "python/accelerate/_fast/recorded.py",
    "src/training/kernels/cublas_lt.cpp",
    "src/training/kernels/cuda_operators.cpp",
    # An example of a row.
    "include/accelerate/distributed/c10d.h",
    # Functions of the original that ask for one kind by name.
    "python/accelerate/utils/imports.py",
}


def violations(root):
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            name = path.relative_to(root).as_posix()
            if path.suffix not in ENDINGS or name in ALLOWED:
                continue
            for number, line in enumerate(path.read_text().splitlines(), 1):
                if found := NAMES.search(line):
                    yield f"{name}:{number}: {found.group()}: ask the table of accelerators"


found = list(violations(pathlib.Path(".")))
print("\n".join(found) or "accelerators: named in their rows only")
sys.exit(1 if found else 0)
