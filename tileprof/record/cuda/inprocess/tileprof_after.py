# ruff: noqa: INP001 - runs inside other programs: a script that imports little
"""Doing something right after a module was imported, by any importer."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable
from typing import Any


def after_import(name: str, action: Callable[[Any], None]) -> None:
    """Call ``action`` with the module ``name`` when it has been imported, once."""
    sys.meta_path.insert(0, _After(name, action))


class _After(importlib.abc.MetaPathFinder):
    """Finds the module as the other finders would, and adds a step after its execution."""

    def __init__(self, name: str, action: Callable[[Any], None]) -> None:
        self.name = name
        self.action = action

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        spec = next(filter(None, (f.find_spec(name, path, target) for f in sys.meta_path)), None)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                execute(module)
                self.action(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
