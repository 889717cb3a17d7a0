# SPDX-License-Identifier: Apache-2.0
"""`accelerate env` for Python code: collects information for bug reports."""

from __future__ import annotations

import argparse
import re
from typing import Any

from accelerate._placeholders import placeholders_for
from accelerate.commands import _program


def env_command_parser(subparsers: Any = None) -> argparse.ArgumentParser:
    parser = _program.make_parser("env", subparsers=subparsers)
    if subparsers is not None:
        parser.set_defaults(func=env_command)
    return parser


def env_command(args: argparse.Namespace) -> dict[str, str]:
    """Prints the program's output and returns its entries as a dictionary."""
    text = _program.output(_program.command_line(args, "env"))
    print(text, end="")
    return dict(re.findall(r"^- (.*?): ((?:.*\n(?:    .*\n)*))", text, re.MULTILINE))


def main() -> None:
    _program.become("env")


__getattr__ = placeholders_for(__name__)

if __name__ == "__main__":
    main()
