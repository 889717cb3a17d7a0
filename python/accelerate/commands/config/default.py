# SPDX-License-Identifier: Apache-2.0
"""`accelerate config default`: a file for this machine, without questions."""

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
    """Writes settings for this machine: its GPUs, or its CPU. Returns the path. Returns False if
    the file already exists, and does not change it."""
    path = Path(save_location)
    if path.exists():
        print(
            f"Configuration already exists at {save_location}, will not override. Run `accelerate "
            "config` manually or pass a different `save_location`."
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
