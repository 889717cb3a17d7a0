# SPDX-License-Identifier: Apache-2.0
"""`accelerate config update`: converts a file of an older version to the current format."""

from __future__ import annotations

import argparse
from typing import Any

from accelerate._placeholders import placeholders_for
from accelerate.commands import _program
from accelerate.commands.config.config_args import default_config_file

description = "Convert a configuration file from an older version to the current format"


def update_config(args: argparse.Namespace) -> str:
    """Rewrites the file and returns its path. Raises ValueError if the file does not exist."""
    try:
        _program.output(_program.command_line(args, "config", "update"))
    except RuntimeError as error:
        raise ValueError(str(error)) from None
    return args.config_file or default_config_file


def update_command_parser(parser: Any, parents: Any) -> argparse.ArgumentParser:
    made = _program.make_parser("config", "update", subparsers=parser)
    made.set_defaults(func=update_config_command)
    return made


def update_config_command(args: argparse.Namespace) -> None:
    print(f"Successfully updated the configuration file at {update_config(args)}.")


__getattr__ = placeholders_for(__name__)
