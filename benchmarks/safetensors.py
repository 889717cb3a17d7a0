# SPDX-License-Identifier: Apache-2.0
"""Opens, reads and writes safetensors files beside the Python package.

Both sides take turns in the same run,
on one thread, on files that are in the page cache. Needs torch and safetensors.
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import time

import harness

sys.path.pop(0)  # This file bears the name of the package.
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file


class Ours:
    def __init__(self, program):
        self.process = subprocess.Popen(
            [program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __call__(self, *words):
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        seconds, result = self.process.stdout.readline().split()
        return float(seconds), int(result)


def timed(work):
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result


def peer_open(path):
    with safe_open(path, framework="pt") as file:
        return len(file.get_slice(list(file.keys())[-1]).get_shape())


def peer_read(path):
    total = 0
    for tensor in load_file(path).values():
        total += int(tensor.view(torch.int64).sum())
    return total % 2**64


def peer_sync(path):
    for name in path, path.parent:
        descriptor = os.open(name, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def run_case(name, rounds, ours, peer, check=None):
    if check:
        check(ours(), peer())
    mine, theirs = harness.alternate(lambda: ours()[0], lambda: peer()[0], rounds)
    harness.report("safetensors", name, mine * 1e3, theirs * 1e3, "ms")


def same_sum(ours, peer):
    assert ours[1] == peer[1], "the two sides read different bytes"


def main():
    arguments = harness.arguments("safetensors: open, read, write")
    torch.set_num_threads(1)
    ours = Ours(arguments.bin / "safetensors")
    with tempfile.TemporaryDirectory(dir=arguments.bin) as folder:
        folder = pathlib.Path(folder)
        big, many = folder / "big.safetensors", folder / "many.safetensors"
        count = 200
        width = 500 * 10**6 // count // 4 // 1024
        state = {f"layers.{i}.weight": torch.randn(1024, width // 2 * 2) for i in range(count)}
        save_file(state, big, metadata={"format": "pt"})
        save_file({f"layers.{i}.bias": torch.randn(8) for i in range(2000)}, many)
        # Both sides write from tensors of the same kind: a mapped file.
        mapped = load_file(big)
        mine, theirs = folder / "ours.safetensors", folder / "peer.safetensors"

        def peer_save(sync):
            save_file(mapped, theirs, metadata={"format": "pt"})
            if sync:
                peer_sync(theirs)

        rounds = arguments.rounds
        run_case("open_2000_tensors", rounds, lambda: ours("open", many),
                 lambda: timed(lambda: peer_open(many)))  # fmt: skip
        run_case("open_and_read_every_byte", rounds, lambda: ours("read", big),
                 lambda: timed(lambda: peer_read(big)), same_sum)  # fmt: skip
        run_case("save", rounds, lambda: ours("save", big, mine),
                 lambda: timed(lambda: peer_save(False)))  # fmt: skip
        run_case("save_and_sync", rounds, lambda: ours("save_sync", big, mine),
                 lambda: timed(lambda: peer_save(True)))  # fmt: skip
        assert mine.read_bytes() == theirs.read_bytes(), "the two files differ"
    ours.process.stdin.close()
    ours.process.wait()


if __name__ == "__main__":
    main()
