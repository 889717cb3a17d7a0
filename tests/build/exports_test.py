# SPDX-License-Identifier: Apache-2.0
"""The given libraries export what headers mark, and nothing else.

    python3 tests/build/exports_test.py LIBRARY...

Public headers mark names with ACCELERATE_API; headers in src mark names for our own libraries,
`_C`, custom engines and tests with ACCELERATE_INTERNAL. Weak symbols and instances of templates are
not compared: the compiler emits them wherever it does not inline a function of a marked class.
"""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
MARK = r"ACCELERATE_(?:API|INTERNAL)"
TYPE = re.compile(rf"\b(?:class|struct|enum class) {MARK}\s+(\w+)")
FUNCTION = re.compile(
    rf"(?<!class )(?<!struct ){MARK}\s+(?:\[\[\w+\]\]\s+)?"
    r"(?:[^;{}()]|\(\))*?(\w+|operator[^\s(]+)\s*[(;=]")
STRONG = "TDBR"


def marked_names(headers):
    names = set()
    for header in headers:
        text = re.sub(r"//[^\n]*", "", header.read_text())
        names.update(TYPE.findall(text))
        names.update(FUNCTION.findall(text))
    return names


def parts_of(symbol):
    """The names in "a::b<c>::d(e)", without arguments of templates and functions."""
    symbol = re.sub(r"^(?:vtable|typeinfo|typeinfo name|VTT|guard variable|construction vtable"
                    r"|(?:non-)?virtual thunk|TLS \w+ function) (?:for|to) ", "", symbol)
    symbol = re.sub(r"\[abi:\w+\]", "", symbol).removesuffix(" const")
    symbol = re.sub(r"::operator [^(]+", "", symbol)
    depth, plain = 0, ""
    for c in symbol:
        depth += (c in "<(") - (c in ">)")
        plain += "" if depth or c in ">)" else c
    return re.findall(r"operator\S+|\w+", plain.rpartition(" ")[2] or plain)


def exported(library):
    listing = subprocess.run(
        ["nm", "-D", "--defined-only", "--demangle", library],
        check=True, capture_output=True, text=True)
    for line in listing.stdout.splitlines():
        _, kind, symbol = line.split(" ", 2)
        # nvcc compiles the kernels, and only their header names them.
        if kind in STRONG and ">(" not in symbol and "accelerate::cuda_kernels::" not in symbol:
            yield symbol


assert parts_of("vtable for a::B<c::D>::E") == ["a", "B", "E"]
assert parts_of("void a::f<int>(std::function<void (c::D)> const&) const") == ["a", "f"]
public = sorted((ROOT / "include").rglob("*.h"))
internal = sorted((ROOT / "src").rglob("*.h"))
wrong = [f"{path.relative_to(ROOT)} uses {mark}"
         for paths, mark in ((public, "ACCELERATE_INTERNAL"), (internal, "ACCELERATE_API"))
         for path in paths if path.name != "internal.h" and mark in path.read_text()]
assert not wrong, "\n".join(wrong) + "\nuse ACCELERATE_API in include, else ACCELERATE_INTERNAL"
names = marked_names(public + internal)
for library in sys.argv[1:]:
    symbols = list(exported(library))
    # What needs CUDA registers itself when it is loaded.
    is_cuda = "_cuda" in library or "_kernels" in library
    assert symbols or is_cuda, f"{library} exports nothing"
    unmarked = [symbol for symbol in symbols if not names.intersection(parts_of(symbol))]
    if unmarked:
        sys.exit(f"{library} exports names that no header marks:\n  " + "\n  ".join(unmarked))
    print(f"{pathlib.Path(library).name}: {len(symbols)} names, all marked")
