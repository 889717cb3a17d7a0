# SPDX-License-Identifier: Apache-2.0
"""Checks that modules include and import only what tools/layers.txt allows.

    python3 tools/check_layers.py [ROOT]
    python3 tools/check_layers.py --picture [ROOT]
    python3 tools/check_layers.py --torch-headers [ROOT]

Looks at every quoted or <accelerate/...> include of include/, src/, cli/ and
python/src, and at every import of the package in python/accelerate, also those
inside functions, which would hide import cycles. Prints one line per violation
and exits 1. With --picture it prints the layers as docs/architecture.md shows
them, with --torch-headers the public headers that include torch's, themselves
or through others.
"""
import ast
import functools
import pathlib
import re
import sys

INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|<(accelerate/[^>]+)>)', re.M)
TORCH = re.compile(r"^\s*#\s*include\s*<(?:ATen|c10|torch)/", re.M)


PACKAGE = "python/accelerate"


def read_table(root, package=False):
    """Module -> modules it may include, public header -> its module, and module -> its
    library. The section PACKAGE has folders of Python, and modules outside of them."""
    allowed, owner, library, current = {}, {}, {}, ""
    for line in (root / "tools/layers.txt").read_text().splitlines():
        if line.startswith("["):
            current = line.strip("[]")
        if not line.strip() or line[0] in "#[" or (current == PACKAGE) != package:
            continue
        module, others, headers = (part.split() for part in line.split(":"))
        allowed[module[0]] = {module[0], *others}
        owner.update({header: module[0] for header in headers})
        library[module[0]] = current
    return allowed, owner, library


def module_in(parts, library):
    """The module of a file below src; a library of one module has no folders."""
    module = parts[0] if library.get(parts[0]) == parts[0] else parts[1]
    return module if library.get(module) == parts[0] else None


def module_of(path, root, owner, library):
    parts = path.relative_to(root).parts
    if parts[0] == "include":
        return owner.get("/".join(parts[2:]).removesuffix(".h"))
    if parts[0] == "src":
        return module_in(parts[1:], library)
    return parts[0] if parts[0] in library else None


def sources(root):
    return [p for folder in ("include", "src", "cli", "python/src")
            for p in sorted((root / folder).rglob("*"))
            if p.suffix in (".h", ".cpp", ".cu", ".cuh") and "gloo_headers" not in p.parts]


def upward(allowed):
    above = set()
    for module, others in allowed.items():
        above.add(module)
        for other in sorted(others - above):
            yield f"tools/layers.txt: {module} may include {other}, which is no row above it"


def violations(root):
    allowed, owner, library = read_table(root)
    yield from upward(allowed)
    for path in sources(root):
        name = path.relative_to(root)
        module = module_of(path, root, owner, library)
        if module is None:
            yield f"{name}: not listed in tools/layers.txt; add it under its module"
            continue
        for quoted, angled in INCLUDE.findall(path.read_text()):
            target = quoted or angled
            parts = target.split("/")
            if parts[0] == "accelerate":
                other = owner.get("/".join(parts[1:]).removesuffix(".h"))
            elif parts[0] == "python":
                other = "python"
            else:
                other = module_in(parts, library) if len(parts) > 1 else None
            if other is None:
                yield f"{name}: includes {target}, which no module owns"
            elif other not in allowed[module]:
                yield f"{name}: {module} may not include {target} of {other}"


def python_modules(root):
    """Names as in imports, without `accelerate.`, and their files."""
    folder = root / PACKAGE
    modules = {}
    for path in sorted(folder.rglob("*.py")):
        name = ".".join(path.relative_to(folder).with_suffix("").parts)
        modules[name.removesuffix(".__init__")] = path
    return modules


def imported(name, path, modules):
    """The modules of the package that a file imports anywhere, and their lines."""
    package = ["accelerate", *(part for part in name.split(".") if part != "__init__")]
    if path.name != "__init__.py":
        package.pop()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[:len(package) + 1 - node.level] if node.level else []
            base = ".".join([*base, *filter(None, [node.module])])
            found = [f"{base}.{alias.name}" for alias in node.names]
        else:
            continue
        for target in found:
            first, _, rest = target.partition(".")
            if first == "accelerate":
                # `rest` is a module, or a name in one.
                rest = rest if rest in modules else rest.rpartition(".")[0]
                yield rest or "__init__", node.lineno


def cycles(imports):
    """Groups of modules that import each other, itself or through others."""
    reached = {}
    for start in imports:
        seen, open_ones = set(), [start]
        while open_ones:
            for other in imports.get(open_ones.pop(), ()):
                if other not in seen:
                    seen.add(other)
                    open_ones.append(other)
        reached[start] = seen
    groups = {frozenset(b for b in reached[a] if a in reached.get(b, ())) for a in imports}
    return sorted(sorted(group) for group in groups if group)


def python_violations(root):
    allowed, owner, _ = read_table(root, package=True)
    yield from upward(allowed)
    modules = python_modules(root)

    def layer_of(name):
        folder = name.partition(".")[0]
        return owner.get(name, folder if folder in allowed else None)

    imports = {}
    for name, path in modules.items():
        file = path.relative_to(root)
        layer = layer_of(name)
        if layer is None:
            yield f"{file}: not listed in tools/layers.txt; add it to the row of its layer"
            continue
        for other, line in imported(name, path, modules):
            imports.setdefault(name, set()).add(other)
            if other in ("__init__", "utils"):
                # Their names are resolved on first use, from any layer.
                yield f"{file}:{line}: import the name from the module that defines it"
            elif layer_of(other) not in allowed[layer]:
                yield f"{file}:{line}: {layer} may not import {other} of {layer_of(other)}"
    for group in cycles(imports):
        yield f"{PACKAGE}: these modules import each other: {', '.join(group)}"


def picture(root):
    """A line per library and layer: a module is one layer above the highest that it may include."""
    allowed, owner, library = read_table(root)
    below = {module: others - {module} for module, others in allowed.items()}
    with_torch = {module_of(path, root, owner, library) for path in sources(root)
                  if TORCH.search(path.read_text())}

    @functools.cache
    def layer(module):
        return 1 + max(map(layer, below[module]), default=-1)

    @functools.cache
    def needs_torch(module):
        return module in with_torch or any(map(needs_torch, below[module]))

    rows = {}
    for module in allowed:
        rows.setdefault(library[module], {}).setdefault(layer(module), []).append(
            module + ("*" if needs_torch(module) else ""))
    lines = [f"{name if number == min(layers) else '':<11} {number:>2}  {'  '.join(layers[number])}"
             for name, layers in rows.items() for number in sorted(layers)]
    return "\n".join([*lines, "(* = needs torch)"])


def torch_headers(root):
    include = root / "include"

    @functools.cache
    def needs_torch(path):
        text = path.read_text() if path.exists() else ""  # version.h is generated.
        others = [quoted or angled for quoted, angled in INCLUDE.findall(text)]
        return bool(TORCH.search(text)) or any(needs_torch(include / other) for other in others)

    headers = sorted(include.rglob("*.h"))
    return "\n".join(str(path.relative_to(include)) for path in headers if needs_torch(path))


def main():
    modes = {"--picture": picture, "--torch-headers": torch_headers}
    options = [argument for argument in sys.argv[1:] if argument.startswith("--")]
    roots = [argument for argument in sys.argv[1:] if argument not in options]
    root = pathlib.Path(roots[0] if roots else ".").resolve()
    if options:
        print(modes[options[0]](root))
        return
    found = [*violations(root), *python_violations(root)]
    print("\n".join(found) or "layers: all includes and imports are allowed")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
