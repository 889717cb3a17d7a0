# SPDX-License-Identifier: Apache-2.0
"""Writes examples as one file, so that torch's headers are compiled once for all of them:

    join_examples.py OUT SOURCES...   OUT/together.cpp and OUT/NAME.cpp, the main of each program

Each has a namespace of its own, after the includes of all.
"""
import pathlib
import re
import sys

MAIN = re.compile(r"^int main\((.*)\) \{$", re.MULTILINE)

out = pathlib.Path(sys.argv[1])
includes, bodies = {}, []
for source in map(pathlib.Path, sys.argv[2:]):
    lines = source.read_text().splitlines()
    for number, line in enumerate(lines):
        if line.startswith("#include "):
            includes.setdefault(re.sub(r'"(.*)"', rf'"{source.parent}/\1"', line))
            lines[number] = ""
    main = MAIN.search("\n".join(lines))
    if main is None or lines[-1] != "}":
        sys.exit(f"{source}: expected `int main(...) {{` on a line, at the end of the file")
    # Only the main function of a program returns 0 by itself.
    lines[-1] = "return 0;\n}"
    name, parameters = source.stem, main[1]
    bodies.append("\n".join([
        f"namespace example_{name} {{",
        f'[[gnu::visibility("default")]] int main({parameters});',
        f'#line 1 "{source}"', *lines, "}"]))
    arguments = "argc, argv" if parameters else ""
    (out / f"{name}.cpp").write_text(
        f"namespace example_{name} {{\nint main({parameters});\n}}\n"
        f"int main({parameters}) {{\n  return example_{name}::main({arguments});\n}}\n")
(out / "together.cpp").write_text("\n".join([*includes, *bodies]) + "\n")
