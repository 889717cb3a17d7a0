# SPDX-License-Identifier: Apache-2.0
"""Every training option in a public header is bound to Python under its C++ name and listed in the
stub, or this file says why not."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
STRUCT = re.compile(r"^struct (?:ACCELERATE_API )?(\w+) (?:: [^{]*)?\{\n(.*?)^\};", re.S | re.M)
FIELD = re.compile(
    r"^  (?!static|//|using|friend|explicit)[\w:<>,*&() ]+?\s(\w+)\s*(?:= [^;]*|\{[^;]*\})?;", re.M)
BOUND = re.compile(r"&(\w+)::(\w+)\b")

ARGUMENT = re.compile(r'py::arg\("(\w+)"\)')
PROPERTY = re.compile(r'\.def_property\(\s*"(\w+)"')

# What Python's Accelerator passes to the engine.
STRUCTS = ["AcceleratorOptions", "AccumulationOptions", "DdpOptions", "GradScalerOptions",
           "MeshSizes", "PowerSgdOptions", "ShardingOptions"]
# Fields that Python does not pass on, and why.
REASONS = {
    ("AcceleratorOptions", "checkpoints"): "ProjectConfiguration names the folder for each call",
    ("AcceleratorOptions", "connection"): "Python connects before it creates a run",
    ("AcceleratorOptions", "data_loader"): "Python prepares torch's loaders",
    ("AcceleratorOptions", "device_placement"): "Python moves models and batches itself",
    ("AcceleratorOptions", "memory"): "only layers written in C++ need another memory layout",
    ("AcceleratorOptions", "mixed_precision"): "Python enters autocast itself",
    ("AcceleratorOptions", "outputs_to_fp32"): "Python converts outputs itself",
    ("AcceleratorOptions", "scheduler_stepping"): "Python passes it with each scheduler",
    ("AcceleratorOptions", "step_summary"): "Python users set the environment variable",
    ("AcceleratorOptions", "tensor_plan"): "the layers of Python modules cannot be divided yet",
    ("MeshSizes", "pipeline"): "ParallelismConfig, like the original's, has no such dimension",
    ("ShardingOptions", "units"): "Python names the units when it prepares a model",
}


def fields(root):
    return {name: FIELD.findall(body)
            for header in sorted((root / "include").rglob("*.h"))
            for name, body in STRUCT.findall(header.read_text())}


def bound(text):
    """(struct, field) of each member and property, and of each argument of a constructor."""
    found = set(BOUND.findall(text))
    for binding in re.split(r"py::class_<", text)[1:]:
        names = ARGUMENT.findall(binding) + PROPERTY.findall(binding)
        found.update((re.match(r"\w*", binding)[0], name) for name in names)
    return found


def in_stub(text):
    """The same of a stub."""
    found = set()
    for name, body in re.findall(r"^class (\w+)[^\n]*:\n((?:    [^\n]*\n|\n)+)", text, re.M):
        found.update((name, field) for field in re.findall(r"^ {4,8}(\w+): ", body, re.M))
    return found


declared = fields(ROOT)
bindings = bound("".join(path.read_text() for path in (ROOT / "python/src").glob("bind_*.cpp")))
stub = in_stub((ROOT / "python/accelerate/_C.pyi").read_text())
assert ("DdpOptions", "bucket_cap_mb") in bindings & stub
assert ("DdpOptions", "no_such_option") not in bindings | stub
wrong = []
for name in STRUCTS:
    assert declared[name], f"no field of {name} was found"
    for field in declared[name]:
        option = (name, field)
        is_left_out = option in REASONS
        for file, has in (("python/src/bind_*.cpp", option in bindings),
                           ("python/accelerate/_C.pyi", option in stub)):
            if has == is_left_out:
                remedy = "has it; delete the reason here" if has else "lacks it"
                wrong.append(f"{name}::{field}: {file} {remedy}")
for name, field in REASONS:
    if field not in declared[name]:
        wrong.append(f"{name}::{field} does not exist, but has a reason here")
if wrong:
    sys.exit("\n".join(wrong) + "\nbind each option, or say in tests/build/options_test.py why not")
print(f"{sum(len(declared[name]) for name in STRUCTS)} options are bound or have a reason")
