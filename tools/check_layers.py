# SPDX-License-Identifier: Apache-2.0
"""Checks that modules include only what tools/layers.txt allows.

    python3 tools/check_layers.py [ROOT]
    python3 tools/check_layers.py --picture [ROOT]
    python3 tools/check_layers.py --torch-headers [ROOT]

Looks at every quoted or <accelerate/...> include of include/, src/, cli/ and
python/. Prints one line per violation and exits 1. With --picture it prints
the layers as docs/architecture.md shows them, with --torch-headers the public
headers that include torch's, themselves or through others.
"""
import functools
import pathlib
import re
import sys

INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|<(accelerate/[^>]+)>)', re.M)
TORCH = re.compile(r"^\s*#\s*include\s*<(?:ATen|c10|torch)/", re.M)


def read_table(root):
    """Module -> modules it may include, and public header -> its module."""
    allowed, owner = {}, {}
    for line in (root / "tools/layers.txt").read_text().splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        module, others, headers = (part.split() for part in line.split(":"))
        allowed[module[0]] = {module[0], *others}
        owner.update({header: module[0] for header in headers})
    return allowed, owner


def module_of(path, root, allowed, owner):
    parts = path.relative_to(root).parts
    if parts[0] == "include":
        return owner.get("/".join(parts[2:]).removesuffix(".h"))
    if parts[0] == "src":
        return parts[1] if parts[1] in allowed else None
    return parts[0] if parts[0] in allowed else None


def sources(root):
    return [p for folder in ("include", "src", "cli", "python")
            for p in sorted((root / folder).rglob("*"))
            if p.suffix in (".h", ".cpp", ".cu", ".cuh") and "gloo_headers" not in p.parts]


def violations(root):
    allowed, owner = read_table(root)
    above = set()
    for module, others in allowed.items():
        above.add(module)
        for other in sorted(others - above):
            yield f"tools/layers.txt: {module} may include {other}, which is no row above it"
    for path in sources(root):
        name = path.relative_to(root)
        module = module_of(path, root, allowed, owner)
        if module is None:
            yield f"{name}: not listed in tools/layers.txt; add it under its module"
            continue
        for quoted, angled in INCLUDE.findall(path.read_text()):
            target = quoted or angled
            first, _, rest = target.partition("/")
            if first == "accelerate":
                other = owner.get(rest.removesuffix(".h"))
            else:
                other = first if first in allowed else None
            if other is None:
                yield f"{name}: includes {target}, which no module owns"
            elif other not in allowed[module]:
                yield f"{name}: {module} may not include {target} of {other}"


def picture(root):
    """A line per layer: a module stands one above the highest it may include."""
    allowed, owner = read_table(root)
    below = {module: others - {module} for module, others in allowed.items()}
    with_torch = {module_of(path, root, allowed, owner) for path in sources(root)
                  if TORCH.search(path.read_text())}

    @functools.cache
    def layer(module):
        return 1 + max(map(layer, below[module]), default=-1)

    @functools.cache
    def needs_torch(module):
        return module in with_torch or any(map(needs_torch, below[module]))

    rows = {}
    for module in allowed:
        rows.setdefault(layer(module), []).append(
            module + ("*" if needs_torch(module) else ""))
    lines = [f"{number}  {'  '.join(rows[number])}" for number in sorted(rows)]
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
    found = list(violations(root))
    print("\n".join(found) or "layers: all includes are allowed")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
