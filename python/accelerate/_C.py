# SPDX-License-Identifier: Apache-2.0
"""Loads the compiled engine for the installed torch. Importing this module returns the module in
`_engines/torch_MAJOR_MINOR`."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
from types import ModuleType

import torch  # Imported first, because the engine uses libraries that torch loads.

_PACKAGE = sys.modules[__name__.partition(".")[0]]
# An editable installation has two folders, one with the sources and one with the compiled files.
_FOLDERS = [os.path.join(path, "_engines") for path in _PACKAGE.__path__]


def _engine_of(release: str) -> importlib.machinery.ModuleSpec | None:
    """Returns the engine for a torch release ("2.15") and this Python version."""
    name = "torch_" + release.replace(".", "_")
    paths = [os.path.join(folder, name) for folder in _FOLDERS]
    return importlib.machinery.PathFinder.find_spec(__name__, paths)


def _releases() -> list[str]:
    names = {name for folder in filter(os.path.isdir, _FOLDERS) for name in os.listdir(folder)}
    releases = [name.removeprefix("torch_").replace("_", ".") for name in names]
    return sorted(filter(_engine_of, releases), key=lambda release: int(release.split(".")[1]))


def _refuse(reason: str) -> ImportError:
    return ImportError(f"accelerate {_PACKAGE.__version__} {reason}", name=__name__)


def _load() -> ModuleType:
    spec = _engine_of(".".join(torch.__version__.split(".")[:2]))
    if spec is None or spec.loader is None:
        supported = ", ".join(_releases())
        if not supported:
            running = ".".join(map(str, sys.version_info[:2]))
            raise _refuse(
                f"was installed for a version of Python other than {running}. Run the version for "
                f"which it was installed, or install accelerate again with {sys.executable} -m pip"
            )
        raise _refuse(
            f"supports torch {supported}, but torch {torch.__version__} is installed. Install a "
            "supported version of torch, or a different version of accelerate"
        )
    engine = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(engine)
    cuda = torch.version.cuda
    if cuda and engine.cuda_version not in (0, int(cuda.split(".")[0])):
        raise _refuse(
            f"supports torch builds for CUDA {engine.cuda_version} or the CPU, but the installed "
            f"torch is built for CUDA {cuda}. Install a matching version of torch, or build "
            "accelerate with the installed version (pip install .)"
        )
    return engine


sys.modules[__name__] = _load()
