#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes src/text/unicode_differences.inc: the code points on which the
`tokenizers` package (whose Rust crates carry Unicode tables of several ages)
and ICU as of Unicode 15.0 disagree.

    pip install tokenizers        # and ICU 72 as a shared library
    python3 tools/make_unicode_differences.py

Every property is asked of the package through its public parts, one code point
at a time. Code points that ICU knows but that are younger than Unicode 15.0
count as unassigned on ICU's side, as src/text/unicode.cpp does, so that the
table also fits newer versions of ICU.
"""
import argparse
import ctypes
import ctypes.util
import pathlib

from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers import models, normalizers, pre_tokenizers

UNICODE = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
BASE_AGE = (15, 0)

# Values of ICU's UCharCategory.
CN, LU, LO, MN, MC, ND, NL, NO = 0, 1, 5, 6, 8, 9, 10, 11
CC, CF, CO, CS, PC = 15, 16, 17, 18, 22
PUNCTUATION = {19, 20, 21, 22, 23, 28, 29}
WHITE_SPACE, ALPHABETIC, JOIN_CONTROL = 31, 0, 20


class Icu:
    """The raw answers of ICU, through its C interface."""

    def __init__(self, version):
        name = ctypes.util.find_library("icuuc") or f"libicuuc.so.{version}"
        self.library = ctypes.CDLL(name)
        self.suffix = f"_{version}"
        error = ctypes.c_int(0)
        instance = self.function("unorm2_getNFDInstance")
        instance.restype = ctypes.c_void_p
        self.nfd = ctypes.c_void_p(instance(ctypes.byref(error)))
        self.age_of = self.function("u_charAge")
        self.type_of = self.function("u_charType")
        self.binary = self.function("u_hasBinaryProperty")
        self.to_lower = self.function("u_tolower")
        self.combining = self.function("unorm2_getCombiningClass")
        self.raw = self.function("unorm2_getDecomposition")

    def function(self, name):
        return getattr(self.library, name + self.suffix)

    def young(self, c):
        version = (ctypes.c_uint8 * 4)()
        self.age_of(c, version)
        return tuple(version[:2]) > BASE_AGE

    def type(self, c):
        return CN if self.young(c) else self.type_of(c)

    def has(self, c, prop):
        return not self.young(c) and bool(self.binary(c, prop))

    def lower(self, c):
        return "i\u0307" if c == 0x130 else chr(
            c if self.young(c) else self.to_lower(c))

    def decompose(self, c):
        buffer = (ctypes.c_uint16 * 40)()
        error = ctypes.c_int(0)
        count = self.raw(self.nfd, c, buffer, 40, ctypes.byref(error))
        if count < 0 or self.young(c):
            return chr(c)
        return bytes(memoryview(buffer).cast("B")[: 2 * count]).decode("utf-16-le")

    def reorders(self, c):
        return not self.young(c) and 0 < self.combining(self.nfd, c) < 240


class Package:
    """The answers of the `tokenizers` package."""

    def __init__(self):
        bert = normalizers.BertNormalizer
        self.clean = bert(clean_text=True, handle_chinese_chars=False,
                          strip_accents=False, lowercase=False)
        self.strip = bert(clean_text=False, handle_chinese_chars=False,
                          strip_accents=True, lowercase=False)
        self.lower_ = normalizers.Lowercase()
        self.nfd = normalizers.NFD()
        self.bert = pre_tokenizers.BertPreTokenizer()
        self.regex = {
            name: pre_tokenizers.Split(Regex(pattern), "removed")
            for name, pattern in {"letter": r"\p{L}", "number": r"\p{N}",
                                  "space": r"\s"}.items()}
        self.words = Tokenizer(models.WordLevel({"?": 0}, unk_token="?"))
        self.words.add_tokens([AddedToken("xx", single_word=True)])

    def control(self, c):
        return self.clean.normalize_str("a" + chr(c) + "a") == "aa"

    def nonspacing(self, c):
        # What the first code point of the decomposition is decides.
        return self.strip.normalize_str("a" + chr(c)) == "a"

    def punctuation(self, c):
        return len(self.bert.pre_tokenize_str("a" + chr(c) + "a")) == 3

    def whitespace(self, c):
        return len(self.bert.pre_tokenize_str("a" + chr(c) + "a")) == 2

    def matches(self, name, c):
        return not self.regex[name].pre_tokenize_str(chr(c))

    def word(self, c):
        return self.words.encode("xx" + chr(c)).ids[0] == 0

    def lower(self, c):
        return self.lower_.normalize_str(chr(c))

    def decompose(self, c):
        return self.nfd.normalize_str(chr(c))

    def reorders(self, c):
        return self.nfd.normalize_str("a\u0345" + chr(c)) == "a" + self.decompose(c) + "\u0345"


def properties(icu, package):
    """Name, ICU's answer and the package's, for each yes-or-no property."""
    def icu_word(c):
        kind = icu.type(c)
        return (icu.has(c, ALPHABETIC) or MN <= kind <= ND or kind == PC
                or icu.has(c, JOIN_CONTROL))
    yield "kWhitespace", lambda c: icu.has(c, WHITE_SPACE), package.whitespace
    yield ("kControl",
           lambda c: icu.type(c) in (CC, CF, CO, CS) and c not in (9, 10, 13),
           lambda c: c not in (0, 0xFFFD) and package.control(c) or c == 0)
    yield ("kNonspacing",
           lambda c: all(icu.type(ord(d)) == MN for d in icu.decompose(c)),
           package.nonspacing)
    yield ("kPunctuation",
           lambda c: icu.type(c) in PUNCTUATION or (
               c < 128 and chr(c) in "$+<=>^`|~"), package.punctuation)
    yield "kLetter", lambda c: LU <= icu.type(c) <= LO, lambda c: package.matches("letter", c)
    yield "kNumber", lambda c: ND <= icu.type(c) <= NO, lambda c: package.matches("number", c)
    yield "kSpace", lambda c: icu.has(c, WHITE_SPACE), lambda c: package.matches("space", c)
    yield "kWord", icu_word, package.word
    yield "kCombining", icu.reorders, package.reorders


def ranges(differences):
    """[(first, last, value)] of the runs of equal value in [(c, value)]."""
    runs = []
    for c, value in differences:
        if runs and runs[-1][1] + 1 == c and runs[-1][2] == value:
            runs[-1][1] = c
        else:
            runs.append([c, c, value])
    return runs


def mapping(name, ours, theirs):
    lines = []
    for c in UNICODE:
        value = theirs(c)
        if value != ours(c):
            points = [f"0x{ord(d):04X}" for d in value]
            assert len(points) <= 4, hex(c)
            lines.append(f"    {{0x{c:04X}, {{{', '.join(points)}}}}},")
    print(name, len(lines), flush=True)
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--icu", type=int, default=72, help="version of ICU")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(
        __file__).parent.parent / "src/text/unicode_differences.inc")
    args = parser.parse_args()
    icu, package = Icu(args.icu), Package()
    text = ["// Written by tools/make_unicode_differences.py. Do not edit.",
            "// clang-format off", "",
            "// First and last code point, property, its value in the package.",
            "constexpr ClassDifference kClassDifferences[] = {"]
    for name, ours, theirs in properties(icu, package):
        found = ranges((c, theirs(c)) for c in UNICODE if theirs(c) != ours(c))
        print(name, len(found), flush=True)
        text += [f"    {{0x{a:04X}, 0x{b:04X}, CharClass::{name}, {str(v).lower()}}},"
                 for a, b, v in found]
    text += ["};", "", "// Code point, its lowercase in the package.",
             "constexpr MappingDifference kLowercaseDifferences[] = {"]
    text += mapping("lowercase", icu.lower, package.lower)
    text += ["};", "", "// Code point, its canonical decomposition in the package.",
             "constexpr MappingDifference kDecompositionDifferences[] = {"]
    text += mapping("decomposition", icu.decompose, package.decompose)
    text += ["};", ""]
    args.out.write_text("\n".join(text))


if __name__ == "__main__":
    main()
