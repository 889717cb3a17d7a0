# SPDX-License-Identifier: Apache-2.0
"""`accelerate test` for Python code: the self-check."""

from __future__ import annotations

import argparse
from typing import Any

from accelerate._placeholders import placeholders_for
from accelerate.commands import _program


def test_command_parser(subparsers: Any = None) -> argparse.ArgumentParser:
    parser = _program.make_parser("test", subparsers=subparsers)
    if subparsers is not None:
        parser.set_defaults(func=test_command)
    return parser


def test_command(args: argparse.Namespace) -> None:
    _program.run(_program.command_line(args, "test"))


def main() -> None:
    _program.become("test")


__getattr__ = placeholders_for(__name__)

if __name__ == "__main__":
    main()
