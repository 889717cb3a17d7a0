# SPDX-License-Identifier: Apache-2.0
"""`accelerate config` for Python code: reads and writes configuration files."""

from __future__ import annotations

import argparse
from typing import Any

from accelerate._placeholders import placeholders_for
from accelerate.commands import _program
from accelerate.commands.config.config import config_command_parser
from accelerate.commands.config.config_args import (
    default_config_file as default_config_file,
)
from accelerate.commands.config.config_args import (
    load_config_from_file as load_config_from_file,
)
from accelerate.commands.config.default import default_command_parser
from accelerate.commands.config.update import update_command_parser


def get_config_parser(subparsers: Any = None) -> argparse.ArgumentParser:
    """Returns a parser for `accelerate config` with `default` and `update`."""
    parser = config_command_parser(subparsers)
    subcommands = parser.add_subparsers(title="subcommands", dest="subcommand")
    default_command_parser(subcommands, parents=[])
    update_command_parser(subcommands, parents=[])
    return parser


def main() -> None:
    _program.become("config")


__getattr__ = placeholders_for(__name__)
