# SPDX-License-Identifier: Apache-2.0
"""Documents hold what the tree holds: layers, headers, links."""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
# Of this tree; one with NAME in it is the reader's to fill in.
PATH = r"`((?:benchmarks|cmake|docs|examples|include|python|src|tests|tools)/(?!\S*NAME)[^\s`]+)`"

picture = subprocess.run(
    [sys.executable, "tools/check_layers.py", "--picture"],
    cwd=ROOT, check=True, capture_output=True, text=True).stdout
assert f"```\n{picture}```\n" in (ROOT / "docs/architecture.md").read_text(), (
    "docs/architecture.md shows other layers than tools/layers.txt has; put there:\n" + picture)

names = subprocess.run(
    [sys.executable, "tools/coming_from_accelerate.py"],
    cwd=ROOT, check=True, capture_output=True, text=True).stdout
assert names == (ROOT / "docs/coming_from_accelerate.md").read_text(), (
    "docs/coming_from_accelerate.md is not what python/differences.txt says; run: "
    "python3 tools/coming_from_accelerate.py > docs/coming_from_accelerate.md")

guide = README.split("## Guide to the headers")[1].split("\n## ")[0]
named = set(re.findall(r"`(\w+\.h)`", guide))
public = {path.name for path in (ROOT / "include/accelerate").glob("*.h")} | {"version.h"}
assert not public - named, f"README.md's guide does not name {sorted(public - named)}"
assert not named - public, f"README.md's guide names {sorted(named - public)}, which is not there"

documents = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
for document in documents:
    for link in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", document.read_text()):
        if "://" not in link:
            assert (document.parent / link).exists(), (
                f"{document.relative_to(ROOT)} links to {link}, which is not there")
    for path in re.findall(PATH, document.read_text()):
        assert any(ROOT.glob(path)), (
            f"{document.relative_to(ROOT)} names {path}, which is not there")
    if document.parent.name == "docs":
        others = "".join(other.read_text() for other in documents if other != document)
        assert document.name in others, f"no document names {document.relative_to(ROOT)}"
print(f"{len(public)} headers and {len(documents)} documents are in step")
