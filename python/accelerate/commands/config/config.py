# SPDX-License-Identifier: Apache-2.0
"""`accelerate config`: the program asks questions and writes the answers to a file."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from accelerate._placeholders import placeholders_for
from accelerate.commands import _program
from accelerate.commands.config.config_args import BaseConfig, load_config_from_file

description = "Choose processes, GPUs and precision, and save them to a file"


def get_user_input() -> BaseConfig:
    """Asks the program's questions and returns the answers."""
    with tempfile.TemporaryDirectory(prefix="accelerate-") as folder:
        file = str(Path(folder) / "config.yaml")
        _program.run(["config", "--config_file", file])
        return load_config_from_file(file)


def config_command_parser(subparsers: Any = None) -> argparse.ArgumentParser:
    parser = _program.make_parser("config", subparsers=subparsers)
    if subparsers is not None:
        parser.set_defaults(func=config_command)
    return parser


def config_command(args: argparse.Namespace) -> None:
    _program.run(_program.command_line(args, "config"))


def main() -> None:
    _program.become("config")


__getattr__ = placeholders_for(__name__)

if __name__ == "__main__":
    main()
