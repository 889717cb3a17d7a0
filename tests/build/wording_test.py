# SPDX-License-Identifier: Apache-2.0
"""What people read is free of the worst idioms; docs/glossary.md says what to write instead.

Checks documents without their code, string literals of sources, comments and docstrings, and names
of tests.
`--draw N SEED` prints N random sentences of at least eight words, for an editor to grade.
"""
import ast
import io
import pathlib
import random
import re
import sys
import tempfile
import tokenize

ROOT = pathlib.Path(__file__).resolve().parents[2]
COVERED = ["README.md", "CONTRIBUTING.md", "SECURITY.md", "docs", "src", "cli", "python/src", "python/accelerate"]
# Sources whose comments are checked.
COMMENTED = ["include", "src", "cli", "examples", "python", "tests", "tools", "benchmarks", "cmake",
             "CMakeLists.txt"]
# Folders with tests, whose names are checked like comments.
NAMED = ["tests", "python/tests"]
# They quote the idioms.
EXEMPT = {"docs/glossary.md", "tests/build/wording_test.py"}
SUFFIXES = {".md", ".py", ".h", ".cpp", ".cu", ".cuh", ".html", ".js"}
# An idiom, and what to write instead. A space stands for any white space.
IDIOMS = [
    (r"where (?:there (?:is|are) (?:none|no\b|nothing)|none is\b|nobody)", "if there is no X"),
    (r"\bof (?:the )?(?:user|program)'s(?: own)?\b(?! \w)", "user code, your own X"),
    (r"\b(?:is|are|was|were) told\b", "reads, receives, raises"),
    (r"\b(?:go|goes|going|went|gone) on (?:with|from|where|without)\b", "resume, continue"),
    (r"\b(?:training|run|job|loop|program) (?:goes|went) on\b", "continues"),
    (r"\bso many (?:\w+)", "N, at least N, up to N"),
    (r"\b(?:is|are) no (?:\w+ )?\w+ (?:that|of|which|and)\b", "is not a X"),
    (r"(?<!there\s)\bis no (?:file|folder|number|tensor|multiple|run|name|option|list)\b", "is not a X"),
    (r"\bst(?:and|ands|ood) still\b", "hangs, is stuck"),
    (r"\bstands? (?:below|above|beside|behind|before|after|in(?! for)|inside|around|there|for itself)\b",
     "is, appears, comes"),
    (r", which there (?:is|are) not\b", "unknown X; expected one of: ..."),
    (r"\] (?-i:got)\b", "[where] NAME is VALUE, expected ..."),
    (r"\bgot [^.;]{25,}?, (?:where|expected) ", "what went wrong, with the values. What to do"),
    (r"\bwhere [^.;,]{3,60} was expected\b", "expected X"),
    (r"\bthe states? of (?:the )?optimizers?\b", "optimizer state"),
    (r"\b(?:is|are|be|expected|an?) (?:a )?(?:texts|switch(?:es)?)\b", "strings, booleans"),
    (r"\b(?:is|was|not|expected) a text\b", "a string"),
    (r"\brefused by\b", "not supported"),
    (r"\b\d[\d,.]* ?[kKMG]? numbers\b", "parameters, elements"),
    (r"\b(?:modules?|models?|parameters?|tensors?) (?:of|with|has|have) (?:\w+ ){0,2}numbers\b",
     "parameters, elements"),
    (r"\b(?:gradients?|parameters?|tensors?|weights?|memory|they|it|files?) (?:\w+ )?lies? in\b",
     "is in, are stored in"),
    (r"\blies? (?:beside|below|above|behind|there)\b", "is, are"),
    (r"\b(?:as|like) 0,1\b", "e.g. 0,1"),
    (r"\b(?:gradients|ranks|processes|hosts|machines) (?:that )?(?:do not |did not )?me[e]?t\b",
     "are synchronised, connect"),
    (r"\b(?:ends?|ended) in (?:an? |the )?`?\w*Error", "raises, fails with"),
    (r"\bthe others brought\b", "was called with ... on rank 1 but ... on rank 0"),
    (r"\bthere is no \w+(?: \w+)? here\b", "X is not supported"),
    (r"\bthe (?:user|program)'s own$", "your own code"),
    (r"\bhas (?:the|its) word\b", "decides, takes precedence"),
    (r"\b(?:is|are) the nearest\b", "use X"),
    (r"\bof its own accord\b", "by itself"),
    (r"\bnobody (?:says|keeps|has)\b", "say what is missing"),
    (r", also (?:if|when|with|without|in|for|on|after|during|while)\b", "even if, including"),
    (r"\b(?:something|objects?|values?) else than\b|\bother \w+ than (?!one\b)", "X other than Y"),
    (r"\bwhoever\b", "a process that, the program that"),
    (r", at most \w+ (?:are )?(?:allowed|used)\b", "but at most N are allowed"),
    (r"\bsaved (?:from|with) another\b", "saved from a different X"),
]
# Only in comments and docstrings: some of these are fine in a message or a document.
COMMENT_IDIOMS = [
    (r"\bthrows `?\w+`? (?:\w+ ){0,3}where\b", "throws X if ..."),
    (r"\b(?:goes|going|gone|go) on\b", "resume, continue"),
    (r"\b(?:as long as|while) (?:it|one of these) lives\b", "during its lifetime"),
    (r"\bhand(?:s|ed)? (?:it |them )?(?:out|over)\b", "returns, passes"),
    (r"\b(?:gives?|given) (?:it |them )?back\b", "returns, releases"),
    (r"\b(?:step|backward|forward|part|loop|micro-batch|operation|block) under way\b", "current X"),
    (r"\bone behind the other\b", "concatenated, consecutive"),
    (r"\bin the place of\b", "instead of"),
    (r"\bmasters\b", "master weights"),
    (r"\bseams?\b", "callbacks"),
    (r"\b(?:added|adds?) up gradients\b", "accumulates gradients"),
    (r"\bleft to itself\b", "what happens instead"),
    (r"\bneighbours\b", "consecutive, adjacent"),
    (r"\bfor ever\b", "forever"),
    (r"\beverybody's\b", "of all ranks"),
    (r"\ba (?:user|program|library)'s own \w+\b", "a custom X"),
    (r"\bof (?:one's|your|yours) own\b", "a custom X"),
    (r"\bso many (?:\w+)", "N, this many X"),
    (r"\bwindows? (?:of micro-batches|under way|that)\b", "accumulation, update"),
    (r"\bwhoever (?:asks|reads|wants|looks|comes|brings)\b", "name who does it"),
    (r"\bmeet(?:s|ing)? (?:those|the gradients) of\b", "are synchronised with"),
    (r"(?<!there\s)\bis none of\b", "is not one of"),
    (r"\bdata sets?\b", "dataset"),
    (r"\bfill(?:s|ed|ing)? (?:\w+ ){0,3}up\b", "pad, complete"),
    (r"\blike `+, for\b", "Like X, but for ..."),
    (r"\breplac(?:e|es|ed|ing) [^.;,]{1,60} by\b", "replace X with Y"),
]
# Only in names of tests.
NAME_IDIOMS = [
    (r"\b(?:nobody|everybody|whoever)\b", "name who it is"),
    (r"\bmeets?\b", "are synchronised, connect"),
    (r"\bwindows?\b", "accumulation, update"),
    (r"\blent\b", "name what it is"),
    (r"\btold\b", "by default, raises, reads"),
    (r"\b(?:is|are) said\b", "raises, warns, is reported"),
    (r"\bbeside\b", "next to, during, together with"),
    (r"\bstands? for\b", "is, are"),
]


def rules_of(idioms):
    return [(re.compile(pattern.replace(" ", r"\s+"), re.I), advice) for pattern, advice in idioms]


RULES = rules_of(IDIOMS)
COMMENT_RULES = RULES + rules_of(COMMENT_IDIOMS)
NAME_RULES = COMMENT_RULES + rules_of(NAME_IDIOMS)

CPP_TOKEN = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"(?P<tag>\w*)\((?P<raw>.*?)\)(?P=tag)"'
    r'|"(?P<text>(?:\\.|[^"\\\n])*)"|\'(?:\\.|[^\'\\])+\'|(?P<code>[^\s"\'/])|/',
    re.S)


def cpp_strings(source):
    """Yields (offset, text); adjacent literals are one text."""
    start, pieces = 0, []
    for match in CPP_TOKEN.finditer(source):
        text = match["raw"] if match["raw"] is not None else match["text"]
        if text is not None:
            start = start if pieces else match.start()
            pieces.append(text.replace("\\n", "\n").replace('\\"', '"'))
        elif match["code"] and pieces:
            yield start, "".join(pieces)
            pieces = []
    if pieces:
        yield start, "".join(pieces)


def python_strings(source):
    """Yields (line, text); values inside of an f-string count as one word."""
    tree = ast.parse(source)
    skipped = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            skipped.add(node.value)  # A docstring.
        elif isinstance(node, ast.JoinedStr):
            skipped.update(node.values)
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield node.lineno, "".join(
                str(value.value) if isinstance(value, ast.Constant) else "X"
                for value in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if node not in skipped:
                yield node.lineno, node.value


def cpp_comments(source):
    """Yields (offset, text); consecutive comments are one text."""
    start, end, lines = 0, 0, []
    for match in CPP_TOKEN.finditer(source):
        if not match[0].startswith(("//", "/*")):
            continue
        if lines and source[end:match.start()].strip(" ") != "\n":
            yield start, "\n".join(lines)
            lines = []
        start = start if lines else match.start()
        end = match.end()
        lines.append(match[0].strip("/*"))
    if lines:
        yield start, "\n".join(lines)


def python_comments(source):
    """Yields (line, text) of docstrings and of runs of comments."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            text = ast.get_docstring(node)
            if text:
                yield node.body[0].lineno, text
    start, lines = 0, []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        if lines and token.start[0] != start + len(lines):
            yield start, "\n".join(lines)
            lines = []
        start = start if lines else token.start[0]
        lines.append(token.string.lstrip("#"))
    if lines:
        yield start, "\n".join(lines)


def cmake_comments(source):
    """Yields (line, text) of runs of lines that are comments."""
    for match in re.finditer(r"(?:^ *#.*\n)+", source, re.M):
        yield source.count("\n", 0, match.start()) + 1, re.sub(r"^ *#", "", match[0], flags=re.M)


def names_of_tests(path):
    """Yields (line, text) of the tests that a file defines, as words."""
    source = path.read_text()
    if path.suffix == ".py":
        for match in re.finditer(r"^ *def (test_\w+)", source, re.M):
            yield source.count("\n", 0, match.start()) + 1, match[1].replace("_", " ")
    else:
        for match in re.finditer(r"\bTEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)\)", source):
            words = re.findall(r"[A-Z]+(?![a-z])|[A-Z][a-z0-9]*|[a-z0-9]+", f"{match[1]} {match[2]}")
            yield source.count("\n", 0, match.start()) + 1, " ".join(words)


def comments(path):
    """Yields (line, text) of the comments and docstrings of a source, without quoted code."""
    source = path.read_text()
    if path.suffix in (".py", ".pyi"):
        found = python_comments(source)
    elif path.suffix in (".txt", ".cmake"):
        found = cmake_comments(source)
    else:
        found = ((source.count("\n", 0, offset) + 1, text) for offset, text in cpp_comments(source))
    for line, text in found:
        yield line, re.sub(r"`[^`\n]+`|\"[^\"\n]+\"", blank, text)


def blank(match):
    return re.sub(r"[^\n]", "`", match[0])


def texts(path):
    """Yields (line, text) of what a user may read of a file."""
    source = path.read_text()
    if path.suffix == ".md":
        source = re.sub(r"^```.*?^```$", blank, source, flags=re.S | re.M)
        source = re.sub(r"`[^`\n]+`", blank, source)
        yield 1, source
    elif path.suffix == ".py":
        yield from python_strings(source)
    elif path.suffix in (".html", ".js"):
        yield 1, re.sub(r"//[^\n]*|/\*.*?\*/|<!--.*?-->", blank, source, flags=re.S)
    else:
        for offset, text in cpp_strings(source):
            yield source.count("\n", 0, offset) + 1, text


def findings(root, places, skipped, read=texts, suffixes=SUFFIXES, rules=RULES):
    for place in places:
        base = root / place
        for path in sorted(base.rglob("*")) if base.is_dir() else [base]:
            name = str(path.relative_to(root))
            if path.suffix not in suffixes or name in skipped:
                continue
            for line, text in read(path):
                for pattern, advice in rules:
                    for match in pattern.finditer(text):
                        words = " ".join(match[0].split())
                        # Exact in documents; a literal is named by its first line.
                        is_exact = read is comments or path.suffix in (".md", ".html", ".js")
                        at = line + text.count("\n", 0, match.start()) * is_exact
                        yield f"{name}:{at}: '{words}'; write: {advice}"


def cpp_messages(source):
    """Yields (0, text): the literals of a statement, with a value between them as `X`."""
    pieces, code = [], ""
    for match in CPP_TOKEN.finditer(source):
        text = match["raw"] if match["raw"] is not None else match["text"]
        if text is None:
            code += match["code"] or ""
            continue
        if pieces and code and (code == "," or re.search("[;{}]", code)):
            yield 0, "".join(pieces)
            pieces = []
        pieces += ["X"] * bool(pieces and code) + [text.replace("\\n", "\n").replace('\\"', '"')]
        code = ""
    yield 0, "".join(pieces)


def draw(number, seed):
    """Prints sentences at random, as many of documents as of messages."""
    kinds = {True: set(), False: set()}
    for place in COVERED:
        base = ROOT / place
        for path in sorted(base.rglob("*")) if base.is_dir() else [base]:
            if path.suffix not in {".md", ".py", ".h", ".cpp"} or str(path.relative_to(ROOT)) in EXEMPT:
                continue
            is_document = path.suffix == ".md"
            source = path.read_text()
            for _, text in ([(0, source)] if is_document else
                            python_strings(source) if path.suffix == ".py" else
                            cpp_messages(source)):
                if is_document:
                    text = re.sub(r"^```.*?^```$|^\|.*?$|^#.*?$", "\n\n", text, flags=re.S | re.M)
                for block in re.split(r"\n\s*\n|\n(?=\s*[-*] |\d+\. )", text):
                    for sentence in re.split(r"(?<=[.!?])\s+(?=[A-Z`'\"])", " ".join(block.split())):
                        words = re.findall(r"\b[a-z]{2,}\b", sentence)
                        if len(sentence.split()) >= 8 and len(words) >= 6:
                            kinds[is_document].add((sentence, str(path.relative_to(ROOT))))
    generator = random.Random(seed)
    for is_document, sentences in kinds.items():
        for sentence, name in generator.sample(sorted(sentences), number // 2):
            print(f"[{name}] {sentence}")


def commented(root, places, skipped):
    suffixes = {".h", ".cpp", ".cu", ".cuh", ".py", ".pyi", ".txt", ".cmake"}
    return findings(root, places, skipped, comments, suffixes, COMMENT_RULES)


def named(root, places, skipped):
    return findings(root, places, skipped, names_of_tests, {".cpp", ".py"}, NAME_RULES)


def planted(name, text, find=findings):
    """What is found in a tree of one file."""
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / name).write_text(text)
        return list(find(pathlib.Path(folder), [name], set()))


for name, text in [
    ("a.md", "Uses the last one where there\nis none."),
    ("a.cpp", 'fail("there is an option", "where there "\n     "is none");'),
    ("a.cpp", 'const char* help = "Wrap modules of so many numbers";'),
    ("a.py", 'print(f"got {x}, which there is not")'),
]:
    assert planted(name, text), f"{text!r} was not found"
for name, text in [
    ("a.md", "`where there is none`\n```\nstands still\n```\n"),
    ("a.cpp", "// Where there is none.\nint x = '\"'; /* stands still */"),
    ("a.py", '"""Is told so."""\nx = 1  # stands still'),
    ("a.md", "There are no files. It stands for bf16. That is no longer so."),
]:
    assert not planted(name, text), planted(name, text)
for name, text in [
    ("a.h", "/// Throws `UsageError` where there\n/// is none."),
    ("a.cpp", "int x; // goes\nint y; // on\n  // The step under way\n  // ends."),
    ("a.py", '"""Keeps what\nso many ranks have."""'),
    ("a.py", "# As long as\n# it lives.\n"),
    ("a.h", "/// Like `x`,\n/// for a data set."),
    ("a.cmake", "# The step\n# under way.\n"),
]:
    assert planted(name, text, commented), f"{text!r} was not found"
for name, text in [
    ("a.cpp", "TEST_F(\n    Run, GoesOnWithoutARank) {"),
    ("a.py", "def test_gradients_meet_again():\n    pass"),
]:
    assert planted(name, text, named), f"{text!r} was not found"
for name, text in [
    ("a.h", 'const char* x = "// stands still"; // `where there is none`'),
    ("a.py", 'x = "goes on"  # Continues.'),
]:
    assert not planted(name, text, commented), planted(name, text, commented)

if sys.argv[1:2] == ["--draw"]:
    draw(int(sys.argv[2]), int(sys.argv[3]))
    sys.exit()
found = [*findings(ROOT, COVERED, EXEMPT), *commented(ROOT, COMMENTED, EXEMPT),
         *named(ROOT, NAMED, EXEMPT)]
print("\n".join(found))
if found:
    sys.exit(f"{len(found)} idioms; docs/glossary.md says what to write instead")
print(f"no idiom in {', '.join(COVERED)}, nor in the comments of {', '.join(COMMENTED)}, "
      f"nor in the names of tests in {', '.join(NAMED)}")
