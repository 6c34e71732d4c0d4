"""Kernels that say where their shape comes from."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tileprof.record.model.tile_model import Kernel
    from tileprof.trace.sources import ShapeSource


def with_source(kernels: Iterable[Kernel], source: ShapeSource) -> list[Kernel]:
    """Return the kernels of one call, all of which got their shapes from ``source``."""
    return [replace(kernel, shape_source=source) for kernel in kernels]
