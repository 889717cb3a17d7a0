# SPDX-License-Identifier: Apache-2.0
"""Lists every module of Hugging Face Accelerate and the names that can be
imported from it, for the placeholders of the Python package.

    .venv-oracle/bin/python tools/list_original_names.py > python/accelerate/_original_names.txt

The sources are parsed, not run, so that names behind optional packages
(DeepSpeed, Megatron-LM, SageMaker) are listed too. A private name is listed
only where a package passes it on. A section of the file is

    [accelerate.hooks]
    code ModelHook add_hook_to_module      classes and functions defined there
    value SOME_CONSTANT                    other things defined there
    error SomeException                    classes that `except` may name
    warning SomeWarning                    classes that a warning filter may name
    from accelerate.utils.modeling a b     names of another module
    from accelerate.utils.other a=b        the same under another name
"""
from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

PACKAGE = "accelerate"
ERROR_BASES = {"Exception": "error", "UserWarning": "warning"}


class Module:
    """What one source file defines and what it takes from the package's other files."""

    def __init__(self, name: str, path: Path) -> None:
        self.name = name
        self.is_package = path.name == "__init__.py"
        self.defined: dict[str, str] = {}
        self.taken: dict[str, tuple[str, str]] = {}
        for statement in top_level(ast.parse(path.read_text())):
            self.add(statement)

    def add(self, statement: ast.stmt) -> None:
        if isinstance(statement, ast.ClassDef):
            bases = [base.id for base in statement.bases if isinstance(base, ast.Name)]
            kinds = [ERROR_BASES[base] for base in bases if base in ERROR_BASES]
            self.defined[statement.name] = kinds[0] if kinds else "code"
        elif isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
            self.defined[statement.name] = "code"
        elif isinstance(statement, (ast.Assign, ast.AnnAssign)):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            for target in targets:
                for node in ast.walk(target):
                    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                        self.defined.setdefault(node.id, "value")
        elif isinstance(statement, ast.ImportFrom):
            source = self.absolute(statement)
            if source.split(".")[0] == PACKAGE:
                for alias in statement.names:
                    self.taken[alias.asname or alias.name] = (source, alias.name)

    def absolute(self, statement: ast.ImportFrom) -> str:
        if not statement.level:
            return statement.module or ""
        parts = self.name.split(".")
        parts = parts[: len(parts) - statement.level + self.is_package]
        return ".".join(parts + ([statement.module] if statement.module else []))


def top_level(node: ast.AST) -> Iterator[ast.stmt]:
    """The statements that an import of the module may run."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test) in (
            "TYPE_CHECKING",
            "__name__ == '__main__'",
        ):
            continue
        if isinstance(child, (ast.If, ast.Try, ast.ExceptHandler, ast.With)):
            yield from top_level(child)
        elif isinstance(child, ast.stmt):
            yield child


def read_modules(root: Path) -> dict[str, Module]:
    modules = {}
    for path in sorted(root.rglob("*.py")):
        parts = [PACKAGE, *path.relative_to(root).with_suffix("").parts]
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        modules[name] = Module(name, path)
    return modules


def origin(modules: dict[str, Module], module: str, name: str) -> tuple[str, str] | None:
    """Where a name is defined; none where it is a module or of another package."""
    while module in modules and name not in modules[module].defined:
        if name not in modules[module].taken:
            return None
        module, name = modules[module].taken[name]
    return (module, name) if module in modules else None


def section(modules: dict[str, Module], module: Module) -> dict[str, list[str]]:
    lines: dict[str, list[str]] = {}
    for name, kind in module.defined.items():
        if not name.startswith("_"):
            lines.setdefault(kind, []).append(name)
    for name in module.taken:
        source = origin(modules, module.name, name)
        if source is None or name in module.defined:
            continue
        if name.startswith("_") and not module.is_package:
            continue
        text = name if source[1] == name else f"{name}={source[1]}"
        lines.setdefault(f"from {source[0]}", []).append(text)
    return lines


def main() -> None:
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        sys.exit("[list_original_names] no accelerate here, expected the original: "
                 "run with .venv-oracle/bin/python")
    modules = read_modules(Path(spec.origin).parent)
    # A private name that a package passes on must be listed where it is defined.
    passed_on = {
        origin(modules, module.name, name)
        for module in modules.values() if module.is_package
        for name in module.taken if name.startswith("_")
    }
    print(f"# Names of Hugging Face Accelerate {version(PACKAGE)}, "
          "made by tools/list_original_names.py.")
    for name in sorted(modules):
        print(f"[{name}]")
        lines = section(modules, modules[name])
        for definer, private in sorted(filter(None, passed_on)):
            if definer == name:
                lines.setdefault(modules[name].defined[private], []).append(private)
        for kind in sorted(lines):
            print(kind, *sorted(lines[kind]))


if __name__ == "__main__":
    main()
