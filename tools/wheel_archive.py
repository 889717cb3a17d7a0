# SPDX-License-Identifier: Apache-2.0
"""Reads a wheel into memory and writes it again, with a list of files that is true."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import os
import pathlib
import stat
import tempfile
import zipfile

# Of every file, so that the same contents give the same wheel.
TIME = (2020, 1, 1, 0, 0, 0)


class WheelFile:
    def __init__(self, data: bytes, is_program: bool = False) -> None:
        self.data = data
        self.is_program = is_program


Wheel = dict[str, WheelFile]


def read_wheel(path: str | pathlib.Path) -> Wheel:
    with zipfile.ZipFile(path) as archive:
        return {
            entry.filename: WheelFile(
                archive.read(entry), bool(entry.external_attr >> 16 & stat.S_IXUSR)
            )
            for entry in archive.infolist()
            if not entry.is_dir()
        }


def path_in(wheel: Wheel, name: str) -> str:
    """The path of METADATA, RECORD or WHEEL."""
    return next(
        path for path in wheel if path.count("/") == 1 and path.endswith(f".dist-info/{name}")
    )


def write_wheel(path: str | pathlib.Path, wheel: Wheel) -> None:
    record = path_in(wheel, "RECORD")
    wheel[record] = WheelFile(_record_of(wheel, record))
    descriptor, written = tempfile.mkstemp(dir=os.path.dirname(path), suffix=".part")
    os.close(descriptor)
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        # What describes the wheel comes last, as the format recommends.
        for name in sorted(wheel, key=lambda name: (".dist-info/" in name, name)):
            entry = zipfile.ZipInfo(name, TIME)
            entry.compress_type = zipfile.ZIP_DEFLATED
            mode = 0o755 if wheel[name].is_program else 0o644
            entry.external_attr = (stat.S_IFREG | mode) << 16
            archive.writestr(entry, wheel[name].data)
    os.chmod(written, 0o644)
    os.replace(written, path)


def _record_of(wheel: Wheel, record: str) -> bytes:
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    for name in sorted(wheel):
        if name != record:
            digest = hashlib.sha256(wheel[name].data).digest()
            digest_text = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
            rows.writerow([name, f"sha256={digest_text}", len(wheel[name].data)])
    rows.writerow([record, "", ""])
    return text.getvalue().encode()
