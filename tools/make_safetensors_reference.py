#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/reference/safetensors with the Python packages safetensors and
huggingface_hub: what the C++ code must read, and must write byte for byte.

Usage: make_safetensors_reference.py [FOLDER]    (needs torch, safetensors,
huggingface_hub, accelerate)
"""

import ctypes
import json
import pathlib
import random
import shutil
import sys

import torch
from accelerate.utils.modeling import convert_file_size_to_int
from huggingface_hub import split_torch_state_dict_into_shards
from huggingface_hub.serialization._base import parse_size_to_int
from safetensors import TensorSpec, deserialize, serialize
from safetensors.torch import save_file

# Python's name of the dtype, bytes of one element (a pair for float4).
DTYPES = [
    ("bool", 1),
    ("float4_e2m1fn_x2", 1),
    ("uint8", 1),
    ("int8", 1),
    ("float8_e5m2", 1),
    ("float8_e4m3fn", 1),
    ("float8_e8m0fnu", 1),
    ("float8_e4m3fnuz", 1),
    ("float8_e5m2fnuz", 1),
    ("int16", 2),
    ("uint16", 2),
    ("float16", 2),
    ("bfloat16", 2),
    ("int32", 4),
    ("uint32", 4),
    ("float32", 4),
    ("complex64", 8),
    ("float64", 8),
    ("int64", 8),
    ("uint64", 8),
]

# The words that the Rust library's errors begin with, as one letter each.
CAUSES = {
    "header too small": "S",
    "header too large": "L",
    "invalid header length": "H",
    "invalid UTF-8 in header": "U",
    "invalid JSON in header": "J",
    "invalid offset for tensor": "O",
    "invalid shape, data type, or offset": "T",
    "incomplete metadata": "I",
    "overflow computing buffer size": "V",
    "The slice is slicing": "M",
}


def pattern(seed: int, count: int) -> bytes:
    """Bytes that the tests can make too: (seed * 31 + i * 7) mod 256."""
    return bytes((seed * 31 + i * 7) % 256 for i in range(count))


def pack(tensors, metadata=None) -> bytes:
    """tensors: (name, dtype, shape, bytes of one element)."""
    specs, buffers = {}, []
    for seed, (name, dtype, shape, element) in enumerate(tensors):
        count = element
        for dim in shape:
            count *= dim
        buffer = ctypes.create_string_buffer(pattern(seed, count), max(count, 1))
        buffers.append(buffer)
        specs[name] = TensorSpec(
            dtype=dtype, shape=shape, data_ptr=ctypes.addressof(buffer), data_len=count
        )
    return serialize(specs, metadata)


def verdict(data: bytes) -> str:
    try:
        deserialize(data)
        return "."
    except Exception as error:
        text = str(error).removeprefix("Error while deserializing: ")
        return next(code for words, code in CAUSES.items() if text.startswith(words))


def write_files(folder: pathlib.Path) -> None:
    files = {
        "dtypes": pack([(d, d, [2, 3], size) for d, size in DTYPES]),
        "empty": pack([]),
        "metadata": pack([("w", "float32", [1], 4)], {"format": "pt"}),
        "shapes": pack(
            [
                ("scalar", "float32", [], 4),
                ("none", "float32", [0], 4),
                ("none.wide", "int64", [3, 0, 5], 8),
                ("deep", "uint8", [1, 2, 1, 2, 1, 2], 1),
            ]
        ),
        "names": pack(
            [
                ("", "uint8", [1], 1),
                ('quote " and \\ and /', "uint8", [1], 1),
                ("line\nend\ttab\b\f\r\x01\x1f\x7f", "uint8", [1], 1),
                ("Überprüfung", "uint8", [1], 1),
                ("重み", "uint8", [1], 1),
                ("🤗", "uint8", [1], 1),
            ],
            {"Schlüssel": 'a "value"\n'},
        ),
    }
    for name, data in files.items():
        (folder / f"{name}.safetensors").write_bytes(data)

    small = pack([("bias", "float32", [2], 4), ("weight", "bfloat16", [2, 3], 2)])
    (folder / "small.safetensors").write_bytes(small)
    length = 8 + int.from_bytes(small[:8], "little")
    flips = ""
    for bit in range(8 * length):
        data = bytearray(small)
        data[bit // 8] ^= 1 << bit % 8
        flips += verdict(bytes(data))
    prefixes = "".join(verdict(small[:n]) for n in range(len(small) + 1))
    (folder / "verdicts.txt").write_text(f"{flips}\n{prefixes}\n")


def write_sharded(folder: pathlib.Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    state = {
        f"layer.{i}.{kind}": torch.full((i + 1, 8), float(i), dtype=torch.float32)
        for i in range(6)
        for kind in ("weight", "Gewicht-ß")
    }
    split = split_torch_state_dict_into_shards(
        state, filename_pattern="model{suffix}.safetensors", max_shard_size="0.5KB"
    )
    for name, keys in split.filename_to_tensors.items():
        save_file({k: state[k] for k in keys}, folder / name, metadata={"format": "pt"})
    index = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
    text = json.dumps(index, indent=2, sort_keys=True) + "\n"
    (folder / "model.safetensors.index.json").write_text(text, encoding="utf-8")
    save_file(state, folder / "merged", metadata={"format": "pt"})


def split_cases() -> list:
    rng = random.Random(8)
    cases = []
    for _ in range(40):
        sizes = [rng.choice([1, 5, 10, 20, 39, 40, 41, 90]) for _ in range(rng.randint(1, 12))]
        state = {f"t{i:02}": torch.empty(n, dtype=torch.uint8) for i, n in enumerate(sizes)}
        split = split_torch_state_dict_into_shards(
            state, filename_pattern="model{suffix}.safetensors", max_shard_size=40
        )
        files = [split.tensor_to_filename[k] for k in state]
        cases.append({"sizes": sizes, "files": files, "total": split.metadata["total_size"]})
    return cases


def main() -> None:
    root = pathlib.Path(__file__).resolve().parent.parent
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else root / "tests/reference/safetensors"
    folder.mkdir(parents=True, exist_ok=True)
    write_files(folder)
    write_sharded(folder / "sharded")
    decimal = ["10GB", "5gb", "1.5 MB", " 2TB ", "300KB", "0.1GB", "1e2MB", "0KB"]
    binary = ["5GiB", "1.5MiB", "64kib"]
    table = {
        "split": split_cases(),
        "sizes": {
            **{text: parse_size_to_int(text) for text in decimal},
            **{text: convert_file_size_to_int(text) for text in binary},
        },
    }
    (folder / "tables.json").write_text(json.dumps(table) + "\n")


if __name__ == "__main__":
    main()
