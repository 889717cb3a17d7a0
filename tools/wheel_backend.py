# SPDX-License-Identifier: Apache-2.0
"""What `pip install .` calls: scikit-build-core, and then the line `Home-page` in the wheel's
metadata, which pyproject.toml has no field for. sentence-transformers takes no package for
Accelerate without it."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import os
import tempfile
import zipfile

from scikit_build_core import build
from scikit_build_core.build import *  # noqa: F403

HOME_PAGE = b"Home-page: https://github.com/huggingface/accelerate\n"
__all__ = [*build.__all__]


def build_wheel(
    wheel_directory: str,
    config_settings: dict | None = None,
    metadata_directory: str | None = None,
) -> str:
    name = build.build_wheel(wheel_directory, config_settings, metadata_directory)
    add_home_page(os.path.join(wheel_directory, name))
    return name


def build_editable(
    wheel_directory: str,
    config_settings: dict | None = None,
    metadata_directory: str | None = None,
) -> str:
    name = build.build_editable(wheel_directory, config_settings, metadata_directory)
    add_home_page(os.path.join(wheel_directory, name))
    return name


def add_home_page(path: str) -> None:
    """Writes the wheel again with the line, and with what its list of files says of it."""
    descriptor, written = tempfile.mkstemp(dir=os.path.dirname(path), suffix=".part")
    os.close(descriptor)
    with zipfile.ZipFile(path) as before, zipfile.ZipFile(written, "w") as after:
        named = {entry.filename.rpartition("/")[2]: entry for entry in before.infolist()
                 if entry.filename.partition("/")[0].endswith(".dist-info")}
        metadata = named["METADATA"].filename
        changed = {metadata: _with_line(before.read(metadata))}
        record = named["RECORD"].filename
        changed[record] = _record_of(before.read(record), metadata, changed[metadata])
        for entry in before.infolist():
            data = changed.get(entry.filename)
            after.writestr(entry, before.read(entry) if data is None else data)
    os.replace(written, path)


def _with_line(metadata: bytes) -> bytes:
    # Behind the first line, which says what format the others have.
    version, _, rest = metadata.partition(b"\n")
    return version + b"\n" + HOME_PAGE + rest


def _record_of(record: bytes, name: str, data: bytes) -> bytes:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    written = io.StringIO()
    rows = csv.writer(written, lineterminator="\n")
    for row in csv.reader(io.StringIO(record.decode())):
        rows.writerow([name, f"sha256={digest}", len(data)] if row and row[0] == name else row)
    return written.getvalue().encode()
