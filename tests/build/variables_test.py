# SPDX-License-Identifier: Apache-2.0
"""Names of environment variables appear only in src/core/base/variables.h, and once. Python code
spells some again, but reads none that is not there.

Checks the string literals of include/, src/, cli/ and python/src: none may contain a name of that
header, or read a variable that is not in it.
"""
import pathlib
import re
import shutil
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
TABLE = "src/core/base/variables.h"
# A comment, a character, or a text, raw or not.
TOKEN = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"\((?P<raw>.*?)\)"|"(?P<text>(?:\\.|[^"\\\n])*)"|\'(?:\\.|[^\'\\])+\'',
    re.S)
NAME = re.compile(r"[A-Z][A-Z0-9]*(?:_[A-Za-z0-9]+)*")
LOOKUP = re.compile(r'\b(?:env|getenv|system_env|setenv)\s*\(\s*"')


def texts(source):
    for match in TOKEN.finditer(source):
        text = match["raw"] if match["raw"] is not None else match["text"]
        if text is not None:
            yield source.count("\n", 0, match.start()) + 1, text


PYTHON_NAME = re.compile(r"""["']((?:ACCELERATE|FSDP|PARALLELISM_CONFIG)_[A-Z0-9_]*[A-Z0-9])["']""")
# Not settings of a launch.
ONLY_PYTHON = {
    "ACCELERATE_BYPASS_DEVICE_MAP",
    "ACCELERATE_CONFIG_DS_FIELDS",
    "ACCELERATE_DEBUG_RDV_FILE",
    "ACCELERATE_ENABLE_RICH",
    "ACCELERATE_FP8_AMAX_COMPUTE_ALGO",
    "ACCELERATE_FP8_BACKEND",
    "ACCELERATE_FP8_ENABLE_FSDP_FLOAT8_ALL_GATHER",
    "ACCELERATE_FP8_FORMAT",
    "ACCELERATE_FP8_OPT_LEVEL",
    "ACCELERATE_FP8_PAD_INNER_DIM",
    "ACCELERATE_INIT_INCLUDE_BUFFERS",
    "ACCELERATE_TORCH_DEVICE",
    "ACCELERATE_USE_MEGATRON_LM",
    "ACCELERATE_WORKER_FOLDER",
    "PARALLELISM_CONFIG_CP_COMM_STRATEGY",
}


def python_violations(root):
    known = {text for _, text in texts((root / TABLE).read_text())} | ONLY_PYTHON
    used = {}
    for path in sorted((root / "python/accelerate").rglob("*.py")):
        for match in PYTHON_NAME.finditer(path.read_text()):
            used.setdefault(match[1], path.relative_to(root))
    for name in sorted(used.keys() - known):
        yield f"{used[name]}: {name} is not in {TABLE}"
    for name in sorted(ONLY_PYTHON - used.keys() if used else ()):
        yield f"no Python code reads {name}; remove it from the list of this test"


def violations(root):
    yield from python_violations(root)
    names = [text for _, text in texts((root / TABLE).read_text())]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f"{TABLE}: {name} stands there twice"
    # Words that are also English are variables only where they are the whole text.
    long_names = {name for name in names if "_" in name.rstrip("_")}
    for folder in ("include", "src", "cli", "python/src"):
        for path in sorted((root / folder).rglob("*")):
            if path.suffix not in (".h", ".cpp") or path == root / TABLE:
                continue
            source = path.read_text()
            for line, text in texts(source):
                found = long_names.intersection(NAME.findall(text)) or {text}.intersection(names)
                own = re.findall(r"\bACCELERATE_[A-Z]\w*", text)
                for name in sorted(found.union(own) - {"ACCELERATE_WITH_TORCH"}):
                    yield f"{path.relative_to(root)}:{line}: {name}; use its constant of {TABLE}"
            for match in LOOKUP.finditer(source):
                line = source.count("\n", 0, match.start()) + 1
                yield f"{path.relative_to(root)}:{line}: reads a variable that {TABLE} does not name"


def refuses(text, name="src/planted.cpp"):
    """Whether a tree of the table and one source with this text is refused."""
    with tempfile.TemporaryDirectory() as folder:
        copy = pathlib.Path(folder)
        (copy / "src/core/base").mkdir(parents=True)
        shutil.copy(ROOT / TABLE, copy / TABLE)
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_text(text)
        return bool(list(violations(copy)))


found = list(violations(ROOT))
assert not found, "\n".join(found)
for planted in (
    'const char* a = "ACCELERATE_USE_CPU";',
    'const char* a = "RANK";',
    'const char* a = "ACCELERATE_BRAND_NEW";',
    'fail("set MASTER_PORT, or leave it");',
    'env("BRAND_NEW");',
):
    assert refuses(planted), f"{planted} was not refused"
for harmless in ('// Reads RANK and MASTER_PORT.', 'fail("no RANK here");', 'if (c == \'"\') {}'):
    assert not refuses(harmless), f"{harmless} was refused"
planted = 'os.environ.get("ACCELERATE_BRAND_NEW")'
assert refuses(planted, "python/accelerate/planted.py"), f"{planted} was not refused"
print("every name stands once; planted ones are refused")
