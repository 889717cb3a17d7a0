# SPDX-License-Identifier: Apache-2.0
"""The questions of `accelerate config`."""

from __future__ import annotations

from accelerate._placeholders import placeholders_for
from accelerate.commands.config.config import get_user_input
from accelerate.commands.config.config_args import BaseConfig


def get_cluster_input() -> BaseConfig:
    """Like `get_user_input`: this package configures clusters only."""
    return get_user_input()


__getattr__ = placeholders_for(__name__)
