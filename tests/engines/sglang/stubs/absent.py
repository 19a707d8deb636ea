"""Packages that SGLang imports and, on a CPU engine, never uses: every name is there, and using one raises."""

from __future__ import annotations

import importlib.util
import sys
import types
from importlib.machinery import ModuleSpec
from typing import Any


class Absent(type):
    """A class that stands for anything: its attributes are such classes, calling it raises."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Absent(f"{cls.__name__}.{name}", (), {})

    def __call__(cls, *given: object, **named: object) -> Any:
        raise RuntimeError(f"{cls.__name__} is not there on a CPU engine")


class _Modules:
    """Finds every submodule of a package."""

    def __init__(self, package: str) -> None:
        self.prefix = f"{package}."

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if not name.startswith(self.prefix):
            return None
        return importlib.util.spec_from_loader(name, self, is_package=True)  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        return types.ModuleType(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        fill(module)


def fill(module: types.ModuleType) -> None:
    def name_in(name: str) -> Absent:
        if name.startswith("__"):
            raise AttributeError(name)
        return Absent(f"{module.__name__}.{name}", (), {})

    module.__getattr__ = name_in  # type: ignore[method-assign]


def package(name: str) -> None:
    """Makes an imported package one that has everything."""
    fill(sys.modules[name])
    sys.meta_path.insert(0, _Modules(name))  # type: ignore[arg-type]
