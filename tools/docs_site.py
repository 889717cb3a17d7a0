# SPDX-License-Identifier: Apache-2.0
"""A hook of MkDocs: adds the pages that are not in docs, and writes Markdown as the site needs it.

The pages in docs are also read on GitHub. There, tabs are a section under another, so a page marks
them with comments, which GitHub does not show:

    <!-- tab: Python -->
    <!-- tab: C++ -->
    <!-- end of tabs -->
"""
import pathlib
import posixpath
import re
import sys

from mkdocs.structure.files import File, InclusionLevel

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import cpp_reference

ROOT = pathlib.Path(__file__).resolve().parents[1]
HEADERS = ROOT / "include/accelerate"
PACKAGE = ROOT / "python/accelerate"
# What else is a page: its path in the tree, and in the site.
OTHERS = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security_policy.md",
    "tests/fuzz/README.md": "fuzz_tests.md",
}
LANGUAGES = {".sbatch": "sh", ".cpp": "cpp", ".h": "cpp", ".py": "py", ".yaml": "yaml", ".txt": "cmake", ".sh": "sh",
             ".ipynb": "json"}
# The first lines of the start page: what a reader may look for.
CARDS = """
<div class="cards" markdown>

- [**Start in five minutes**](start.md) in Python, C++ or a notebook
- [**Tutorial**](tutorial.md) in both languages: fine-tune BERT
- [**Coming from** Accelerate](coming_from_huggingface.md), [DDP](coming_from_ddp.md), [LibTorch](coming_from_libtorch.md) or
  [Lightning](coming_from_lightning.md)
- **Guides**: [training step](guide_training_step.md), [data](guide_data.md), [sharding](guide_sharding.md),
  [checkpoints](guide_checkpoint.md), [launching](guide_launch.md)
- [**Troubleshooting**](troubleshooting.md) by symptom
- **Reference**: [Python](reference/python/index.md), [C++](reference/cpp/index.md), [options](options.md)
- **Contribute**: [architecture](architecture.md), [building](building.md), [adding a part](adding.md)

</div>
"""


# --- pages that are not in docs ---------------------------------------------------------------


def public_headers():
    return sorted(path.relative_to(HEADERS).as_posix() for path in HEADERS.rglob("*.h")
                  if path.parent.name != "detail")


def public_modules():
    """The modules without an underscore, and what the stubs of packages say of them."""
    modules = []
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        if parts[-1] != "__init__" and not any(part.startswith("_") for part in parts):
            if parts[1] != "commands":  # The program's, not for import.
                modules.append(".".join(parts))
    return sorted(modules)


def examples():
    return sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "examples").rglob("*")
                  if path.is_file() and path.suffix in LANGUAGES and "__pycache__" not in path.parts)


def docstring_line(module):
    text = (PACKAGE.parent / (module.replace(".", "/") + ".py")).read_text()
    match = re.search(r'^"""(.*?)(?:"""|\n\n)', text, re.S | re.M)
    return " ".join(match[1].split()) if match else ""


def header_line(header):
    lines = cpp_reference.introduction((HEADERS / header).read_text())
    return cpp_reference.prose(lines).split("\n\n")[0].replace("\n", " ")


def example_page(path):
    text = (ROOT / path).read_text().rstrip()
    code = f"````{LANGUAGES[pathlib.Path(path).suffix]}\n{text}\n````"
    return f"# {path.removeprefix('examples/')}\n\n`{path}` in the source tree.\n\n{code}\n"


def generated_pages():
    """(path in the site, Markdown)."""
    for path, page in OTHERS.items():
        yield page, (ROOT / path).read_text()
    headers, modules, programs = public_headers(), public_modules(), examples()
    for header in headers:
        yield f"reference/cpp/{header}.md", cpp_reference.page(header, (HEADERS / header).read_text())
    for module in modules:
        yield f"reference/python/{module}.md", f"# {module}\n\n::: {module}\n    options:\n      heading_level: 2\n      show_root_heading: false\n"
    for program in programs:
        yield f"{program}.md", example_page(program)
    rows = "".join(f"| [`{name}`]({name}.md) | {header_line(name)} |\n" for name in headers)
    yield "reference/cpp/index.md", (
        "# C++ reference\n\nOne page per public header, written from its comments. "
        "[Headers](../../headers.md) lists them by topic.\n\n| header | contents |\n|---|---|\n" + rows)
    rows = "".join(f"| [`{name}`]({name}.md) | {docstring_line(name)} |\n" for name in modules)
    yield "reference/python/index.md", (
        "# Python reference\n\nOne page per public module, written from its docstrings. Names are those of Hugging "
        "Face Accelerate 1.15; [this table](../../coming_from_huggingface.md) lists all of them. Import what you "
        "use most from `accelerate` and `accelerate.utils`.\n\n| module | contents |\n|---|---|\n" + rows)
    rows = "".join(f"- [{name.removeprefix('examples/')}]({name.removeprefix('examples/')}.md)\n" for name in programs)
    yield "examples/index.md", "# Examples\n\n`./dev build` builds the C++ programs.\n\n" + rows


def site_path(path):
    """The page of the site for a path of the tree; None if there is none."""
    if path in OTHERS:
        return OTHERS[path]
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if path.startswith("include/accelerate/") and path.endswith(".h"):
        return f"reference/cpp/{path.removeprefix('include/accelerate/')}.md"
    if (ROOT / path).is_dir() and path.startswith("examples"):
        return "examples/index.md"
    if path in examples():
        return f"{path}.md"
    return None


def tree_path(page):
    """The path in the tree of a page of the site, whose links are relative to it."""
    for path, other in OTHERS.items():
        if other == page:
            return path
    return f"docs/{page}"


# --- Markdown ---------------------------------------------------------------------------------


def outside_of_code(text, change):
    """Applies `change` to the parts of a text that are not fenced code."""
    parts = re.split(r"(^(?: *)(`{3,}).*?^ *\2$)", text, flags=re.S | re.M)
    return "".join(part if index % 3 == 1 else "" if index % 3 == 2 else change(part)
                   for index, part in enumerate(parts))


def with_links(text, page):
    folder = posixpath.dirname(tree_path(page))

    def changed(match):
        link, hash_, anchor = match[1].partition("#")
        if "://" in link or not link or link.startswith("mailto:"):
            return match[0]
        target = site_path(posixpath.normpath(posixpath.join(folder, link)))
        if target is None:
            raise ValueError(f"{tree_path(page)} links to {link}, which has no page in the site")
        return f"]({posixpath.relpath(target, posixpath.dirname(page) or '.')}{hash_}{anchor})"

    return outside_of_code(text, lambda part: re.sub(r"\]\(([^)\s]+)\)", changed, part))


def with_lists(text):
    """GitHub takes lists without a blank line before them, and nested ones at any depth."""
    def changed(part):
        lines = []
        for line in part.split("\n"):
            item = re.match(r"( *)(?:[-*]|\d+\.) ", line)
            if item and item[1]:
                line = " " * (4 * ((len(item[1]) + 2) // 4 or 1)) + line.lstrip()
            before = lines[-1] if lines else ""
            if item and before.strip() and not re.match(r" *(?:[-*]|\d+\.) |  +\S", before):
                lines.append("")
            lines.append(line)
        return "\n".join(lines)
    return outside_of_code(text, changed)


TABS = re.compile(r"^<!-- tab: [^\n]*? -->\n.*?^<!-- end of tabs -->$", re.S | re.M)


def with_tabs(text):
    def changed(match):
        body = match[0].removesuffix("<!-- end of tabs -->")
        tabs = re.split(r"^<!-- tab: (.*?) -->\n", body, flags=re.M)[1:]
        return "\n".join(
            f'=== "{title}"\n\n' + "".join(f"    {line}\n" if line else "\n" for line in content.strip().splitlines())
            for title, content in zip(tabs[::2], tabs[1::2]))
    return TABS.sub(changed, text)


def with_header_links(text):
    """The tables of headers.md name headers; in the site they lead to their pages."""
    headers = set(public_headers())
    return re.sub(r"`([\w/]+\.h)`",
                  lambda match: f"[`{match[1]}`](reference/cpp/{match[1]}.md)" if match[1] in headers else match[0],
                  text)


def github_anchor(heading, separator):
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


# --- what MkDocs calls ------------------------------------------------------------------------


def on_config(config):
    config.mdx_configs["toc"]["slugify"] = github_anchor
    headers = [f"reference/cpp/{name}.md" for name in public_headers()]
    modules = [f"reference/python/{name}.md" for name in public_modules()]
    programs = [f"{name}.md" for name in examples()]
    (reference,) = [group["Reference"] for group in config.nav if "Reference" in group]
    reference += [{"Python": ["reference/python/index.md", *modules]},
                  {"C++": ["reference/cpp/index.md", *headers]},
                  {"Examples": ["examples/index.md", *programs]}]
    (contributors,) = [group["Contributors"] for group in config.nav if "Contributors" in group]
    contributors.insert(0, {"Contributing": OTHERS["CONTRIBUTING.md"]})
    decisions = sorted((ROOT / "docs/decisions").glob("*.md"))
    contributors[-1] = {"Design decisions": [
        "decisions/README.md", *(f"decisions/{path.name}" for path in decisions if path.name != "README.md")]}
    contributors += [{"Fuzz tests": OTHERS["tests/fuzz/README.md"]},
                     {"Changelog": OTHERS["CHANGELOG.md"]},
                     {"Security policy": OTHERS["SECURITY.md"]}]
    return config


def on_files(files, config):
    for path, text in generated_pages():
        files.append(File.generated(config, path, content=text, inclusion=InclusionLevel.INCLUDED))
    return files


def on_page_markdown(markdown, page, config, files):
    path = page.file.src_uri
    if path.startswith(("reference/", "examples/")):
        return markdown
    if path.startswith("decisions/"):
        # Below the guides: a search for a word is rarely about why.
        page.meta["search"] = {"boost": 0.3}
    markdown = with_links(markdown, path)
    if path == "headers.md":
        markdown = with_header_links(markdown)
    if path == "index.md":
        title, first, rest = markdown.split("\n\n", 2)
        markdown = f"{title}\n\n{first}\n{CARDS}\n{rest}"
    return with_tabs(with_lists(markdown))


def on_page_content(content, page, config, files):
    """Headers and docstrings name documents by their path."""
    if not page.file.src_uri.startswith("reference/"):
        return content
    folder = posixpath.dirname(page.file.src_uri)

    def changed(match):
        target = files.get_file_from_path(match[1] + ".md")
        return f'<a href="{posixpath.relpath(target.url, folder)}">{match[0]}</a>' if target else match[0]

    return re.sub(r"\bdocs/(\w+)\.md\b", changed, content)
