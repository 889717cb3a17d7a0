# SPDX-License-Identifier: Apache-2.0
"""Starts processes; see `accelerate.launchers`."""

from __future__ import annotations

import argparse
import os

from accelerate._placeholders import placeholders_for
from accelerate.commands import _program
from accelerate.launchers import PrepareForLaunch as PrepareForLaunch


def _filter_args(
    args: argparse.Namespace,
    parser: argparse.ArgumentParser,
    default_args: list[str] = [],  # noqa: B006
) -> argparse.Namespace:
    """Returns the result of `parser` for `default_args`, with the values of `args` for all names
    that `args` has."""
    known, _ = parser.parse_known_args(default_args)
    for name in vars(known):
        setattr(known, name, getattr(args, name, getattr(known, name)))
    return known


def env_var_path_add(env_var_name: str, path_to_add: str | os.PathLike) -> str:
    """Returns the value of a path variable with a folder added at the end. Does not set the
    variable."""
    folders = [folder for folder in os.environ.get(env_var_name, "").split(":") if folder]
    return ":".join([*folders, str(path_to_add)])


def prepare_simple_launcher_cmd_env(
    args: argparse.Namespace,
) -> tuple[list[str], dict[str, str]]:
    """Returns a command that is equivalent to `launch_command(args)`, and its environment. The
    command runs the `accelerate` program, which starts the script."""
    _program.refuse_foreign(args)
    return _program.full_command(_program.command_line(args, "launch")), _program.environment()


__getattr__ = placeholders_for(__name__)
