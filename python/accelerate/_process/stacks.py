# SPDX-License-Identifier: Apache-2.0
"""Finds the position of the main thread, for reports of hanging runs (see
`docs/troubleshooting.md`)."""

from __future__ import annotations

import atexit
import linecache
import os
import re
import sysconfig
import threading
from typing import Any

import torch
import torch.distributed as dist

from accelerate import _C

_COLLECTIVES = os.path.join("torch", "distributed", "distributed_c10d.py")
# Folders whose code is not user code.
_LIBRARIES = (
    os.path.dirname(torch.__file__),
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))),
    sysconfig.get_path("stdlib"),
    "<frozen",
)
_is_watching = False


def watch_script() -> None:
    """Lets threads of the engine query the position of the main thread."""
    global _is_watching
    if not _is_watching:
        _is_watching = True
        # Unregister before the interpreter ends, because threads cannot query it afterwards.
        atexit.register(_C.unwatch_script)
        _C.watch_script(_take_stack)


def _take_stack() -> tuple[list[tuple[str, bool]], str, int]:
    """Returns the frames of the main thread, innermost first, and whether each frame is user code.
    Also returns the current collective of torch.distributed, if any, and an identifier of this
    call."""
    frames: list[tuple[str, bool]] = []
    operation, call = "", 0
    main = threading.main_thread().ident or 0
    for file, function, number, site, values in _C.running_frames(main, _COLLECTIVES, dist.Work):
        line = linecache.getline(file, number).strip()
        if file.endswith(_COLLECTIVES):
            if not function.startswith("_"):
                # Use the outermost one, because some collectives call others.
                operation = _describe(function, values)
                call = hash((site, _sequence_number())) % 2**64
        elif not frames:
            operation, call = _awaited_handle(line, site, values)
        text = f"{file}:{number} in {function}"
        frames.append((f"{text}: {line}" if line else text, not _is_library(file)))
    return frames, operation, call


def _awaited_handle(line: str, site: tuple[int, int], handles: dict[str, Any]) -> tuple[str, int]:
    """Recognises the `wait()` of a handle from `async_op=True`. It has no frame of its own, but the
    line of the innermost frame names the handle."""
    for name in re.findall(r"(\w+)\.wait\(", line):
        handle = handles.get(name)
        if handle is not None and not handle.is_completed():
            return f"wait() of '{name}'", hash((site, id(handle))) % 2**64
    return "", 0


def _is_library(filename: str) -> bool:
    return filename.startswith(_LIBRARIES) or f"{os.sep}site-packages{os.sep}" in filename


def _describe(name: str, values: dict[str, Any]) -> str:
    for argument in ("tensor", "input_tensor", "input", "output", "tensor_list"):
        value = values.get(argument)
        if isinstance(value, list) and value:
            value = value[0]
        if isinstance(value, torch.Tensor):
            dtype = str(value.dtype).removeprefix("torch.")
            return f"{name} {dtype}[{','.join(map(str, value.shape))}]"
    return name


def _sequence_number() -> int:
    group = dist.group.WORLD
    return 0 if group is None else group._get_sequence_number_for_group()
