# SPDX-License-Identifier: Apache-2.0
"""Collects the C++ loop of the README and the examples in the comments of public headers in one
source file.

    python3 tests/build/header_examples.py OUTPUT README HEADER...

An example is a block of comment lines that are indented by five spaces. Blocks that begin with
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


def readme_loop(readme):
    text = readme.read_text()
    (loop,) = re.finditer(r"^```cpp\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    code = re.sub(r"^#include .*$", "", loop[1], flags=re.MULTILINE)
    start = text.count("\n", 0, loop.start(1)) + 1
    return f'#line {start} "{readme}"\n{code.replace("int main()", "void readme_loop()")}'


def main():
    output, readme, *headers = map(pathlib.Path, sys.argv[1:])
    parts = [example(f"{header.stem}_{start}", start, lines, header)
             for header in headers for start, lines in blocks(header)]
    assert parts, "the headers have no examples"
    parts.append(readme_loop(readme))
    output.write_text('#include "header_examples.h"\n\n' + "\n".join(parts))


if __name__ == "__main__":
    main()
