# SPDX-License-Identifier: Apache-2.0
"""The given libraries export the functions that headers mark, and no function or class that is not
marked.

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


NAMESPACE = re.compile(r"^namespace ([\w:]+) \{", re.M)


def marked_names(headers):
    """Marked types, marked functions with their headers, and the names of namespaces."""
    types, functions, namespaces = set(), {}, set()
    for header in headers:
        text = re.sub(r"//[^\n]*|^#define.*", "", header.read_text(), flags=re.M)
        types.update(TYPE.findall(text))
        functions.update(dict.fromkeys(FUNCTION.findall(text), header.relative_to(ROOT)))
        for name in NAMESPACE.findall(text):
            namespaces.update(name.split("::"))
    return types, functions, namespaces


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
    """(kind, symbol) of each dynamic symbol."""
    listing = subprocess.run(
        ["nm", "-D", "--defined-only", "--demangle", library],
        check=True, capture_output=True, text=True)
    for line in listing.stdout.splitlines():
        _, kind, symbol = line.split(" ", 2)
        yield kind, symbol


def is_marked(symbol, types, functions, namespaces):
    """Whether the outermost class or the function is marked, or the member itself."""
    parts = [part for part in parts_of(symbol) if part not in namespaces]
    return bool(parts) and (parts[0] in types or parts[0] in functions or parts[-1] in functions)


assert parts_of("vtable for a::B<c::D>::E") == ["a", "B", "E"]
assert parts_of("void a::f<int>(std::function<void (c::D)> const&) const") == ["a", "f"]
public = sorted((ROOT / "include").rglob("*.h"))
internal = sorted((ROOT / "src").rglob("*.h"))
wrong = [f"{path.relative_to(ROOT)} uses {mark}"
         for paths, mark in ((public, "ACCELERATE_INTERNAL"), (internal, "ACCELERATE_API"))
         for path in paths if path.name != "internal.h" and mark in path.read_text()]
assert not wrong, "\n".join(wrong) + "\nuse ACCELERATE_API in include, else ACCELERATE_INTERNAL"
marks = marked_names(public + internal)
types, functions, _ = marks
NAMES = ({"A"}, {"f": ""}, {"n"})
assert is_marked("n::A::g()", *NAMES) and is_marked("n::f(n::B const&)", *NAMES)
assert not is_marked("n::B::A::g()", *NAMES) and not is_marked("n::g(n::A)", *NAMES)
found = set()
for library in sys.argv[1:]:
    symbols = list(exported(library))
    found.update(part for _, symbol in symbols for part in parts_of(symbol))
    # nvcc compiles the kernels, and only their header names them.
    strong = [symbol for kind, symbol in symbols
              if kind in STRONG and ">(" not in symbol
              and "accelerate::cuda_kernels::" not in symbol]
    # What needs CUDA registers itself when it is loaded.
    is_cuda = "_cuda" in library or "_kernels" in library
    assert strong or is_cuda, f"{library} exports nothing"
    unmarked = [symbol for symbol in strong if not is_marked(symbol, *marks)]
    if unmarked:
        sys.exit(f"{library} exports names that no header marks:\n  " + "\n  ".join(unmarked))
    print(f"{pathlib.Path(library).name}: {len(strong)} names, all marked")
# A build without torch has only some of the libraries. Types without functions have no symbols.
if any("accelerate_models" in library for library in sys.argv[1:]):
    missing = [f"{name} ({functions[name]})" for name in sorted(functions.keys() - found)]
    if missing:
        sys.exit("headers mark functions that no library exports:\n  " + "\n  ".join(missing))
    print(f"all {len(functions)} marked functions are exported")
