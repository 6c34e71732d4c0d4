"""Kernels whose tiles own whole lines along one dimension: softmax, scans, sorts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tileprof.record.model.tile_model import Kernel, Operand
from tileprof.record.model.tiles.foundations.sketch import READ, WRITE, Sketch, Span, blocks, ranges


def row_blocks(
    name: str,
    reads: Sequence[Operand],
    writes: Sequence[Operand],
    dim: int,
    per_block: int,
    threads: int | tuple[int, int, int],
    *,
    whole: Sequence[Operand] = (),
    **fields: Any,
) -> Kernel:
    """``per_block`` consecutive lines along ``dim`` per tile; operands agree in all other dimensions.

    ``whole`` operands are read whole by every tile.
    """
    rest = tuple(d for d in range(len(reads[0].shape)) if d != dim)
    rows = int(np.prod([reads[0].shape[d] for d in rest], dtype=np.int64))
    sketch = Sketch(blocks(rows, per_block))
    tile, lo, hi = ranges(rows, per_block)
    _touch(sketch, reads, writes, whole, tile, Span(rest, lo, hi))
    return sketch.kernel(name, threads=threads, **fields)


def strips(
    name: str,
    reads: Sequence[Operand],
    writes: Sequence[Operand],
    dim: int,
    width: int,
    threads: int | tuple[int, int, int],
    *,
    whole: Sequence[Operand] = (),
    **fields: Any,
) -> Kernel:
    """Tile (x, y): outer index x, and ``width`` neighbouring lines of the dimensions inside ``dim``, strip y."""
    shape = reads[0].shape
    outer = int(np.prod(shape[:dim], dtype=np.int64))
    inner = int(np.prod(shape[dim + 1 :], dtype=np.int64))
    count = blocks(inner, width)
    sketch = Sketch(outer, count)
    tile = np.arange(outer * count)
    row, low = tile % outer, tile // outer * width
    before, behind = tuple(range(dim)), tuple(range(dim + 1, len(shape)))
    _touch(
        sketch, reads, writes, whole, tile,
        Span(before, row, row + 1), Span(behind, low, np.minimum(low + width, inner)),
    )  # fmt: skip
    return sketch.kernel(name, threads=threads, **fields)


def inner_size(operand: Operand, dim: int) -> int:
    """Return elements of the dimensions inside ``dim``."""
    return int(np.prod(operand.shape[dim + 1 :], dtype=np.int64))


def _touch(
    sketch: Sketch,
    reads: Sequence[Operand],
    writes: Sequence[Operand],
    whole: Sequence[Operand],
    tile: Any,
    *spans: Span,
) -> None:
    for operand, mode in [(r, READ) for r in reads] + [(w, WRITE) for w in writes]:
        sketch.span(operand, mode, tile, *spans)
    for operand in whole:
        sketch.whole(operand, READ)
