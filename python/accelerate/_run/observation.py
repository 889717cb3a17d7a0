# SPDX-License-Identifier: Apache-2.0
"""The trackers and profiles of an `Accelerator`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from accelerate import _C
from accelerate._base import debug as _debug
from accelerate._base.verification import RECORDER
from accelerate._models.run_context import RunContext
from accelerate.state import AcceleratorState
from accelerate.tracking import (
    LOGGER_TYPE_TO_CLASS,
    GeneralTracker,
    JsonLinesTracker,
    filter_trackers,
)
from accelerate.utils.constants import PROFILE_PATTERN_NAME
from accelerate.utils.dataclasses import LoggerType, ProfileKwargs


class _TrackerStates(_C.Stateful):
    """The position of a run in its log files, with the same keys as in C++."""

    def __init__(self, tracker: JsonLinesTracker) -> None:
        super().__init__()
        self._tracker = tracker

    def state_dict(self) -> dict[str, Any]:
        return {"next_step": self._tracker.next_step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._tracker.resume(state["next_step"])


class Trackers:
    """The part of an `Accelerator` that passes values to trackers on the main process."""

    def __init__(self, context: RunContext, log_with: Any) -> None:
        """Selects the requested trackers that can be started."""
        self._context = context
        self.trackers: list[GeneralTracker] = []
        # True until `init_trackers`. Scripts disable tracking by not calling it.
        self._expects_trackers = True
        self.log_with: list[LoggerType | str | GeneralTracker] = filter_trackers(
            log_with, self._context.project.logging_dir
        )
        if log_with is not None and not self.log_with:
            _debug.warn(
                f"[Accelerator] `log_with={log_with}` was passed, but no supported trackers are "
                "currently installed.",
                stacklevel=3,
            )

    def init_trackers(
        self, project_name: str, config: dict | None = None, init_kwargs: dict | None = None
    ) -> None:
        """Starts the trackers of `log_with` under this name on the main process. `config` contains
        the hyperparameters. `init_kwargs` maps tracker names to additional arguments for their
        classes. Trackers of an earlier call are finished first."""
        self._expects_trackers = False
        if RECORDER is not None:
            return  # `accelerate verify` leaves no files.
        for kind in self.log_with:
            # Every rank writes its step times.
            if isinstance(kind, JsonLinesTracker):
                self._context.run.report.keep_journal(os.path.dirname(kind.path))
            elif str(kind) == JsonLinesTracker.name:
                folder = os.path.join(str(self._context.project.logging_dir), project_name)
                self._context.run.report.keep_journal(folder)
        if not self._context.state.is_main_process:
            return
        for tracker in self.trackers:
            if not any(kind is tracker for kind in self.log_with):  # Objects belong to the user.
                tracker.finish()
        self.trackers = []
        for kind in self.log_with:
            if isinstance(kind, GeneralTracker):
                self.trackers.append(kind)
                continue
            make = LOGGER_TYPE_TO_CLASS[str(kind)]
            arguments: list[Any] = [project_name]
            if make.requires_logging_directory:
                arguments.append(self._context.project.logging_dir)
            self.trackers.append(make(*arguments, **(init_kwargs or {}).get(str(kind), {})))
        for tracker in self.trackers:
            tracker.start()
        if config is not None:
            for tracker in self.trackers:
                tracker.store_init_configuration(config)
        for tracker in self.trackers:
            if isinstance(tracker, JsonLinesTracker):
                self._tracker_states = _TrackerStates(tracker)
                self._context.run.state.add("trackers", self._tracker_states)

    def mark(self, event: str) -> None:
        """Passes an event to trackers that show events on the time axis."""
        for tracker in self.trackers:
            if isinstance(tracker, JsonLinesTracker):
                tracker.mark(event)

    def get_tracker(self, name: str, unwrap: bool = False) -> Any:
        """Returns the tracker with this name or, with `unwrap`, the object of the service's own
        package. If there are no trackers, as on processes other than the main one, returns a
        tracker that does nothing."""
        if not self.trackers:
            return GeneralTracker(_blank=True)
        for tracker in self.trackers:
            if tracker.name == name:
                return tracker.tracker if unwrap else tracker
        raise ValueError(
            f"[get_tracker] {name} is not an available tracker stored inside the `Accelerator`. "
            f"Available: {', '.join(tracker.name for tracker in self.trackers)}"
        )

    def log(self, values: dict, step: int | None = None, log_kwargs: dict | None = None) -> None:
        """Passes the named values to every tracker on the main process. `log_kwargs` maps tracker
        names to additional arguments for their `log` methods."""
        if not self._context.state.is_main_process:
            return
        if not self.trackers and self._expects_trackers:
            self._expects_trackers = False
            _debug.warn(
                "[Accelerator.log] No tracker was started, so values are not logged. Pass log_with to "
                "Accelerator, and call init_trackers() before log()",
                stacklevel=3,
            )
        for tracker in self.trackers:
            tracker.log(values, step=step, **(log_kwargs or {}).get(tracker.name, {}))


@contextmanager
def profiling(state: AcceleratorState, handler: ProfileKwargs) -> Iterator[torch.profiler.profile]:
    """Implements `Accelerator.profile`."""
    with handler.build() as profiler:
        yield profiler
    if handler.output_trace_dir is not None:
        os.makedirs(handler.output_trace_dir, exist_ok=True)
        name = PROFILE_PATTERN_NAME.format(suffix=state.process_index)
        profiler.export_chrome_trace(os.path.join(handler.output_trace_dir, name))
