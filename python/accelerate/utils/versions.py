# SPDX-License-Identifier: Apache-2.0
"""Compares the versions of installed packages."""

from __future__ import annotations

import importlib.metadata

from packaging.version import Version, parse

from accelerate._placeholders import placeholders_for
from accelerate.utils.constants import STR_OPERATION_TO_FUNC

torch_version = parse(importlib.metadata.version("torch"))


def compare_versions(
    library_or_version: str | Version, operation: str, requirement_version: str
) -> bool:
    """Compares a version, or the version of the installed library with this name, with
    `requirement_version`. `operation` is `"<"`, `">="`, ...
    """
    if operation not in STR_OPERATION_TO_FUNC:
        raise ValueError(
            f"[compare_versions] operation is {operation!r}, expected one of "
            f"{', '.join(STR_OPERATION_TO_FUNC)}"
        )
    if isinstance(library_or_version, str):
        library_or_version = parse(importlib.metadata.version(library_or_version))
    return STR_OPERATION_TO_FUNC[operation](library_or_version, parse(requirement_version))


def is_torch_version(operation: str, version: str) -> bool:
    """Compares the installed torch with `version` using `operation`."""
    return compare_versions(torch_version, operation, version)


__getattr__ = placeholders_for(__name__)
