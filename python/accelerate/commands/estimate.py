# SPDX-License-Identifier: Apache-2.0
"""`accelerate estimate-memory` for Python code: estimates the memory that a model needs."""

from __future__ import annotations

import argparse
from typing import Any

from accelerate._placeholders import placeholders_for
from accelerate.commands import _program


def estimate_command_parser(subparsers: Any = None) -> argparse.ArgumentParser:
    parser = _program.make_parser("estimate-memory", subparsers=subparsers)
    if subparsers is not None:
        parser.set_defaults(func=estimate_command)
    return parser


def estimate_command(args: argparse.Namespace) -> None:
    _program.run(_program.command_line(args, "estimate-memory"))


def main() -> None:
    _program.become("estimate-memory")


__getattr__ = placeholders_for(__name__)

if __name__ == "__main__":
    main()
