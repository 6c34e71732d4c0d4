"""Tile models of ATen operators, one module a family; importing a module registers its models."""

from __future__ import annotations

import importlib
import pkgutil


def load_all() -> None:
    """Import every module of this package, so that `tileprof.record.model.call.find` knows all models."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
