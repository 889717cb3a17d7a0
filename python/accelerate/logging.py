# SPDX-License-Identifier: Apache-2.0
"""Logging in runs with several processes."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import MutableMapping
from typing import Any

from accelerate._placeholders import placeholders_for


class MultiProcessAdapter(logging.LoggerAdapter):
    """A logger that writes `[RANK i]` before each message, by default only on the main process.
    Calls also accept `main_process_only` (default True) and `in_order` (default False). With
    `in_order`, all processes write in rank order, so all must make the call.
    """

    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[str, MutableMapping[str, Any]]:
        # Imported here, because creating a logger must not import torch.
        from accelerate.state import PartialState

        msg, kwargs = super().process(msg, kwargs)
        # Report the line of the user's call, one frame above `log`.
        kwargs.setdefault("stacklevel", 2)
        return f"[RANK {PartialState().process_index}] {msg}", kwargs

    def log(self, level: int, msg: Any, *args: Any, **kwargs: Any) -> None:
        # Imported here, because creating a logger must not import torch.
        from accelerate.state import PartialState

        if PartialState._shared_state == {}:
            raise RuntimeError(
                "[get_logger] Logging needs an initialized process state. Create `Accelerator()` "
                "or `PartialState()` first"
            )
        main_process_only = kwargs.pop("main_process_only", True)
        in_order = kwargs.pop("in_order", False)
        if not self.isEnabledFor(level):
            return
        state = PartialState()
        msg, kwargs = self.process(msg, kwargs)
        if in_order:
            for rank in range(state.num_processes):
                if rank == state.process_index:
                    self.logger.log(level, msg, *args, **kwargs)
                state.wait_for_everyone()
        elif state.is_main_process or not main_process_only:
            self.logger.log(level, msg, *args, **kwargs)

    @functools.cache
    def warning_once(self, *args: Any, **kwargs: Any) -> None:
        """Like `warning`, but logs only the first call with these arguments."""
        self.warning(*args, **{"stacklevel": 3, **kwargs})


def get_logger(name: str, log_level: str | None = None) -> MultiProcessAdapter:
    """Returns the logger with this name for runs with several processes (docs/guide_python.md).

    `log_level`, or else the variable ACCELERATE_LOG_LEVEL, sets the level of this logger and of the
    root logger. If neither is set, levels are unchanged.
    """
    log_level = log_level or os.environ.get("ACCELERATE_LOG_LEVEL")
    logger = logging.getLogger(name)
    if log_level is not None:
        logger.setLevel(log_level.upper())
        logger.root.setLevel(log_level.upper())
    return MultiProcessAdapter(logger, {})


__getattr__ = placeholders_for(__name__)
