# SPDX-License-Identifier: Apache-2.0
"""The questions of `accelerate config`."""

from __future__ import annotations

from accelerate._placeholders import placeholders_for
from accelerate.commands.config.config import get_user_input
from accelerate.commands.config.config_args import BaseConfig


def get_cluster_input() -> BaseConfig:
    """The same as `get_user_input`, because this package configures only clusters."""
    return get_user_input()


__getattr__ = placeholders_for(__name__)
