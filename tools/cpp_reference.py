# SPDX-License-Identifier: Apache-2.0
"""Writes a page of the C++ reference from a public header: its comments, and the declarations that
they describe.

    python3 tools/cpp_reference.py include/accelerate/metrics.h

It reads what clang-format writes and what CONTRIBUTING.md asks of headers, not C++ in general.
docs/decisions/the-cpp-reference-has-its-own-generator.md says why.
"""
import pathlib
import re
import sys
from dataclasses import dataclass, field

# A string or character, which may hold braces.
LITERAL = re.compile(r'"(?:\\.|[^"\\])*"|(?<![0-9a-fA-F])\'(?:\\.|[^\'\\])+\'')
OPENS, CLOSES = "([{", ")]}"
SCOPE = re.compile(r"(?:template <.*> )?(?:requires .* )?(class|struct|enum|namespace|union|extern)\b", re.S)


@dataclass
class Entry:
    """Declarations that one comment describes."""
    comment: list[str]
    declarations: list[str]
    members: list = field(default_factory=list)
    # The title of a group of members: // --- state ---
    section: str = ""


class Reader:
    def __init__(self, text):
        self.lines = text.splitlines()
        self.at = 0

    def declaration(self):
        """The text up to `;` or to the brace that opens a body, and which of both it was."""
        text, depth, start = "", 0, self.at
        while self.at < len(self.lines):
            line = self.lines[self.at].split("//")[0] if '"' not in self.lines[self.at] else self.lines[self.at]
            literals = [match.span() for match in LITERAL.finditer(line)]
            column = 0
            while column < len(line):
                span = next((span for span in literals if span[0] == column), None)
                if span:
                    text += line[span[0]:span[1]]
                    column = span[1]
                    continue
                char = line[column]
                if char == "{" and depth == 0 and not self._is_value(text):
                    self.lines[self.at] = line[column:]
                    return text.lstrip("\n").rstrip(), "{"
                depth += (char in OPENS) - (char in CLOSES)
                if char == ";" and depth == 0:
                    self.lines[self.at] = line[column + 1:]
                    if not self.lines[self.at].strip():
                        self.at += 1
                    return text.lstrip("\n").rstrip(), ";"
                text += char
                column += 1
            text += "\n"
            self.at += 1
        raise ValueError(f"line {start + 1}: a declaration does not end")

    @staticmethod
    def _is_value(text):
        """Whether a brace after this begins a value, not a body."""
        if SCOPE.match(text.lstrip()) and "=" not in text:
            return False
        bare = re.sub(r"operator\W+", "operator", text)
        return bool(re.search(r"(?<![=!<>])=(?!=)", Reader._top(bare))
                    or re.search(r"\brequires(?:\s*\([^()]*\))?\s*$", bare)
                    or re.search(r"\)\s*(?:noexcept\s*)?:\s.*\w$", bare, re.S))

    @staticmethod
    def _top(text):
        """The text outside of parentheses and template arguments."""
        while (shorter := re.sub(r"\([^()]*\)|<[^<>]*>", "", text)) != text:
            text = shorter
        return text

    def skip_body(self):
        """To the end of a body whose brace is next."""
        depth = 0
        while True:
            line = LITERAL.sub(lambda match: "_" * len(match[0]), self.lines[self.at].split("//")[0])
            for column, char in enumerate(line):
                depth += (char == "{") - (char == "}")
                if depth == 0 and char == "}":
                    rest = self.lines[self.at][column + 1:].lstrip(";")
                    self.lines[self.at] = rest
                    if not rest.strip() or rest.lstrip().startswith("//"):
                        self.at += 1
                    return
            self.at += 1

    def raw_body(self):
        """The lines of a body whose brace is next, as they are."""
        first = self.at
        copies = list(self.lines)
        self.skip_body()
        last = self.at - 1 if self.at > first else first
        return copies[first:last + 1]

    def scope(self, is_public=True, in_class=False):
        """Entries up to the brace that closes this scope."""
        entries, comment, section, joins = [], [], "", False
        while self.at < len(self.lines):
            line = self.lines[self.at].strip()
            if line.startswith("///"):
                comment.append(line[3:])
                self.at += 1
            elif line.startswith("//"):
                title = re.match(r"// --- (.+?) -+$", line)
                section = title[1] if title else section
                comment, joins = [], False
                self.at += 1
            elif not line:
                comment, joins = [], False
                self.at += 1
            elif line.startswith("#"):
                while self.lines[self.at].endswith("\\"):
                    self.at += 1
                self.at += 1
            elif line.startswith("}"):
                rest = line[1:].lstrip(";").strip()
                self.lines[self.at] = rest
                if not rest or rest.startswith("//"):
                    self.at += 1
                return entries
            elif re.match(r"(?:public|protected|private):$", line):
                is_public = line == "public:"
                comment, joins = [], False
                self.at += 1
            else:
                indented, end = self.declaration()
                text = indented.strip()
                members, is_scope = [], False
                if end == "{":
                    kind = SCOPE.match(text)
                    is_scope = bool(kind)
                    if kind and kind[1] in ("namespace", "extern"):
                        inner = self._open(lambda: self.scope())
                        if not re.search(r"namespace (?:\w+::)*detail$|namespace$", text):
                            prefix = text.removeprefix("namespace ").strip()
                            for entry in inner:
                                entries.append(entry)
                                entry.namespace = "::".join(
                                    filter(None, (prefix, getattr(entry, "namespace", ""))))
                        comment, joins = [], False
                        continue
                    if kind and kind[1] == "enum":
                        indented += " " + "\n".join(self.raw_body())
                    elif kind:
                        members = self._open(
                            lambda: self.scope(is_public=kind[1] == "struct", in_class=True))
                    else:
                        self.skip_body()
                hidden = not is_public or re.match(r"friend\b|static_assert|ACCELERATE_\w+\(", text)
                # What is declared first and described later.
                hidden = hidden or (end == ";" and re.match(r"(?:class|struct) \w+$", text))
                if not hidden:
                    declaration = signature(indented)
                    is_overload = joins and name_of(declaration) == name_of(entries[-1].declarations[-1])
                    if joins and not comment and not is_scope and (is_overload or not entries[-1].comment):
                        entries[-1].declarations.append(declaration)
                    else:
                        entries.append(Entry(comment, [declaration], members, section))
                        joins = not is_scope
                comment = []
        return entries

    def _open(self, read):
        """Reads a scope whose brace is next."""
        line = self.lines[self.at].lstrip()
        assert line.startswith("{"), line
        self.lines[self.at] = line[1:]
        if not self.lines[self.at].strip():
            self.at += 1
        return read()


def signature(text):
    """A declaration without its marks and its initialisers of members."""
    text = re.sub(r"ACCELERATE_API\s+|\[\[nodiscard\]\]\s+", "", text)
    if not SCOPE.match(text.lstrip()):
        text = re.sub(r"(\))((?:\s*(?:const|noexcept))*)\s*:\s(?!:).*", r"\1\2", text, flags=re.S)
    base = len(text) - len(text.lstrip())
    return "\n".join(line[base:] if not line[:base].strip() else line for line in text.rstrip().splitlines())


def name_of(declaration):
    if match := re.search(r"\boperator\s*(\(\)|[^\s(]+)", declaration):
        return "operator" + match[1]
    text = Reader._top(declaration)
    if match := re.match(
            r"(?:template\s*)?(?:requires[^;]*?\s)?(?:class|struct|enum class|enum|union|using|concept) (\w+)", text):
        return match[1]
    text = re.split(r"(?<![=!<>])=|\{|\brequires\b(?=[^;]*$)(?<!^requires)", text)[0]
    text = re.sub(r"(?:\s|\b(?:const|override|final|noexcept)\b)+$", "", text)
    return re.search(r"(~?\w+)(?:\[.*\])?$", text)[1]


def prose(comment):
    """The lines of a comment as Markdown: examples, which have five spaces, become code."""
    out, in_code = [], False
    for line in comment:
        is_code = line.startswith("     ")
        if in_code and not is_code and line.strip():
            while not out[-1].strip():
                out.pop()
            out += ["```", ""]
            in_code = False
        if is_code and not in_code:
            out += ["", "```cpp"]
            in_code = True
        out.append(line[5:] if in_code else re.sub(r"<(?=\w)", "\\\\<", line.removeprefix(" "))
                   if "`" not in line else line.removeprefix(" "))
    if in_code:
        out.append("```")
    return "\n".join(out).strip()


def heading(declarations):
    names = list(dict.fromkeys(map(name_of, declarations)))
    kind = re.search(r"\b(class|struct|enum|concept)\b", Reader._top(declarations[0].split("{")[0]))
    names = [name.replace("*", "\\*") for name in names]
    if len(names) > 4:
        names[3:] = ["..."]
    return (f"{kind[1]} " if kind else "") + ", ".join(names)


class Anchors:
    """Unique within a page: declarations of one name are counted from 2."""

    def __init__(self):
        self.counts = {}

    def __call__(self, *names):
        name = "-".join(re.sub(r"\W+", "_", name).strip("_") for name in names)
        self.counts[name] = count = self.counts.get(name, 0) + 1
        return name if count == 1 else f"{name}-{count}"


def written(entries, level, anchor, outer=()):
    parts, section = [], ""
    for entry in entries:
        if entry.section != section:
            section = entry.section
            parts.append(f"**{section[0].upper()}{section[1:]}**")
        names = [*outer, name_of(entry.declarations[0])]
        parts.append(f"{'#' * level} {heading(entry.declarations)} {{ #{anchor(*names)} }}")
        code = "\n".join(entry.declarations)
        is_class = bool(entry.members) or re.match(r"(?:template.*\n)?\s*(?:class|struct) ", code)
        parts.append(f"```cpp\n{code}\n```")
        if text := prose(entry.comment):
            parts.append(text)
        if is_class:
            parts.append(written(entry.members, level + 1, anchor, names))
    return "\n\n".join(filter(None, parts))


def introduction(text):
    """The comment at the top of a header, below its licence."""
    lines = []
    for line in text.splitlines()[1:]:
        if not line.startswith("//"):
            break
        lines.append(line[2:])
    return lines


def entries_of(text):
    body = text.split("#pragma once", 1)[1]
    return Reader(body).scope()


def page(header, text):
    """The Markdown page of a header, such as `metrics.h`, with this text."""
    entries = entries_of(text)
    namespaces = sorted({getattr(entry, "namespace", "") for entry in entries} - {""})
    anchor = Anchors()
    parts = [f"# {header}", prose(introduction(text)), f"```cpp\n#include <accelerate/{header}>\n```"]
    if namespaces:
        named = ", ".join(f"`{name}`" for name in namespaces)
        parts.append(f"Namespace{'s' * (len(namespaces) > 1)}: {named}.")
    for namespace in namespaces or [""]:
        inside = [entry for entry in entries if getattr(entry, "namespace", "") == namespace]
        if len(namespaces) > 1:
            parts.append(f"## Namespace {namespace} {{ #{anchor(namespace)} }}")
        parts.append(written(inside, 2 + (len(namespaces) > 1), anchor))
    return "\n\n".join(filter(None, parts)) + "\n"


if __name__ == "__main__":
    path = pathlib.Path(sys.argv[1])
    print(page(path.as_posix().split("accelerate/", 1)[1], path.read_text()), end="")
