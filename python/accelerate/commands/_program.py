# SPDX-License-Identifier: Apache-2.0
"""Finds the `accelerate` program, queries its options and runs it.

Parsers are created from the program's own description, so each flag is defined only once. They know
only the names of options, and the program checks the values.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from .._launch.child import find_program
from .utils import CustomArgumentParser, _StoreConstAction

# The beginning of the program's message about an unknown option.
_NEVER_KNOWN = "[launch] unknown option"


# --- the options ------------------------------------------------------------------------------


@functools.cache
def _description() -> dict[str, Any]:
    description: dict[str, Any] = json.loads(output(["completion", "json"]))
    return description


def describe(*command: str) -> dict[str, Any]:
    """Returns the program's description of one of its commands. For example, `describe("config",
    "default")` describes `accelerate config default`."""
    found = _description()
    for name in command:
        found = found["commands"][name]
    return found


def make_parser(*command: str, subparsers: Any = None) -> argparse.ArgumentParser:
    """Returns a parser with the options of a command. With `subparsers`, it is added to them."""
    description = describe(*command)
    settings = {"description": description["help"], "allow_abbrev": False}
    parser: argparse.ArgumentParser = (
        _ProgramParser(f"accelerate {' '.join(command)}", **settings)
        if subparsers is None
        else subparsers.add_parser(command[-1], **settings)
    )
    groups: dict[str, Any] = {title: parser for title in ("", "Options", "Positionals")}
    for option in description["options"]:
        title = option["group"]
        if title not in groups:
            groups[title] = parser.add_argument_group(title)
        _add_option(groups[title], option)
    if description["takes_program"]:
        parser.add_argument("training_script", help="The program, or a .py script")
        parser.add_argument("training_script_args", nargs=argparse.REMAINDER, help="Its arguments")
    return parser


def _add_option(target: Any, option: dict[str, Any]) -> None:
    names = option["names"]
    # argparse treats a percent sign as the start of a format.
    text = option["help"].replace("%", "%%") if option["group"] else argparse.SUPPRESS
    if not names[0].startswith("-"):
        target.add_argument(names[0], help=text)
    elif not option["takes_value"]:
        _add_switch(target, option, text)
    else:
        settings: dict[str, Any] = {
            "dest": _attribute(option),
            "metavar": option["value_name"] or None,
            "required": option["is_required"],
            "help": text,
        }
        if option["adds_up"]:
            settings["action"] = "append"
        elif option["takes_several"]:
            settings["nargs"] = "+"
        elif option["is_number"]:
            settings["type"] = _number
        target.add_argument(*names, **settings)


def _add_switch(target: Any, option: dict[str, Any], text: str) -> None:
    attribute = _attribute(option)
    target.add_argument(
        *option["names"], dest=attribute, action="store_true", default=False, help=text
    )
    for word, value in (("true", True), ("false", False)):
        target.add_argument(
            *[f"{name}={word}" for name in option["names"] if name.startswith("--")],
            dest=attribute,
            action=_StoreConstAction,
            const=value,
            default=False,
            help=argparse.SUPPRESS,
        )


def _long_name(option: dict[str, Any]) -> str:
    return str(max(option["names"], key=len))


def _attribute(option: dict[str, Any]) -> str:
    return _long_name(option).lstrip("-").replace("-", "_")


def _number(text: str) -> int | str:
    """Converts a number. The program interprets words such as "auto"."""
    try:
        return int(text)
    except ValueError:
        return text


class _ProgramParser(CustomArgumentParser):
    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        namespace, unknown = self.parse_known_args(args, namespace)
        if unknown:
            self.error(_explain(self.prog.split()[1:], unknown[0]))
        return namespace


def _explain(command: list[str], flag: str) -> str:
    """Returns the program's message about an unknown option."""
    said = _ask([*command, flag]).stderr.strip().removeprefix("accelerate: ")
    return said or f"unknown option '{flag}'"


# --- the command line -------------------------------------------------------------------------


def command_line(args: argparse.Namespace, *command: str) -> list[str]:
    """Returns the program's command line that corresponds to a namespace."""
    description = describe(*command)
    chosen: set[str] = getattr(args, "nondefault", set())
    options: list[str] = []
    positionals: list[str] = []
    for option in description["options"]:
        name = _long_name(option)
        value = getattr(args, _attribute(option), None)
        if not name.startswith("-"):
            positionals.append(str(value))
        elif not option["takes_value"]:
            if value or _attribute(option) in chosen:
                options.append(f"{name}={str(bool(value)).lower()}")
        elif value is not None:
            values = [str(one) for one in (value if isinstance(value, list) else [value])]
            several = option["takes_several"] and not option["adds_up"]
            options += [name, *values] if several else [f"{name}={','.join(values)}"]
    words = [*command, *positionals, *options]
    if description["takes_program"]:
        words += ["--", str(args.training_script), *map(str, args.training_script_args)]
    return words


def refuse_foreign(args: argparse.Namespace) -> None:
    """Raises an error if user code requests another engine through an attribute, such as
    `args.use_megatron_lm = True`. Ignores attributes that have never been options."""
    known = {_attribute(option) for option in describe("launch")["options"]}
    known |= {"training_script", "training_script_args", "nondefault", "func"}
    for name, value in vars(args).items():
        if value and name not in known:
            said = _explain(["launch"], f"--{name}")
            if not said.startswith(_NEVER_KNOWN):
                raise NotImplementedError(said)


# --- running it -------------------------------------------------------------------------------


def environment() -> dict[str, str]:
    """Returns the environment for the program. Scripts are run by the current Python, even if its
    folder is not on the PATH."""
    folders = [str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]
    return {**os.environ, "PATH": os.pathsep.join(folders)}


def _ask(words: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        full_command(words),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=environment(),
    )


def output(words: list[str]) -> str:
    """Returns the output of the program. If it fails, raises a RuntimeError with its message."""
    answer = _ask(words)
    if answer.returncode != 0:
        raise RuntimeError(answer.stderr.strip().removeprefix("accelerate: "))
    return answer.stdout


def become(*command: str) -> NoReturn:
    """Replaces this process with the program, and passes the command line on."""
    program = find_program("commands")
    os.execve(program, [program, *command, *sys.argv[1:]], environment())


def full_command(words: list[str]) -> list[str]:
    """Returns the program, followed by its arguments."""
    return [find_program("commands"), *words]


def run(words: list[str], *, is_quiet: bool = False) -> None:
    """Runs the program and waits for it. If the program fails, raises
    `subprocess.CalledProcessError`, or exits if `is_quiet`. The program has already printed the
    reason."""
    command = full_command(words)
    with subprocess.Popen(command, env=environment()) as process:
        exit_code = _wait(process)
    if exit_code != 0:
        if is_quiet:
            sys.exit(1)
        raise subprocess.CalledProcessError(exit_code, command)


def _wait(process: subprocess.Popen[bytes]) -> int:
    """Waits for the program. A signal that only this process receives is forwarded to the program,
    which then stops the workers."""

    def pass_on(number: int, frame: FrameType | None) -> None:
        if not (number == signal.SIGINT and _terminal_signals_all()):
            process.send_signal(number)

    if threading.current_thread() is not threading.main_thread():
        return process.wait()
    kept = {
        number: signal.signal(number, pass_on)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    try:
        return process.wait()
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


def _terminal_signals_all() -> bool:
    """Whether Ctrl-C already reaches every process of this group."""
    try:
        with open("/dev/tty", "rb") as terminal:
            return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    except OSError:
        return False
