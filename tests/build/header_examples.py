# SPDX-License-Identifier: Apache-2.0
"""Collects the C++ programs of pages and the examples in the comments of public headers in one source
file.

    python3 tests/build/header_examples.py OUTPUT FILE...

A page is a .md file. Its programs are the blocks of C++ with a `main`. In a header, an example is a block of comment lines that are indented by five spaces. Blocks that begin with
`struct` or `inline` are put in a namespace, others in a function; `...` stands for omitted code.
The file takes its names from header_examples.h and is compiled, never linked.
"""
import pathlib
import re
import sys

LINE = re.compile(r"\s*///?(?:     (.*)|)$")


def blocks(header):
    """(number of the first line, lines) of every example of a header."""
    block, start = [], 0
    for number, line in enumerate(header.read_text().splitlines() + ["end"], 1):
        match = LINE.match(line)
        if match and (match[1] or block):
            start = start if block else number
            block.append(match[1] or "")
        else:
            if block:
                yield start, block
            block = []


def example(name, start, lines, header):
    code = "\n".join(lines).replace("...", "")
    is_declaration = lines[0].startswith(("struct ", "inline "))
    opening = f"namespace {name} {{" if is_declaration else f"void {name}() {{"
    return f'{opening}\n#line {start} "{header}"\n{code}\n}}\n'


def programs(page):
    text = page.read_text()
    for match in re.finditer(r"^```cpp\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        if "int main()" not in match[1]:
            continue
        code = re.sub(r"^#include .*$", "", match[1], flags=re.MULTILINE)
        start = text.count("\n", 0, match.start(1)) + 1
        yield (f"namespace {page.stem.lower()}_{start} {{\n#line {start} \"{page}\"\n"
               f"{code.replace('int main()', 'void program()')}\n}}\n")


def main():
    output, *files = map(pathlib.Path, sys.argv[1:])
    pages = [file for file in files if file.suffix == ".md"]
    parts = [example(f"{header.stem}_{start}", start, lines, header)
             for header in files if header not in pages for start, lines in blocks(header)]
    assert parts, "the headers have no examples"
    for page in pages:
        found = list(programs(page))
        assert found, f"{page} has no C++ program"
        parts += found
    output.write_text('#include "header_examples.h"\n\n' + "\n".join(parts))


if __name__ == "__main__":
    main()
