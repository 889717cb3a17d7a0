# SPDX-License-Identifier: Apache-2.0
"""Checks that modules include only what tools/layers.txt allows.

    python3 tools/check_layers.py [ROOT]

Looks at every quoted or <accelerate/...> include of include/, src/, cli/ and
python/. Prints one line per violation and exits 1.
"""
import pathlib
import re
import sys

INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|<(accelerate/[^>]+)>)', re.M)


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


def violations(root):
    allowed, owner = read_table(root)
    files = [p for folder in ("include", "src", "cli", "python")
             for p in sorted((root / folder).rglob("*"))
             if p.suffix in (".h", ".cpp", ".cu") and "gloo_headers" not in p.parts]
    for path in files:
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


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
    found = list(violations(root))
    print("\n".join(found) or "layers: all includes are allowed")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
