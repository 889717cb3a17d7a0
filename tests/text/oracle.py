#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the Python package `tokenizers` answers, for tests/text and tools/.

    oracle.py minilm                     the folder of the real model
    oracle.py corpus KIND OUT            texts, as a JSON list
    oracle.py train KIND OUT SIZE        a tokenizer trained on the fortunes
    oracle.py encode TOKENIZER JOBS OUT  encodings and decoded texts, binary
    oracle.py unicode TOKENIZER OUT STEP every code point through two steps, a chunk in STEP

Jobs are a JSON list of objects: inputs (strings or pairs), add_special_tokens,
truncation and padding (null, or the arguments of enable_truncation and
enable_padding; absent: as the file says).
"""
import array
import glob
import itertools
import json
import os
import pathlib
import random
import sys

from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers import decoders, models, normalizers, pre_tokenizers
from tokenizers import processors, trainers

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
          r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
FORTUNES = "/usr/share/games/fortunes"
CHUNK = 128


def fortunes():
    texts = []
    for name in sorted(glob.glob(FORTUNES + "/**/*", recursive=True)):
        path = pathlib.Path(name)
        if path.is_file() and path.suffix not in (".dat", ".u8"):
            texts += path.read_text(errors="replace").split("\n%\n")
    return texts


def random_unicode():
    """Strings of code points from all over Unicode, and from the parts where
    rules differ: marks, controls, spaces, emoji, CJK, Hangul, case."""
    source = random.Random(8)
    blocks = [(0x20, 0x7E), (0x20, 0x7E), (0x00, 0x20), (0x7F, 0x17F),
              (0x300, 0x36F), (0x370, 0x5FF), (0x600, 0x6FF), (0x900, 0x9FF),
              (0x1E00, 0x1FFF), (0x2000, 0x206F), (0x20D0, 0x20FF),
              (0x2190, 0x27BF), (0x3000, 0x30FF), (0x4E00, 0x4FFF),
              (0xAC00, 0xAFFF), (0xF900, 0xFAFF), (0xFE00, 0xFFFD),
              (0x10000, 0x10FFFF), (0x1D165, 0x1D1FF), (0x1F300, 0x1FAFF),
              (0x20000, 0x20100), (0xE0100, 0xE01EF), (0x0, 0x10FFFF)]
    texts = []
    for _ in range(4000):
        points = []
        for _ in range(source.randrange(1, 12)):
            first, last = source.choice(blocks)
            points += [source.randint(first, last)
                       for _ in range(source.randrange(1, 8))]
        texts.append("".join(chr(c) for c in points if not 0xD800 <= c < 0xE000))
    return texts


def hard_cases():
    """Texts that were chosen by hand."""
    return [
        "", " ", "   ", "\n", "\t\r\n \x0b\x0c", "a", " a", "a ", "  a  b  ",
        "Hello world", "don't can't I'm you're we've he'll she'd IT'S it'ſ",
        "l'été déjà vu Ångström ﬁne ǅ İstanbul ΑΣ ß ẞ",
        "e\u0301\u0316\u0300 a\u0323\u0307 \u0344\u0316 \u1e69\u0323",
        "日本語のテキスト 中文字符 한국어 각 \u1100\u1161\u11a8",
        "👍🏽 👨‍👩‍👧‍👦 🇩🇪 ☝️ 🏴\U000e0067\U000e0062\U000e007f",
        "a\u0000b\u0001c\ufffdd\u200be\u200df\ufeffg\u00adh\u2028i\u2029j\u0085k",
        "1234567 12 ½ ² ① ٣٤٥ 1,234.56", "foo_bar-baz/qux@example.com #tag $5",
        "x" * 300, "é" * 101, "é" * 100, "a" * 100 + " " + "b" * 101, "ab" * 2000,
        "[CLS] [MASK] [SEP][PAD]  [UNK]x", "<s>  <mask> </s><pad><unk>",
        "<|endoftext|><|begin_of_text|> <|x|", "a <x>  b<x>c", "a  wordy b wordyc",
        "wordy", "_wordy wordy_ éwordy wordyé wordy! (wordy)", "GRÖSSE größe Größe",
        "line one\r\nline two\n\n\n  line three   \n", "!!!\n\n???\r\rx",
        "\u00a0nbsp\u2003em\u3000wide", "tab\tseparated\tvalues",
        "\u0f71\u0f72\u0f73 \u0315\u0300\u05ae\u0062", "q\u0307\u0323",
    ]


def train(kind, texts, size):
    if kind == "wordpiece":
        return train_word_piece(texts, size)
    tokenizer = Tokenizer(models.BPE(ignore_merges=kind == "llama3"))
    special = {"gpt2": ["<|endoftext|>"],
               "roberta": ["<s>", "<pad>", "</s>", "<unk>"],
               "llama3": ["<|begin_of_text|>", "<|end_of_text|>"]}[kind]
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=special, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    byte_level = pre_tokenizers.ByteLevel
    if kind == "llama3":
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
            pre_tokenizers.Split(Regex(LLAMA3), "isolated"),
            byte_level(add_prefix_space=False, use_regex=False)])
    else:
        tokenizer.pre_tokenizer = byte_level(add_prefix_space=kind == "roberta")
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.decoder = decoders.ByteLevel()
    if kind == "gpt2":
        tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    elif kind == "roberta":
        tokenizer.post_processor = processors.RobertaProcessing(
            ("</s>", tokenizer.token_to_id("</s>")), ("<s>", tokenizer.token_to_id("<s>")))
    else:
        begin = ("<|begin_of_text|>", tokenizer.token_to_id("<|begin_of_text|>"))
        tokenizer.post_processor = processors.Sequence([
            processors.ByteLevel(trim_offsets=True),
            processors.TemplateProcessing(
                single=f"{begin[0]} $A", special_tokens=[begin],
                pair=f"{begin[0]} $A {begin[0]}:1 $B:1")])
    add_tokens(tokenizer)
    return tokenizer


def train_word_piece(texts, size):
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(strip_accents=False)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=size, show_progress=False,
        special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.BertProcessing(
        ("[SEP]", tokenizer.token_to_id("[SEP]")), ("[CLS]", tokenizer.token_to_id("[CLS]")))
    tokenizer.decoder = decoders.WordPiece()
    add_tokens(tokenizer)
    return tokenizer


def add_tokens(tokenizer):
    """One token for each setting that an added token has."""
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True)])
    tokenizer.add_tokens([
        AddedToken("<x>", rstrip=True), AddedToken("wordy", single_word=True),
        AddedToken("Größe", normalized=True), AddedToken("<|x", normalized=False),
        AddedToken("  two", normalized=False, lstrip=True, rstrip=True)])


def configure(tokenizer, job):
    if "truncation" in job:
        if job["truncation"] is None:
            tokenizer.no_truncation()
        else:
            tokenizer.enable_truncation(**job["truncation"])
    if "padding" in job:
        if job["padding"] is None:
            tokenizer.no_padding()
        else:
            tokenizer.enable_padding(**job["padding"])


def arrays(encoding):
    """The arrays of an encoding in the order of the file."""
    return [encoding.ids, encoding.type_ids, encoding.attention_mask,
            encoding.special_tokens_mask,
            [-1 if w is None else w for w in encoding.word_ids],
            list(itertools.chain.from_iterable(encoding.offsets))]


def write_encoding(out, encoding):
    array.array("i", [len(encoding.ids)]).tofile(out)
    for values in arrays(encoding):
        array.array("i", values).tofile(out)
    array.array("i", [len(encoding.overflowing)]).tofile(out)
    for part in encoding.overflowing:
        write_encoding(out, part)


def write_text(out, text):
    data = text.encode()
    array.array("i", [len(data)]).tofile(out)
    out.write(data)


def encode(tokenizer, job):
    inputs = [tuple(i) if isinstance(i, list) else i for i in job["inputs"]]
    return tokenizer.encode_batch(
        inputs, add_special_tokens=job.get("add_special_tokens", True))


def run_encode(tokenizer_file, jobs_file, out_file):
    tokenizer = Tokenizer.from_file(tokenizer_file)
    with open(out_file, "wb") as out:
        for job in json.loads(pathlib.Path(jobs_file).read_text()):
            configure(tokenizer, job)
            for encoding in encode(tokenizer, job):
                write_encoding(out, encoding)
                for skip in (True, False):
                    write_text(out, tokenizer.decode(
                        encoding.ids, skip_special_tokens=skip))


def unicode_chunks():
    """Every code point: where any are assigned, beside letters, digits and a
    combining mark of the highest class; elsewhere in runs."""
    planes = [range(p << 16, (p + 1) << 16) for p in range(17)]
    for number, plane in enumerate(planes):
        points = [chr(c) for c in plane if not 0xD800 <= c < 0xE000]
        is_empty = 4 <= number <= 13 or number >= 15
        size = 1024 if is_empty else CHUNK
        for i in range(0, len(points), size):
            part = points[i:i + size]
            yield ("a" + "".join(part) + "1" if is_empty else
                   "".join("a" + c + "\u0345B 1" + c + c for c in part))


def run_unicode(tokenizer_file, out_file, step):
    tokenizer = Tokenizer.from_file(tokenizer_file)
    with open(out_file, "wb") as out:
        for text in itertools.islice(unicode_chunks(), 0, None, int(step)):
            write_text(out, text)
            write_text(out, tokenizer.normalizer.normalize_str(text)
                       if tokenizer.normalizer else text)
            words = tokenizer.pre_tokenizer.pre_tokenize_str(text)
            # No word has a line end in it: BERT splits there, and the alphabet
            # of byte-level words has none.
            write_text(out, "\n".join(word for word, _ in words))
            array.array("i", [len(words)]).tofile(out)
            array.array("i", itertools.chain.from_iterable(
                offsets for _, offsets in words)).tofile(out)


def main(command, *args):
    if command == "minilm":
        folder = os.environ.get("ACCELERATE_REAL_MODEL")
        if not folder:
            sys.exit("ACCELERATE_REAL_MODEL names no folder of a pretrained model")
        print(folder)
    elif command == "corpus":
        texts = {"fortunes": fortunes, "random": random_unicode,
                 "hard": hard_cases}[args[0]]()
        pathlib.Path(args[1]).write_text(json.dumps(texts))
    elif command == "train":
        train(args[0], fortunes(), int(args[2])).save(args[1])
    elif command == "encode":
        run_encode(*args)
    elif command == "unicode":
        run_unicode(*args)


if __name__ == "__main__":
    main(*sys.argv[1:])
