# SPDX-License-Identifier: Apache-2.0
"""Helpers for the parsers of `accelerate config`."""

from __future__ import annotations

import argparse
from typing import Any

from accelerate._placeholders import placeholders_for
from accelerate.utils.dataclasses import DynamoBackend

DYNAMO_BACKENDS = [backend.value for backend in DynamoBackend if backend.value != "NO"]


class SubcommandHelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Omits the parent's words "<command> [<args>]" from the usage of a subcommand."""

    def _format_usage(self, *args: Any, **kwargs: Any) -> str:
        return super()._format_usage(*args, **kwargs).replace("<command> [<args>] ", "")


__getattr__ = placeholders_for(__name__)
