# SPDX-License-Identifier: Apache-2.0
"""A parser that accepts options with `_` or `-`. `namespace.nondefault` contains the options given
on the command line."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from accelerate._placeholders import placeholders_for


def _spellings(names: Sequence[str]) -> list[str]:
    dashed = [name.replace("_", "-") for name in names if name.startswith("--")]
    return list(dict.fromkeys([*names, *dashed]))


class _StoreAction(argparse.Action):
    def __init__(self, option_strings: Sequence[str], *args: Any, **settings: Any) -> None:
        super().__init__(_spellings(option_strings), *args, **settings)

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        setattr(namespace, self.dest, values)
        namespace.nondefault = {*getattr(namespace, "nondefault", ()), self.dest}


class _StoreConstAction(_StoreAction):
    def __init__(
        self, option_strings: Sequence[str], dest: str, const: Any, **settings: Any
    ) -> None:
        super().__init__(option_strings, dest, nargs=0, const=const, **settings)

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        super().__call__(parser, namespace, self.const, option_string)


class _StoreTrueAction(_StoreConstAction):
    def __init__(self, option_strings: Sequence[str], dest: str, **settings: Any) -> None:
        super().__init__(option_strings, dest, True, **settings)


_ACTIONS = {None: _StoreAction, "store": _StoreAction, "store_true": _StoreTrueAction}


class CustomArgumentGroup(argparse._ArgumentGroup):
    def add_argument(self, *args: Any, **kwargs: Any) -> Any:
        # An absent boolean flag is False in a group, but None in the parser itself.
        unset = {"default": False} if kwargs.get("action") == "store_true" else {}
        return super().add_argument(*args, **{**unset, **_with_action(kwargs)})


class CustomArgumentParser(argparse.ArgumentParser):
    def add_argument(self, *args: Any, **kwargs: Any) -> Any:
        return super().add_argument(*args, **_with_action(kwargs))

    def add_argument_group(self, *args: Any, **kwargs: Any) -> Any:
        group = CustomArgumentGroup(self, *args, **kwargs)
        self._action_groups.append(group)
        return group


def _with_action(settings: dict[str, Any]) -> dict[str, Any]:
    action = settings.get("action")
    return {**settings, "action": _ACTIONS.get(action, action)}


__getattr__ = placeholders_for(__name__)
