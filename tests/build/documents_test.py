# SPDX-License-Identifier: Apache-2.0
"""Documents hold what the tree holds: layers, headers, links."""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Of this tree; one with NAME in it is the reader's to fill in.
PATH = r"`((?:benchmarks|cmake|docs|examples|include|python|src|tests|tools)/(?!\S*NAME)[^\s`]+)`"

picture = subprocess.run(
    [sys.executable, "tools/check_layers.py", "--picture"],
    cwd=ROOT, check=True, capture_output=True, text=True).stdout
assert f"```\n{picture}```\n" in (ROOT / "docs/architecture.md").read_text(), (
    "docs/architecture.md shows other layers than tools/layers.txt has; put there:\n" + picture)

ARCHITECTURE_WORDS = 2000
num_words = len((ROOT / "docs/architecture.md").read_text().split())
assert num_words <= ARCHITECTURE_WORDS, (
    f"docs/architecture.md has {num_words} words; shorten it to {ARCHITECTURE_WORDS}, or move a section "
    "to a page of its own")

names = subprocess.run(
    [sys.executable, "tools/coming_from_accelerate.py"],
    cwd=ROOT, check=True, capture_output=True, text=True).stdout
assert names == (ROOT / "docs/coming_from_huggingface.md").read_text(), (
    "docs/coming_from_huggingface.md is not what python/differences.txt says; run: "
    "python3 tools/coming_from_accelerate.py > docs/coming_from_huggingface.md")

INCLUDE = ROOT / "include/accelerate"
named = set(re.findall(r"`([\w/]+\.h)`", (ROOT / "docs/headers.md").read_text()))
public = {path.relative_to(INCLUDE).as_posix() for path in INCLUDE.rglob("*.h")
          if path.parent.name != "detail"} | {"version.h"}
assert not public - named, f"docs/headers.md does not name {sorted(public - named)}"
assert not named - public, f"docs/headers.md names {sorted(named - public)}, which do not exist"

# Designated initialisers must have the order of declaration, so tables of options have it, too.
STRUCT = re.compile(r"^struct (?:ACCELERATE_API )?(\w+) \{\n(.*?)^\};", re.S | re.M)
FIELD = re.compile(r"^  (?!static|//|using)[\w:<>,* ]+?\s(\w+)(?: = [^;]*)?;", re.M)
fields = {name: FIELD.findall(body)
          for header in sorted(INCLUDE.rglob("*.h"))
          for name, body in STRUCT.findall(header.read_text())}


def check_order(document, table):
    """A table whose first column names two or more fields of one struct, and nothing else."""
    cells = [row.split("|")[1] for row in table.splitlines()[2:]]
    named = list(dict.fromkeys(
        name for cell in cells for name in re.findall(r"`\.?([a-z]\w*)(?: = [^`]*)?`", cell)))
    owners = {name: own for name, own in fields.items() if set(named) <= set(own)}
    ordered = [[field for field in own if field in named] for own in owners.values()]
    assert len(named) < 2 or not owners or named in ordered, (
        f"{document.relative_to(ROOT)}: a table has {named}, in another order than "
        f"{' and '.join(owners)}, which has {ordered[0]}")


# Versions are written once; what must repeat one says the same.
project = (ROOT / "pyproject.toml").read_text()
first, end = re.search(r'"torch>=2\.(\d+),<2\.(\d+)"', project).groups()
releases = re.search(r"^torch = \[(.+)\]$", project, re.M)[1]
minors = [int(minor) for minor in re.findall(r'"2\.(\d+)\.\d+"', releases)]
assert minors == list(range(int(first), int(end))), (
    f"pyproject.toml depends on torch 2.{first} to before 2.{end}, but lists {releases}")
ours = re.search(r"cpp\.([\d.]+)", (ROOT / "python/accelerate/__init__.py").read_text())[1]
spelled = subprocess.run(
    ["git", "grep", "-lE", rf"VERSION {ours}|\+cpp\.{ours}", "--", ":!CHANGELOG.md"],
    cwd=ROOT, capture_output=True, text=True).stdout.split()
assert spelled in ([], ["python/accelerate/__init__.py"]), (
    f"{spelled} spell the version; python/accelerate/__init__.py is the place for it")


def anchors(document):
    """Those that GitHub makes of headings."""
    text = re.sub(r"^```.*?^```$", "", document.read_text(), flags=re.S | re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
            for heading in re.findall(r"^#+ (.+)$", text, re.M)}


documents = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md",
             *sorted((ROOT / "docs").glob("*.md"))]
for document in documents:
    for table in re.findall(r"(?:^\|.*\n)+", document.read_text(), re.M):
        check_order(document, table)
    for link, anchor in re.findall(r"\]\(([^)#\s]*)#?([^)\s]*)\)", document.read_text()):
        if "://" not in link:
            target = document.parent / link if link else document
            assert target.exists() and (not anchor or anchor in anchors(target)), (
                f"{document.relative_to(ROOT)} links to {link}#{anchor}, which does not exist")
    for named_range in re.findall(r"torch\s+(2\.\d+ to 2\.\d+)", document.read_text()):
        assert named_range == f"2.{first} to 2.{minors[-1]}", (
            f"{document.relative_to(ROOT)} says torch {named_range}, pyproject.toml another range")
    for path in re.findall(PATH, document.read_text()):
        assert any(ROOT.glob(path)), (
            f"{document.relative_to(ROOT)} names {path}, which is not there")
    if document.parent.name == "docs":
        others = "".join(other.read_text() for other in documents if other != document)
        assert document.name in others, f"no document names {document.relative_to(ROOT)}"
print(f"{len(public)} headers and {len(documents)} documents are in step")
