# SPDX-License-Identifier: Apache-2.0
"""`accelerate merge-weights` for Python code: merges many files into one."""

from __future__ import annotations

import argparse
from typing import Any

from accelerate._placeholders import placeholders_for
from accelerate.commands import _program

description = "Merge the files of a sharded model or checkpoint into one"


def merge_command_parser(subparsers: Any = None) -> argparse.ArgumentParser:
    parser = _program.make_parser("merge-weights", subparsers=subparsers)
    if subparsers is not None:
        parser.set_defaults(func=merge_command)
    return parser


def merge_command(args: argparse.Namespace) -> None:
    _program.run(_program.command_line(args, "merge-weights"))


def main() -> None:
    _program.become("merge-weights")


__getattr__ = placeholders_for(__name__)

if __name__ == "__main__":
    main()
