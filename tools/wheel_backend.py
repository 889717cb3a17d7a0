# SPDX-License-Identifier: Apache-2.0
"""What `pip install .` calls: scikit-build-core, and then the line `Home-page` in the wheel's
metadata, which pyproject.toml has no field for."""

from __future__ import annotations

import os
import pathlib
import re

from scikit_build_core import build
from scikit_build_core.build import *  # noqa: F403
from wheel_archive import WheelFile, path_in, read_wheel, write_wheel

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
    wheel = read_wheel(path)
    metadata = path_in(wheel, "METADATA")
    # Behind the first line, which says what format the others have.
    version, _, rest = wheel[metadata].data.partition(b"\n")
    line = f"Home-page: {home_page()}\n".encode()
    wheel[metadata] = WheelFile(version + b"\n" + line + rest)
    write_wheel(path, wheel)


def home_page() -> str:
    text = (pathlib.Path(__file__).parents[1] / "pyproject.toml").read_text()
    found = re.search(r'^home-page = "(.+)"$', text, re.M)
    assert found, "pyproject.toml has no home-page"
    return found[1]
