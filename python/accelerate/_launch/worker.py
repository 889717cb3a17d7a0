# SPDX-License-Identifier: Apache-2.0
"""A worker of `accelerate.launchers`, which loads the function, calls it, and stores its result.

`accelerate launch` runs this script once per rank. An environment variable names a folder with
`task.json` (settings of the parent's interpreter) and `function.pkl`. Rank 0 writes `result.pkl`. A
traceback on stderr reaches the parent through the launcher.
"""

from __future__ import annotations

import os
import sys

# Python puts a script's own folder first. The script's sibling files would then hide user modules
# with the same names.
sys.path[:] = [entry for entry in sys.path if entry != os.path.dirname(os.path.abspath(__file__))]

import json  # noqa: E402
import linecache  # noqa: E402
import pickle  # noqa: E402
import traceback  # noqa: E402
import types  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

FOLDER_VARIABLE = "ACCELERATE_WORKER_FOLDER"
INTERRUPTED = 130


class ResultError(Exception):
    """Raised if rank 0's return value cannot be pickled."""


def take_over_interpreter(folder: Path) -> None:
    """Gives this process the modules, arguments and cell sources of its parent."""
    task = json.loads((folder / "task.json").read_text())
    sys.path[:] = task["path"]
    sys.argv[:] = task["argv"]
    for name, text in task["sources"].items():
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    if os.environ["LOCAL_RANK"] != "0":
        # tqdm reads the variable on import. One progress bar is enough.
        os.environ.setdefault("TQDM_DISABLE", "1")
    if os.environ["GROUP_WORLD_SIZE"] == "1":
        # Otherwise Gloo resolves the host name, possibly to an external address.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")


def write_whole(path: Path, content: bytes) -> None:
    """Writes atomically: readers never see a partial file, even if this process is killed."""
    unfinished = path.with_suffix(".part")
    unfinished.write_bytes(content)
    unfinished.rename(path)


def pickle_result(value: Any) -> bytes:
    """Pickles the return value. GPU tensors are sent as CPU tensors, because the parent may not
    want to use the GPU."""
    import io

    import cloudpickle

    class ResultPickler(cloudpickle.Pickler):
        def reducer_override(self, item: Any) -> Any:
            torch = sys.modules.get("torch")
            if torch and type(item) is torch.Tensor and item.is_cuda:
                moved = item.detach().cpu().requires_grad_(item.requires_grad)
                return moved.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
            return super().reducer_override(item)

    buffer = io.BytesIO()
    try:
        ResultPickler(buffer).dump(value)
    except Exception as error:
        raise ResultError(
            f"returned a value of type {type(value).__qualname__} that cannot be pickled "
            f"({error}). Return plain values, tensors or a state_dict"
        ) from None
    return buffer.getvalue()


def load_call(folder: Path) -> tuple[Any, tuple[Any, ...]]:
    """Returns the function and its arguments, in a `__main__` module with the definitions of the
    parent's cells. Pickle looks up their classes and functions there."""
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    with open(folder / "function.pkl", "rb") as file:
        function, args = pickle.load(file)
    plain = function
    while hasattr(plain, "func"):  # functools.partial
        plain = plain.func
    plain = getattr(plain, "__func__", plain)
    main.__dict__.update(getattr(plain, "__globals__", {}) | {"__name__": "__main__"})
    for kind in {type(arg) for arg in args}:
        if kind.__module__ == "__main__":
            setattr(main, kind.__qualname__, kind)
    return function, args


def run_function(folder: Path) -> None:
    function, args = load_call(folder)
    try:
        value = function(*args)
    except SystemExit as end:
        if end.code not in (None, 0):
            raise
        value = None
    if os.environ["RANK"] == "0":
        write_whole(folder / "result.pkl", pickle_result(value))


def print_traceback(error: BaseException) -> None:
    """Prints the traceback as Python does, but without the frames of this file."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename == __file__:
        frames = frames.tb_next
    if frames is None:
        # The launcher recognises errors by this line.
        sys.stderr.write("Traceback (most recent call last):\n")
    traceback.print_exception(type(error), error, frames)


def main() -> None:
    # Removed from the environment, because processes that the function starts are not workers.
    folder = Path(os.environ.pop(FOLDER_VARIABLE))
    try:
        take_over_interpreter(folder)
        run_function(folder)
        return
    except KeyboardInterrupt:
        code = INTERRUPTED
    except BaseException as error:  # noqa: BLE001 - whatever it is, the parent raises it
        code = 1
        print_traceback(error)
    sys.stdout.flush()
    sys.stderr.flush()
    # Do not wait for threads or exit hooks. If one of them waits for other ranks, those ranks would
    # not learn of the failure.
    os._exit(code)


if __name__ == "__main__":
    # Keeps the module alive when the function gets its own `__main__`.
    _OWN_MODULE = sys.modules["__main__"]
    main()
