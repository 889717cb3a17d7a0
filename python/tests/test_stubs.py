# SPDX-License-Identifier: Apache-2.0
"""The stubs of the compiled module name what it has."""

from __future__ import annotations

import ast
import pathlib

import torch  # noqa: F401, the module needs torch's libraries

import accelerate
from accelerate import _C


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


def test_the_stubs_name_exactly_what_the_compiled_module_has():
    stub = pathlib.Path(accelerate.__file__).with_name("_C.pyi")
    tree = ast.parse(stub.read_text())
    public = {name for name in vars(_C) if not name.startswith("_")}
    assert _members(tree.body) == public
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            real = {n for n in vars(getattr(_C, node.name)) if not n.startswith("_")}
            assert _members(node.body) == real - {"name", "value"}, node.name
