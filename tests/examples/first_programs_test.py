# SPDX-License-Identifier: Apache-2.0
"""The four programs that people write first learn what they should, alone and on two
processes: a classifier of image files, a GAN, REINFORCE, a language model."""
import os
import pathlib
import random
import re
import struct
import subprocess
import sys
import tempfile
import zlib

bin_dir = pathlib.Path(sys.argv[1])


def numbers(name, *arguments):
    """What each run printed behind its word, alone and on two processes."""
    program = bin_dir / name
    for launch in ((), (bin_dir / "accelerate", "launch", "--num_processes", "2")):
        answer = subprocess.run(
            [str(part) for part in (*launch, program, *arguments)], capture_output=True,
            text=True, timeout=300, env={**os.environ, "OMP_NUM_THREADS": "1"})
        assert answer.returncode == 0, answer.stdout + answer.stderr
        found = [float(x) for x in re.findall(r"^\w+ (\S+)$", answer.stdout, re.M)]
        assert found, answer.stdout
        yield found


def write_png(path, rows):
    """Rows of (red, green, blue), as the format's own description has it."""
    def chunk(kind, data):
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    lines = b"".join(b"\0" + bytes(value for pixel in row for value in pixel) for row in rows)
    size = struct.pack(">IIBBBBB", len(rows[0]), len(rows), 8, 2, 0, 0, 0)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", size)
                     + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b""))


def draw(folder, name, is_inside):
    """Forty pictures of a shape, of random size, place and colour."""
    (folder / name).mkdir()
    dice = random.Random(name)
    for i in range(40):
        x, y = dice.randrange(11, 17), dice.randrange(11, 17)
        size, colour = dice.randrange(5, 10), [dice.randrange(120, 256) for _ in range(3)]
        write_png(folder / name / f"{i:02}.png", [
            [colour if is_inside(abs(column - x), abs(row - y), size) else (0, 0, 0)
             for column in range(28)] for row in range(28)])


with tempfile.TemporaryDirectory() as folder:
    pictures = pathlib.Path(folder, "pictures")
    pictures.mkdir()
    draw(pictures, "cross", lambda dx, dy, size: min(dx, dy) < 2 and max(dx, dy) < size)
    draw(pictures, "square", lambda dx, dy, size: max(dx, dy) < size)
    for found in numbers("image_classifier", pictures):
        assert found[-1] > 0.85, f"two shapes are told apart: {found}"
    text = pathlib.Path(folder, "text")
    text.write_text("\n".join(f"{i} and {i + 1} are neighbours" for i in range(300)))
    for found in numbers("language_model", text):
        assert found[-1] < min(found[0], 6), f"the perplexity falls: {found}"

# What nobody catches is said under the number of the rank, and is no crash.
answer = subprocess.run(
    [str(bin_dir / "accelerate"), "launch", "--num_processes", "2",
     str(bin_dir / "image_classifier"), "/nowhere"], capture_output=True, text=True, timeout=300)
assert answer.returncode == 1, answer.stderr
assert re.search(r"\[rank [01]\] uncaught: \[ImageFolder\] Cannot read the folder '/nowhere'", answer.stderr), answer.stderr
assert "signal" not in answer.stderr and "terminate called" not in answer.stderr, answer.stderr
for found in numbers("gan"):
    assert 0.7 < found[-1] < 1.3, f"points lie on a circle of radius 1: {found}"
for found in numbers("reinforce"):
    assert found[-1] > 0.8, f"nearly every walk ends at the goal: {found}"
print("all four learn, alone and on two processes")
