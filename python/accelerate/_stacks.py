# SPDX-License-Identifier: Apache-2.0
"""Where the main thread is, for whoever asks a run that stands still; see
`docs/troubleshooting.md`."""

from __future__ import annotations

import atexit
import linecache
import os
import re
import sys
import sysconfig
import threading
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist

from accelerate import _C

_COLLECTIVES = os.path.join("torch", "distributed", "distributed_c10d.py")
# Folders whose code is not the user's.
_LIBRARIES = (
    os.path.dirname(torch.__file__),
    os.path.dirname(os.path.abspath(__file__)),
    sysconfig.get_path("stdlib"),
    "<frozen",
)
_is_watching = False


def watch_script() -> None:
    """From now on threads of the engine may ask where the main thread is."""
    global _is_watching
    if not _is_watching:
        _is_watching = True
        # Before the interpreter ends, after which nobody can ask it.
        atexit.register(_C.unwatch_script)
        _C.watch_script(_take_stack)


def _take_stack() -> tuple[list[tuple[str, bool]], str, int]:
    """The frames of the main thread, the innermost first, and whether they are the user's; the
    collective of torch.distributed's that it is in, or nothing; and what tells this call of it
    from another."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    frames: list[tuple[str, bool]] = []
    operation, call = ("", 0) if frame is None else _awaited_handle(frame)
    while frame is not None:
        code = frame.f_code
        if code.co_filename.endswith(_COLLECTIVES) and not code.co_name.startswith("_"):
            # The outermost: collectives are made of others.
            operation = _describe(frame)
            call = hash((id(frame), frame.f_lasti, _sequence_number())) % 2**64
        frames.append((_text(frame), not _is_library(code.co_filename)))
        frame = frame.f_back
    return frames, operation, call


def _awaited_handle(frame: FrameType) -> tuple[str, int]:
    """The `wait()` of a handle that `async_op=True` gave: it has no frame of its own, but the line
    of the innermost one names the handle."""
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
    for name in re.findall(r"(\w+)\.wait\(", line):
        handle = frame.f_locals.get(name, frame.f_globals.get(name))
        if isinstance(handle, dist.Work) and not handle.is_completed():
            return f"wait() of '{name}'", hash((id(frame), frame.f_lasti, id(handle))) % 2**64
    return "", 0


def _text(frame: FrameType) -> str:
    code = frame.f_code
    line = linecache.getline(code.co_filename, frame.f_lineno).strip()
    place = f"{code.co_filename}:{frame.f_lineno} in {code.co_name}"
    return f"{place}: {line}" if line else place


def _is_library(filename: str) -> bool:
    return filename.startswith(_LIBRARIES) or f"{os.sep}site-packages{os.sep}" in filename


def _describe(frame: FrameType) -> str:
    name = frame.f_code.co_name
    for argument in ("tensor", "input_tensor", "input", "output", "tensor_list"):
        value: Any = frame.f_locals.get(argument)
        if isinstance(value, list) and value:
            value = value[0]
        if isinstance(value, torch.Tensor):
            dtype = str(value.dtype).removeprefix("torch.")
            return f"{name} {dtype}[{','.join(map(str, value.shape))}]"
    return name


def _sequence_number() -> int:
    group = dist.group.WORLD
    return 0 if group is None else group._get_sequence_number_for_group()
