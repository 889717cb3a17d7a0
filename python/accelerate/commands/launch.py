# SPDX-License-Identifier: Apache-2.0
"""`accelerate launch` for Python code, and as `python -m accelerate.commands.launch`."""

from __future__ import annotations

import argparse
import logging
import os
from typing import TYPE_CHECKING, Any

from accelerate._placeholders import placeholders_for
from accelerate.commands import _program
from accelerate.commands.config.config_args import default_config_file, load_config_from_file

if TYPE_CHECKING:
    from accelerate.commands.config.config_args import SageMakerConfig

logger = logging.getLogger(__name__)


def launch_command_parser(subparsers: Any = None) -> argparse.ArgumentParser:
    """Returns a parser for the program's own flags, the script and its arguments."""
    parser = _program.make_parser("launch", subparsers=subparsers)
    if subparsers is not None:
        parser.set_defaults(func=launch_command)
    return parser


def launch_command(args: argparse.Namespace) -> None:
    """Runs the program and waits for it. `args` is the result of `launch_command_parser()`.

    Raises `subprocess.CalledProcessError` if the program fails. The program has already printed the
    reason.
    """
    _program.refuse_foreign(args)
    is_quiet = bool(getattr(args, "quiet", False))
    _program.run(_program.command_line(args, "launch"), is_quiet=is_quiet)


def _validate_launch_command(
    args: argparse.Namespace,
) -> tuple[argparse.Namespace, Any, bool]:
    """Returns `args` unchanged, the configuration file if there is one, and whether mixed precision
    comes from it. The program reads the file itself, so nothing is copied to `args`.

    Raises `NotImplementedError` if `args` request another engine.
    """
    _program.refuse_foreign(args)
    file = args.config_file
    if file is None and not os.path.isfile(default_config_file):
        return args, None, False
    defaults = load_config_from_file(file)
    is_from_file = not args.mixed_precision and defaults.mixed_precision is not None
    return args, defaults, is_from_file


def simple_launcher(args: argparse.Namespace) -> None:
    """The same as `launch_command`, because the program itself determines what to start."""
    launch_command(args)


def multi_gpu_launcher(args: argparse.Namespace) -> None:
    """The same as `launch_command`, because the program itself determines what to start."""
    launch_command(args)


def deepspeed_launcher(args: argparse.Namespace) -> None:
    """The same as `launch_command`, because DeepSpeed's own launcher is not needed."""
    launch_command(args)


def tpu_launcher(args: argparse.Namespace) -> None:
    raise NotImplementedError(
        "[launch] TPUs are not supported. Use launch_command() with GPUs or CPUs"
    )


def tpu_pod_launcher(args: argparse.Namespace) -> None:
    tpu_launcher(args)


def sagemaker_launcher(sagemaker_config: SageMakerConfig, args: argparse.Namespace) -> None:
    raise NotImplementedError(
        "[launch] Submitting jobs to SageMaker is not supported. Submit the job with an estimator "
        "of the sagemaker package, and call `accelerate launch` in the job"
    )


def main() -> None:
    _program.become("launch")


__getattr__ = placeholders_for(__name__)

if __name__ == "__main__":
    main()
