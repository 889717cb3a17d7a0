# SPDX-License-Identifier: Apache-2.0
"""`accelerate config default`: writes a file for this machine without asking questions."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any, Literal

from accelerate._placeholders import placeholders_for
from accelerate.commands import _program
from accelerate.commands.config.config_args import default_json_config_file

description = "Write a default configuration for this machine without asking questions"


def write_basic_config(
    mixed_precision: str = "no", save_location: str | os.PathLike[str] = default_json_config_file
) -> Path | Literal[False]:
    """Writes settings for this machine, with its GPUs or its CPU, and returns the path. If the file
    already exists, returns False and does not change it."""
    path = Path(save_location)
    if path.exists():
        print(
            f"A configuration already exists at {save_location} and is not overwritten. Run "
            "`accelerate config` manually or pass a different `save_location`."
        )
        return False
    precision = str(mixed_precision).lower()
    flags = [f"--config_file={path}", f"--mixed_precision={precision}"]
    try:
        _program.output(["config", "default", *flags])
    except RuntimeError as error:
        raise ValueError(str(error)) from None
    return path


def default_command_parser(parser: Any, parents: Any) -> argparse.ArgumentParser:
    made = _program.make_parser("config", "default", subparsers=parser)
    made.set_defaults(func=default_config_command)
    return made


def default_config_command(args: argparse.Namespace) -> None:
    _program.run(_program.command_line(args, "config", "default"))


__getattr__ = placeholders_for(__name__)
