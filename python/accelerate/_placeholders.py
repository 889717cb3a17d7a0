# SPDX-License-Identifier: Apache-2.0
"""Makes every name of Hugging Face Accelerate importable. An unsupported name is a placeholder that
raises an error with an explanation when it is used (docs/guide_python.md).

The table `_original_names.txt` lists the names. Three components read it:

- `placeholders_for(__name__)` is the `__getattr__` of a module. It imports re-exported names from
  the module that defines them, and creates placeholders for undefined names.
- The finder creates the modules in the table that have no file. It is last in `sys.meta_path`, so a
  module's file takes precedence over its placeholders.
- `Placeholder` is the type of a placeholder.
"""

from __future__ import annotations

import functools
import importlib
import importlib.machinery
import os
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, NoReturn, Union

_ROOT = __name__.partition(".")[0]
_ERROR_BASES = {"error": Exception, "warning": UserWarning}


class NotThereYet(NotImplementedError, AttributeError):
    """Raised when an unsupported name is used. It is also an AttributeError, so `hasattr` returns
    False."""


class _Names:
    """The names of one module: its own names by kind, and the modules that define re-exported
    names."""

    def __init__(self) -> None:
        self.own: dict[str, str] = {}
        self.passed_on: dict[str, tuple[str, str]] = {}


@functools.cache
def _table() -> dict[str, _Names]:
    modules: dict[str, _Names] = {}
    path = os.path.join(os.path.dirname(__file__), "_original_names.txt")
    with open(path, encoding="utf-8") as file:
        for line in file:
            kind, *words = line.split()
            if kind.startswith("["):
                names = modules[kind.strip("[]")] = _Names()
            elif kind == "from":
                for word in words[1:]:
                    name, _, original = word.partition("=")
                    names.passed_on[name] = (words[0], original or name)
            elif kind != "#":
                names.own.update(dict.fromkeys(words, kind))
    return modules


def names_of(module: str) -> list[str]:
    """Returns the names that the original's module of this name exports, sorted."""
    names = _table()[module]
    return sorted([*names.own, *names.passed_on])


def placeholders_for(module: str) -> Callable[[str], Any]:
    """Returns the `__getattr__` of the module of this name. The last line of each module of the
    package is `__getattr__ = placeholders_for(__name__)`. A name that neither the module nor the
    original has raises AttributeError as usual.
    """

    def __getattr__(name: str) -> Any:
        value = _resolve(module, name)
        setattr(sys.modules[module], name, value)
        return value

    return __getattr__


def _resolve(module: str, name: str) -> Any:
    names = _table().get(module)
    if names is not None:
        if name in names.passed_on:
            origin, original = names.passed_on[name]
            return getattr(importlib.import_module(origin), original)
        if name in names.own:
            return _placeholder(module, name, names.own[name])
        if f"{module}.{name}" in _table():
            return importlib.import_module(f"{module}.{name}")
        if name == "__all__":
            return names_of(module)
    raise AttributeError(f"module {module!r} has no attribute {name!r}", name=name)


@functools.cache
def _placeholder(module: str, name: str, kind: str) -> Any:
    if kind in _ERROR_BASES:
        return _placeholder_error(module, name, _ERROR_BASES[kind])
    return (_ValuePlaceholder if kind == "value" else Placeholder)(module, name)


# What to use instead of unsupported names, by a part of the unsupported name's path.
_INSTEAD = {
    "fp8": "Use mixed_precision='bf16'. ",
    "transformer_engine": "Use mixed_precision='bf16'. ",
    "RecipeKwargs": "Use mixed_precision='bf16'. ",
    "utils.ao": "Use mixed_precision='bf16'. ",
    "egatron": "Use FullyShardedDataParallelPlugin or DeepSpeedPlugin. ",
    "bnb": "Load the model without quantization. ",
    "BnbQuantizationConfig": "Load the model without quantization. ",
    "tpu": "Use GPUs or CPUs. ",
    "xla": "Use GPUs or CPUs. ",
}


def _refuse(where: str) -> NoReturn:
    version = sys.modules[_ROOT].__version__
    instead = next((text for pattern, text in _INSTEAD.items() if pattern in where), "")
    raise NotImplementedError(
        f"{where} is not supported in accelerate {version}. {instead}docs/guide_python.md lists "
        "what is supported"
    )


def is_placeholder(value: Any) -> bool:
    """Whether a value is a placeholder for an unsupported name."""
    return isinstance(value, Placeholder) or (
        isinstance(value, type) and vars(value).get("_is_placeholder", False)
    )


def _placeholder_error(module: str, name: str, base: type) -> type:
    """Returns a real class, because `except` and warning filters require one. It is never
    raised."""
    where = f"{module}.{name}"

    def refuse_call(cls: type, *args: Any, **kwargs: Any) -> NoReturn:
        _refuse(where)

    def refuse_subclass(cls: type, **kwargs: Any) -> NoReturn:
        _refuse(where)

    return type(
        name,
        (base,),
        {
            "__module__": module,
            "_is_placeholder": True,
            "__new__": refuse_call,
            "__init_subclass__": classmethod(refuse_subclass),
        },
    )


class Placeholder:
    """Stands for an unsupported class or function. It can be imported, used in annotations, pickled
    and passed to `isinstance`. Any other use raises NotImplementedError.
    """

    def __init__(self, module: str, name: str) -> None:
        self.__dict__.update(__module__=module, __name__=name, __qualname__=name)

    def _refuse(self) -> NoReturn:
        _refuse(f"{self.__module__}.{self.__name__}")

    def __repr__(self) -> str:
        return f"<placeholder for {self.__module__}.{self.__name__}>"

    def __reduce__(self) -> tuple[Callable[[str, str], Any], tuple[str, str]]:
        # Pickled by name, because the real class may exist where it is loaded.
        return _load, (self.__module__, self.__name__)

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        self._refuse()

    def __mro_entries__(self, bases: tuple[Any, ...]) -> NoReturn:
        self._refuse()

    def __getattr__(self, name: str) -> NoReturn:
        # Protocols and `inspect` probe special names. This must not raise NotImplementedError.
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(f"{self!r} has no attribute {name!r}", name=name, obj=self)
        try:
            self._refuse()
        except NotImplementedError as error:
            raise NotThereYet(*error.args) from None

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        self._refuse()

    def __getitem__(self, key: Any) -> NoReturn:
        self._refuse()

    def __iter__(self) -> NoReturn:
        self._refuse()

    def __contains__(self, item: Any) -> NoReturn:
        self._refuse()

    # No object can be an instance of an unsupported class, so False is correct. Libraries make such
    # checks.
    def __instancecheck__(self, instance: Any) -> bool:
        return False

    def __subclasscheck__(self, subclass: type) -> bool:
        return False

    def __or__(self, other: Any) -> Any:
        return Union[self, other]

    def __ror__(self, other: Any) -> Any:
        return Union[other, self]


class _ValuePlaceholder(Placeholder):
    """Stands for a constant. Any use of its value raises an error."""

    __hash__ = Placeholder.__hash__

    def _read(self, *args: Any) -> NoReturn:
        self._refuse()

    __bool__ = __len__ = __str__ = __format__ = __fspath__ = _read
    __lt__ = __le__ = __gt__ = __ge__ = __add__ = __radd__ = _read

    def __eq__(self, other: object) -> bool:
        # `typing` compares its arguments with its own special forms.
        if isinstance(other, (str, bytes, int, float, tuple, list, dict, set)):
            self._refuse()
        return self is other


def _load(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name)


class _PlaceholderLoader:
    """Loads a module that has no file. All its names come from the table."""

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        module.__doc__ = f"Placeholders for {module.__name__} (docs/guide_python.md)."
        module.__getattr__ = placeholders_for(module.__name__)
        module.__dir__ = functools.partial(names_of, module.__name__)

    def get_code(self, name: str) -> NoReturn:
        # `python -m` prints an ImportError as one line.
        try:
            _refuse(name)
        except NotImplementedError as error:
            raise ImportError(str(error), name=name) from None


class _PlaceholderFinder:
    """Finds the modules in the table. It is called only if no file was found."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not name.startswith(f"{_ROOT}.") or name not in _table():
            return None
        is_package = any(other.startswith(f"{name}.") for other in _table())
        return importlib.machinery.ModuleSpec(name, _PlaceholderLoader(), is_package=is_package)


def install_finder() -> None:
    """Makes modules without a file importable. Idempotent."""
    if _PlaceholderFinder not in sys.meta_path:
        sys.meta_path.append(_PlaceholderFinder)
