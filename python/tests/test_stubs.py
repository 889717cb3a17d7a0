# SPDX-License-Identifier: Apache-2.0
"""The stub of the compiled module has its names, signatures and types, and the defaults of training
options are the same in C++ and in Python."""

from __future__ import annotations

import ast
import inspect
import pathlib
import re

import pytest
import torch  # noqa: F401, the module needs torch's libraries
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState

import accelerate
from accelerate import _C
from accelerate.parallelism_config import ParallelismConfig
from accelerate.utils.dataclasses import (
    DistributedDataParallelKwargs,
    GradientAccumulationPlugin,
    GradScalerKwargs,
)

STUB = ast.parse(pathlib.Path(accelerate.__file__).with_name("_C.pyi").read_text())
FUNCTION = (ast.FunctionDef,)


def _members(body: list[ast.stmt]) -> set[str]:
    names = set()
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.AnnAssign):
            names.add(node.target.id)
        elif isinstance(node, ast.Assign):
            names.update(target.id for target in node.targets)
    return names - {"__init__"}


def test_the_stub_has_exactly_the_names_of_the_compiled_module():
    public = {name for name in vars(_C) if not name.startswith("_")}
    assert _members(STUB.body) == public
    for node in STUB.body:
        if isinstance(node, ast.ClassDef):
            real = {n for n in vars(getattr(_C, node.name)) if not n.startswith("_")}
            assert _members(node.body) == real - {"name", "value"}, node.name


# The names of types in docstrings of pybind11 that stubs write differently.
NAMES = {
    "Sequence": "list",
    "Mapping": "dict",
    "Set": "set",
    "List": "list",
    "Dict": "dict",
    "Tuple": "tuple",
    "SupportsInt": "int",
    "SupportsFloat": "float",
    "TorchGroup": "ProcessGroup",
}


def _kinds(node: ast.expr) -> set[tuple]:
    """The alternatives of a type as (name, arguments). Any type fits `Any`."""
    if isinstance(node, ast.BinOp):
        return _kinds(node.left) | _kinds(node.right)
    if isinstance(node, ast.Subscript):
        inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        name = ast.unparse(node.value).rpartition(".")[2]
        if name == "Optional":
            return _kinds(inner[0]) | {("None", ())}
        if name == "Union":
            return set().union(*map(_kinds, inner))
        if name == "Callable":  # pybind11 does not know the arguments.
            return {(name, ())}
        return {(NAMES.get(name, name), tuple(frozenset(_kinds(one)) for one in inner))}
    name = ast.unparse(node).rpartition(".")[2]
    if name == "SupportsIndex":  # Accepted together with numbers.
        return set()
    return {(NAMES.get(name, name), ())}


def _fits(stub: set[tuple], real: set[tuple]) -> bool:
    """Whether the stub's type is the real one. A generic type without arguments may be more precise
    in the stub."""
    if real in ({("object", ())}, {("Any", ())}):
        return True

    def is_alike(one: tuple, other: tuple) -> bool:
        return one[0] == other[0] and (
            not one[1]
            or not other[1]
            or (len(one[1]) == len(other[1]) and all(map(_fits, one[1], other[1])))
        )

    return all(any(is_alike(one, other) for other in real) for one in stub) and all(
        any(is_alike(one, other) for one in stub) for other in real
    )


def _differences(stub: ast.FunctionDef, doc: str) -> list[str]:
    """Compares a function of the stub with the signature in a docstring of pybind11."""
    lines = re.findall(rf"^(?:\d+\. )?({stub.name}\(.*)$", doc.replace("accelerate::", ""), re.M)
    # If there are overloads, the first line says so, and the last one has most arguments.
    real = ast.parse(f"def {lines[-1]}: ...").body[0]
    # A method's docstring also has `self`.
    (stub_args, stub_defaults), (real_args, real_defaults) = (
        (function.args.args, function.args.defaults) for function in (stub, real)
    )
    if [one.arg for one in stub_args] != [one.arg for one in real_args]:
        return [f"{stub.name}: the arguments are {[one.arg for one in real_args]}"]
    found = []
    for one, other in zip(stub_args, real_args):
        if one.arg != "self":
            own, others = _kinds(one.annotation), _kinds(other.annotation)
            # C++ strings accept both.
            own = {("str", ()) if kind == ("bytes", ()) else kind for kind in own}
            if not _fits(own, others):
                found.append(f"{stub.name}: {one.arg} is {ast.unparse(other.annotation)}")
    values = [ast.unparse(value) for value in stub_defaults]
    real_values = [ast.unparse(value) for value in real_defaults]
    if (
        len(lines) == 1
        and [real if value == "..." else value for value, real in zip(values, real_values)]
        + values[len(real_values) :]
        != real_values
    ):
        found.append(f"{stub.name}: the defaults are {real_values}")
    # A pointer may be null, which pybind11 does not say.
    if not _fits(
        _kinds(stub.returns) - {("None", ())} or _kinds(stub.returns),
        _kinds(real.returns) - {("None", ())} or _kinds(real.returns),
    ):
        found.append(f"{stub.name}: returns {ast.unparse(real.returns)}")
    return found


def _type_differences(name: str, stub: ast.expr, doc: str) -> list[str]:
    """Compares the type of an attribute with the docstring of its getter."""
    real = ast.parse(doc.rpartition("-> ")[2].strip().replace("::", "."), mode="eval").body
    without = {("None", ())}
    if _fits(_kinds(stub) - without, _kinds(real) - without):
        return []
    return [f"{name} is {ast.unparse(real)}"]


def _class_differences(stub: ast.ClassDef, real: type) -> list[str]:
    found = []
    has_constructor = "Initialize self" not in real.__init__.__doc__
    if not any(ast.unparse(base) == "Enum" for base in stub.bases) and has_constructor != any(
        isinstance(node, FUNCTION) and node.name == "__init__" for node in stub.body
    ):
        found.append(f"{'has a' if has_constructor else 'has no'} constructor")
    for node in stub.body:
        if isinstance(node, ast.AnnAssign):
            value = vars(real)[node.target.id]
            if isinstance(value, property):
                if value.fset is None:
                    found.append(f"{node.target.id} cannot be set")
                found += _type_differences(node.target.id, node.annotation, value.fget.__doc__)
            else:
                assert type(value).__name__ == ast.unparse(node.annotation), node.target.id
        elif isinstance(node, ast.ClassDef):
            found += _class_differences(node, getattr(real, node.name))
        elif isinstance(node, FUNCTION) and node.decorator_list:
            value = vars(real)[node.name]
            if value.fset is not None:
                found.append(f"{node.name} can be set")
            found += _type_differences(node.name, node.returns, value.fget.__doc__)
        elif isinstance(node, FUNCTION):
            found += _differences(node, getattr(real, node.name).__doc__)
    return [f"{stub.name}: {one}" for one in found]


def test_the_stub_has_the_signatures_and_types_of_the_compiled_module():
    found = []
    for node in STUB.body:
        if isinstance(node, ast.ClassDef):
            found += _class_differences(node, getattr(_C, node.name))
        elif isinstance(node, FUNCTION):
            found += _differences(node, getattr(_C, node.name).__doc__)
    assert found == []


@pytest.mark.parametrize(
    ("stub", "doc"),
    [
        ("def f(a: int) -> int: ...", "f(a: str) -> int"),
        ("def f(a: int) -> int: ...", "f(b: typing.SupportsInt) -> int"),
        ("def f(a: int = 1) -> int: ...", "f(a: typing.SupportsInt = 2) -> int"),
        ("def f(a: int) -> int: ...", "f(a: typing.SupportsInt = 2) -> int"),
        ("def f(a: list[int]) -> int: ...", "f(a: collections.abc.Sequence[str]) -> int"),
        ("def f(a: int) -> list[str]: ...", "f(a: typing.SupportsInt) -> list[int]"),
    ],
)
def test_a_wrong_stub_is_found(stub, doc):
    assert _differences(ast.parse(stub).body[0], doc)


# The options that Python passes to the engine, and the class with the same defaults: ours, whose
# names and defaults are those of Hugging Face Accelerate, or torch's.
OPTIONS = {
    "AcceleratorOptions": accelerate.Accelerator,
    "AccumulationOptions": GradientAccumulationPlugin,
    "DdpOptions": DistributedDataParallelKwargs,
    "GradScalerOptions": GradScalerKwargs,
    "PowerSgdOptions": PowerSGDState,
    "ShardingOptions": None,  # Read from plugins, whose fields have other names.
}
# Fields of the C++ options that are not compared.
NOT_COMPARED = {
    "AcceleratorOptions": {
        # Python also reads the environment and the state that Accelerators share.
        "cpu",
        "debug",
        "environment",
        "process_group",
        # Options with fields of their own.
        "accumulation",
        "ddp",
        "engine",
        "parallelism",
        "scaler",
        "shard",
    },
    "DdpOptions": {
        # C++ stores gradients in buckets, which saves a copy. Python's default is torch's.
        "gradient_as_bucket_view",
        # `comm_hook` and `comm_state_option`.
        "compression",
        "power_sgd",
    },
}


def _defaults_of(kind: type) -> dict:
    """The defaults of the constructor's arguments."""
    return {one.name: one.default for one in inspect.signature(kind).parameters.values()}


@pytest.mark.parametrize("name", OPTIONS)
def test_defaults_of_options_are_the_same_in_both_languages(name):
    options = getattr(_C, name)()
    own = {n for n, value in vars(type(options)).items() if isinstance(value, property)}
    assert own >= NOT_COMPARED.get(name, set())
    if OPTIONS[name] is None:
        assert (options.stage, options.prefetch, options.reduce_dtype) == (0, 1, "no")
        assert (options.ignored, options.cpu_offload) == ([], False)
        return
    expected = _defaults_of(OPTIONS[name])
    compared = own - NOT_COMPARED.get(name, set())
    assert compared <= set(expected), "add the option to Python, or say here why not"
    for field in compared:
        value = getattr(options, field)
        assert value == expected[field], field
        # An integer is a valid default of a number.
        assert type(expected[field]) in {type(value), int}, field


def test_sizes_of_a_mesh_have_the_same_defaults_in_both_languages():
    doc = _C.MeshSizes.__init__.__doc__
    real = dict(re.findall(r"(\w+): [^=,]+ = (\d+)", doc))
    # 0 means: the number of processes that the other sizes leave.
    assert {name: int(size) for name, size in real.items()} == {
        "replicate": 0,
        "shard": 0,
        "context": 1,
        "sequence": 1,
        "tensor": 1,
    }
    config = ParallelismConfig()
    assert (config.cp_size, config.sp_size, config.tp_size) == (1, 1, 1)
