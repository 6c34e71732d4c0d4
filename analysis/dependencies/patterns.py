"""The shape of all dependencies between two launches.

| pattern | every consumer tile with parents ... |
|---|---|
| one_to_one | has one parent, which has no other child |
| one_to_many | has one parent; parents have several children |
| all_to_all | has every producer tile as parent, and no consumer tile is without |
| row, column | has whole lines of the producer's grid: along the axis that runs fastest in memory, or across it |
| strided | has parents at a constant distance above 1 along one axis |
| many_to_one | has parents of its own, shared with no other consumer tile |
| group | has parents shared with all of its group and no other tile: disjoint all-to-all groups |
| window | has a contiguous box of the producer's grid, and neighbours' boxes overlap (stencils, halos); or the same |
|  | window of each plane of a tensor (the halo of a convolution in NCHW memory, see `planes`) |
| irregular | none of these |

The *map* gives, for each axis of the producer's grid, the parents' coordinates from the consumer's
(``p.y = c.y // 2``). It is written only where it reproduces every parent set exactly. Tiles are counted: one that is a
cluster stands at its first block, and its neighbour at the next cluster's. *Tightness* is edges over the edges of the
smallest boxes around the parent sets: 1 where the parents are boxes, or windows of planes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tileprof.analysis.dependencies.affine import fit
from tileprof.analysis.dependencies.blocks import EdgeBlock
from tileprof.analysis.dependencies.grouping import equal_lists
from tileprof.analysis.dependencies.planes import windows_of_planes
from tileprof.arrays.ragged import ragged
from tileprof.trace.footprint import READ, Footprint

_AXES = ("x", "y", "z")


@dataclass(frozen=True, slots=True)
class Pattern:
    """``name`` as in the table above, ``map`` "" where no affine map is exact, ``tightness`` in (0, 1]."""

    name: str
    map: str
    tightness: float


def classify(block: EdgeBlock, producer: Footprint, consumer: Footprint, *, mapped: bool = True) -> Pattern:
    """Return the pattern of a block with at least one edge; without its map where that is not asked for."""
    producer, consumer = _counted(producer), _counted(consumer)
    sets = _Sets(block, producer)
    axes = _line_axes(sets, producer)
    stride = _stride(sets)
    planes = False
    if sets.single and sets.alone:
        name = "one_to_one"
    elif sets.single:
        name = "one_to_many"
    elif len(sets.size) == 1 and sets.size[0] == producer.tiles and (block.set_of >= 0).all():
        name = "many_to_one" if consumer.tiles == 1 else "all_to_all"
    elif axes:
        name = "row" if _fastest_axis(producer) in axes else "column"
    elif stride > 1:
        name = "strided"
    elif sets.disjoint:
        name = "many_to_one" if sets.alone else "group"
    elif sets.boxes or sets.runs or (planes := windows_of_planes(sets.parent, sets.size, producer, consumer)):
        name = "window"
    else:
        name = "irregular"
    covered = int((sets.volume * sets.uses).sum())
    tightness = float((sets.size * sets.uses).sum()) / covered
    expression = _map(block, sets, stride, consumer) if mapped else ""
    return Pattern(name, expression, 1.0 if name == "strided" or planes else tightness)


def _counted(footprint: Footprint) -> Footprint:
    """Return places in steps of 1 along each axis, where those of clusters are further apart."""
    steps = np.maximum(np.gcd.reduce(footprint.block, axis=0), 1)
    return footprint if (steps == 1).all() else replace(footprint, block=footprint.block // steps)


class _Sets:
    """Parent sets without bytes and times, each once, with their extent in the producer's grid."""

    def __init__(self, block: EdgeBlock, producer: Footprint) -> None:
        group, first_of_group = equal_lists(block.indptr, (block.parent,))
        self.of_block_set = group
        self.uses = np.bincount(group, weights=block.uses(), minlength=len(first_of_group)).astype(np.int64)
        self.size = np.diff(block.indptr)[first_of_group]
        owner, place = ragged(self.size)
        self.parent = block.parent[block.indptr[first_of_group][owner] + place].astype(np.int64)
        self.starts = np.cumsum(self.size) - self.size
        self.at = producer.block[self.parent].astype(np.int64)
        self.low = np.minimum.reduceat(self.at, self.starts)
        self.high = np.maximum.reduceat(self.at, self.starts)
        self.volume = np.prod(self.high - self.low + 1, axis=1)
        self.grid = producer.block.max(axis=0).astype(np.int64) + 1
        children = np.bincount(self.parent, weights=np.repeat(self.uses, self.size))
        times = np.bincount(self.parent)
        self.single = bool((self.size == 1).all())
        self.alone = bool((children <= 1).all())
        self.disjoint = bool((times <= 1).all())
        self.boxes = bool((self.volume == self.size).all())
        first, last = (np.asarray(f.reduceat(self.parent, self.starts)) for f in (np.minimum, np.maximum))
        self.runs = bool((last - first + 1 == self.size).all())


def _line_axes(sets: _Sets, producer: Footprint) -> set[int]:
    """Return the axes along which every parent set is a whole line, if it is a single point along all others."""
    wide = [a for a in range(3) if sets.grid[a] > 1]
    if int(np.prod(sets.grid)) != producer.tiles or not sets.boxes:
        return set()
    whole = {a for a in wide if (sets.low[:, a] == 0).all() and (sets.high[:, a] == sets.grid[a] - 1).all()}
    point = {a for a in wide if (sets.low[:, a] == sets.high[:, a]).all()}
    return whole if whole and point and len(whole) + len(point) == len(wide) else set()


def _stride(sets: _Sets) -> int:
    """Return the constant distance above 1 between parents along the one axis in which they differ, 0 where there is
    none.
    """
    extent = sets.high - sets.low
    several = sets.size > 1
    axes = np.flatnonzero(extent.max(axis=0) > 0)
    if len(axes) != 1 or not several.any():
        return 0
    axis = int(axes[0])
    owner = np.repeat(np.arange(len(sets.size)), sets.size)
    at = sets.at[np.lexsort((sets.at[:, axis], owner)), axis]
    steps = np.diff(at)[owner[1:] == owner[:-1]]
    return int(steps[0]) if steps[0] > 1 and (steps == steps[0]).all() else 0


def _fastest_axis(producer: Footprint) -> int:
    """Return the grid axis along which neighbouring tiles write nearest to each other."""
    boxes = producer.boxes
    write_rows = np.flatnonzero(boxes.mode != READ)
    wide = [a for a in range(3) if producer.block[:, a].max() > 0]
    if len(write_rows) == 0 or not wide:
        return 0
    slot = boxes.operand[write_rows].min()
    write_rows = write_rows[boxes.operand[write_rows] == slot]
    begin = np.full(producer.tiles, np.iinfo(np.int64).max)
    np.minimum.at(begin, boxes.tile[write_rows], boxes.offset[write_rows])
    distance = {}
    for axis in wide:
        line = np.flatnonzero((np.delete(producer.block, axis, axis=1) == 0).all(axis=1))
        line = line[np.argsort(producer.block[line, axis], kind="stable")]
        distance[axis] = abs(int(begin[line[1]]) - int(begin[line[0]])) if len(line) > 1 else np.iinfo(np.int64).max
    return min(distance, key=lambda a: distance[a])


def _map(block: EdgeBlock, sets: _Sets, stride: int, consumer: Footprint) -> str:
    if not sets.boxes and not stride:
        return ""
    tiles = np.flatnonzero(block.set_of >= 0)
    which = sets.of_block_set[block.set_of[tiles]]
    coordinates, names = _coordinates(consumer, tiles)
    parts = []
    for axis in range(3):
        if sets.grid[axis] == 1:
            continue
        top = int(sets.grid[axis]) - 1
        low = fit(sets.low[which, axis], coordinates, names, top)
        high = fit(sets.high[which, axis], coordinates, names, top)
        if low is None or high is None:
            return ""
        if low != high:
            low = f"{low}..{high}"
            if stride:
                low += f" step {stride}"
        parts.append(f"p.{_AXES[axis]} = {low}")
    return "; ".join(parts)


def _coordinates(consumer: Footprint, tiles: NDArray[np.int64]) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Return grid coordinates of consumer tiles along the axes that vary, and the tile number ``t`` where
    several do.
    """
    block = consumer.block[tiles].astype(np.int64)
    axes = [a for a in range(3) if consumer.block[:, a].max() > 0]
    columns = [block[:, a] for a in axes]
    names = [f"c.{_AXES[a]}" for a in axes]
    if len(axes) != 1:
        columns.append(tiles)
        names.append("c.t")
    return np.stack(columns, axis=1), tuple(names)
