# SPDX-License-Identifier: Apache-2.0
"""The documentation site is built without a warning, its links lead somewhere, it loads nothing from
other servers, and its references contain the public names.

MkDocs checks the links of Markdown; this test also checks those of what it has written.
"""
import html
import os
import pathlib
import posixpath
import re
import subprocess
import sys
import tempfile
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import cpp_reference

HEADER = '''// SPDX-License-Identifier: Apache-2.0
// Counts things.
//
//     Counter counter;
#pragma once
#include <vector>
namespace outer {
class Later;
/// Adds numbers.
///
///     outer::sum({1, 2});
int sum(const std::vector<int>& values = {}, int first = 0);
namespace detail {
int hidden();
}
/// Counts. Has braces: `{`.
class ACCELERATE_API Counter : public Base {
 public:
  /// From `start`.
  explicit Counter(int start) : count_{start}, limit_(2) {
    if (start) {
      fail("}");
    }
  }
  // --- reading ---
  /// The count.
  int count() const { return count_; }
  bool is_empty() const;
  bool operator==(const Counter&) const = default;

 protected:
  int secret();

 private:
  int count_ = 0;
};
/// Kinds.
enum class Kind : int { kOne, kTwo };
template <class T>
concept Small = requires(T x) {
  x.size();
};
} // namespace outer
'''
# By hand, from the header above.
HEADINGS = [
    "# counter.h", "## sum { #sum }", "## class Counter { #Counter }", "### Counter { #Counter-Counter }",
    "### count { #Counter-count }", "### is_empty, operator== { #Counter-is_empty }",
    "## enum Kind { #Kind }", "## concept Small { #Small }"]


class Page:
    """What a page links to, loads and can be linked at."""
    TAG = re.compile(r"<(a|link|script|img|iframe|source)\b([^>]*)>")
    ATTRIBUTE = re.compile(r'\b(href|src|rel)="([^"]*)"')

    def __init__(self, text):
        self.links, self.loaded = set(), set()
        self.ids = set(re.findall(r'\bid="([^"]*)"', text))
        for tag, rest in self.TAG.findall(text):
            attributes = dict(self.ATTRIBUTE.findall(rest))
            if tag == "a":
                self.links.add(html.unescape(attributes.get("href", "#__top")))
            elif link := attributes.get("href") or attributes.get("src"):
                self.loaded.add(html.unescape(link))


def check_generator():
    written = cpp_reference.page("counter.h", HEADER)
    headings = [line for line in written.splitlines() if re.match(r"#+ ", line)]
    assert headings == HEADINGS, f"{headings}\nis not\n{HEADINGS}"
    for text in ("explicit Counter(int start)\n```", "```cpp\nouter::sum({1, 2});\n```", "**Reading**",
                 "int count() const\n", "enum class Kind : int { kOne, kTwo }"):
        assert text in written, f"{text!r} is not in\n{written}"
    for text in ("hidden", "secret", "count_", "fail", "ACCELERATE_API", "Later"):
        assert text not in written, f"{text!r} is in\n{written}"


def check_links(site):
    pages = {path.relative_to(site).as_posix(): Page(path.read_text()) for path in site.rglob("*.html")}
    files = {path.relative_to(site).as_posix() for path in site.rglob("*") if path.is_file()}
    broken = []
    for name, page in pages.items():
        if name == "404.html":  # Its links are those of a server's root.
            continue
        for link in page.loaded | page.links:
            parts = urllib.parse.urlsplit(link)
            if parts.scheme or parts.netloc:
                assert link not in page.loaded, f"{name} loads {link} from another server"
                continue
            path = urllib.parse.unquote(parts.path)
            target = posixpath.normpath(posixpath.join(posixpath.dirname(name), path)) if path else name
            anchor = urllib.parse.unquote(parts.fragment)
            if target not in files:
                broken.append(f"{name} links to {link}, which is not in the site")
            elif anchor and target in pages and anchor not in pages[target].ids | {"__top"}:
                broken.append(f"{name} links to {link}, which has no such heading")
    assert not broken, "\n".join(broken)
    return pages


def check_references(pages):
    for header in (ROOT / "include/accelerate").rglob("*.h"):
        name = header.relative_to(ROOT / "include/accelerate").as_posix()
        if "detail" in name:
            continue
        ids = pages[f"reference/cpp/{name}.html"].ids
        text = re.sub(r"^namespace detail \{\n.*?^\} // namespace detail$", "", header.read_text(), flags=re.S | re.M)
        exported = re.findall(r"^(?:class|struct) ACCELERATE_API (\w+)", text, re.M)
        exported += re.findall(r"^ACCELERATE_API [^;(]*?\b(\w+)\(", text, re.M)
        missing = set(exported) - ids - {"operator"}
        assert not missing, f"the page of {name} does not describe {sorted(missing)}"
    accelerator = pages["reference/python/accelerate.accelerator.html"].ids
    for method in ("prepare", "backward", "gather_for_metrics", "is_main_process", "save_state"):
        assert f"accelerate.accelerator.Accelerator.{method}" in accelerator, f"no {method} of the Accelerator"


def check_start(pages, site):
    """What a reader looks for first is one click away."""
    links = {urllib.parse.urlsplit(link).path for link in pages["index.html"].links}
    wanted = {"start.html", "tutorial.html", "troubleshooting.html", "coming_from_huggingface.html",
              "coming_from_ddp.html", "coming_from_libtorch.html", "coming_from_lightning.html", "architecture.html",
              "reference/python/index.html", "reference/cpp/index.html", "guide_training_step.html"}
    assert wanted <= links, f"the start page does not link to {sorted(wanted - links)}"
    for page, titles in (("tutorial", ("Python", "C++")), ("start", ("Python", "C++", "Notebook"))):
        text = (site / f"{page}.html").read_text()
        labels = re.findall(r'<label for="__tabbed_\d+_\d+">(.*?)</label>', text)
        assert set(labels) == set(titles), f"{page} has the tabs {labels}"
        assert "<!-- tab:" not in text, f"{page} has tabs that were not written"


check_generator()
python = os.environ.get("ACCELERATE_TEST_DOCS_PYTHON")
if not python:
    print("skipped: ACCELERATE_TEST_DOCS_PYTHON is not set; ./dev test sets it")
    sys.exit(77)
with tempfile.TemporaryDirectory() as folder:
    site = pathlib.Path(folder).resolve()
    # Not --quiet: it would hide warnings from --strict.
    answer = subprocess.run(
        [python, "-m", "mkdocs", "build", "--strict", "--site-dir", folder], capture_output=True, text=True)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    pages = check_links(site)
    check_references(pages)
    check_start(pages, site)
    index = (site / "search/search_index.js").read_text()
    assert "gather_for_metrics" in index and "PackedAttentionOptions" in index, "search finds no names"
print(f"the site has {len(pages)} pages")
