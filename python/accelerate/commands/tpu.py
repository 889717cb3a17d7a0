# SPDX-License-Identifier: Apache-2.0
"""The original's `accelerate tpu-config`: runs commands on every machine of a TPU pod with
`gcloud`. Training on TPUs is not supported."""

from __future__ import annotations

import argparse
import os
import subprocess
from typing import Any

from accelerate._placeholders import placeholders_for
from accelerate.commands.config.config_args import default_config_file, load_config_from_file

_DESCRIPTION = "Run commands across TPU VMs for initial setup before running `accelerate launch`."
_SOURCE = "git+https://github.com/huggingface/accelerate.git"


def tpu_command_parser(subparsers: Any = None) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser
    if subparsers is not None:
        parser = subparsers.add_parser("tpu-config", description=_DESCRIPTION)
        parser.set_defaults(func=tpu_command_launcher)
    else:
        parser = argparse.ArgumentParser("accelerate tpu-config", description=_DESCRIPTION)
    config = parser.add_argument_group("Config Arguments")
    config.add_argument(
        "--config_file", help="Configuration file for options that are not on the command line"
    )
    config.add_argument("--tpu_name", help="Name of the TPU")
    config.add_argument("--tpu_zone", help="Zone of the TPU")
    pod = parser.add_argument_group("TPU Arguments")
    pod.add_argument("--use_alpha", action="store_true", help="Call `gcloud alpha`")
    pod.add_argument("--command_file", help="File with the commands to run, one per line")
    pod.add_argument("--command", action="append", nargs="+", help="A command to run")
    pod.add_argument("--install_accelerate", action="store_true", help="Install it first")
    pod.add_argument(
        "--accelerate_version", default="latest", help="A version, latest, or dev (from GitHub)"
    )
    pod.add_argument("--debug", action="store_true", help="Print the command without running it")
    return parser


def tpu_command_launcher(args: argparse.Namespace) -> None:
    _take_defaults(args)
    command = _gcloud_command(args)
    if args.debug:
        print(f"Running {' '.join(command)}")
        return
    try:
        subprocess.run(command, check=True)
    except FileNotFoundError:
        raise FileNotFoundError(
            "[tpu-config] The program `gcloud` is not on the PATH. Install the Google Cloud SDK"
        ) from None
    print("Successfully setup pod.")


def _take_defaults(args: argparse.Namespace) -> None:
    if args.config_file is None and not os.path.isfile(default_config_file):
        return
    config = load_config_from_file(args.config_file)
    if not args.command:
        args.command_file = args.command_file or getattr(config, "command_file", None)
        args.command = getattr(config, "commands", None)
    args.tpu_name = args.tpu_name or getattr(config, "tpu_name", None)
    args.tpu_zone = args.tpu_zone or getattr(config, "tpu_zone", None)


def _gcloud_command(args: argparse.Namespace) -> list[str]:
    commands = _commands(args)
    if not commands:
        raise ValueError("You must specify either a command file or a command to run on the pod.")
    if not args.tpu_name or not args.tpu_zone:
        raise ValueError(
            "[tpu-config] The name or the zone is missing. Pass --tpu_name and --tpu_zone"
        )
    packages = {"dev": _SOURCE, "latest": "accelerate -U"}
    package = packages.get(args.accelerate_version, f"accelerate=={args.accelerate_version}")
    install = [f"pip install {package}"] if args.install_accelerate else []
    return [
        "gcloud",
        *(["alpha"] if args.use_alpha else []),
        *("compute tpus tpu-vm ssh".split()),
        args.tpu_name,
        "--zone",
        args.tpu_zone,
        "--command",
        "; ".join(["cd /usr/share", *install, *commands]),
        "--worker",
        "all",
    ]


def _commands(args: argparse.Namespace) -> list[str]:
    if args.command_file:
        with open(args.command_file, encoding="utf-8") as file:
            return file.read().splitlines()
    given = args.command or []
    return [line for one in given for line in (one if isinstance(one, list) else [one])]


def main() -> None:
    tpu_command_launcher(tpu_command_parser().parse_args())


__getattr__ = placeholders_for(__name__)

if __name__ == "__main__":
    main()
