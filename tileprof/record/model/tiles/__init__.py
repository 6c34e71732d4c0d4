"""Tile models of ATen operators, one folder per family; importing a module registers its models."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache


@cache
def load_all() -> None:
    """Import every module below this package, so that `tileprof.record.model.tile_model.find` knows all models."""
    for module in pkgutil.walk_packages(__path__, f"{__name__}."):
        importlib.import_module(module.name)
