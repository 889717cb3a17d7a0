# SPDX-License-Identifier: Apache-2.0
"""The `accelerate` program itself."""

from __future__ import annotations

from accelerate._placeholders import placeholders_for
from accelerate.commands import _program


def main() -> None:
    _program.become()


__getattr__ = placeholders_for(__name__)

if __name__ == "__main__":
    main()
