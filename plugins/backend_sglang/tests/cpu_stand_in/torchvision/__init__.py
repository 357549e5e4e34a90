"""Test-only names: SGLang imports image transforms for models that this stand-in never serves."""

from __future__ import annotations

import importlib.machinery
import sys
import types
from typing import ClassVar

__version__ = "0.0.0+stand-in"

_MODULES = (
    "transforms",
    "transforms.functional",
    "transforms.v2",
    "transforms.v2.functional",
    "io",
    "ops",
    "models",
)


class _Name(type):
    """A class whose every attribute is a placeholder, so that it serves as an enumeration too."""

    def __getattr__(cls, name: str) -> str:
        if name.startswith("__"):
            raise AttributeError(name)
        return f"{cls.__name__}.{name}"


class _Names(types.ModuleType):
    """A module in which every name exists."""

    __path__: ClassVar[list[str]] = []

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Name(name, (), {})


for _module in _MODULES:
    _full = f"{__name__}.{_module}"
    _made = _Names(_full)
    _made.__spec__ = importlib.machinery.ModuleSpec(_full, None, is_package=True)
    sys.modules[_full] = _made
    _parent, _, _child = _full.rpartition(".")
    setattr(sys.modules[_parent], _child, _made)
