"""Parents in planes: the same window of each plane of a tensor, where the producer's tiles cut its memory in a line.

A convolution over NCHW memory reads a few rows of every channel, while an elementwise kernel before it writes the
tensor as one line of equal pieces. Tile ``t`` holds bytes ``[t * piece, (t + 1) * piece)``, and channels are ``pitch``
bytes apart, which is seldom a whole number of pieces: in the producer's grid the parents are stripes at an uneven
distance. On a circle of ``pitch`` bytes they are one arc, because a tile is a parent if and only if ``t * piece %
pitch`` lies in the window. Numbers stay integers, so that the answer is exact.

The other way round, a piece of a line that ends one plane and begins the next one reads the last and the first tiles of
a plane: an arc on a circle of that plane's tiles.
"""

from __future__ import annotations

import numpy as np

from tileprof.arrays import I64
from tileprof.arrays.ragged import ragged
from tileprof.trace.footprint import READ, Footprint

_MOST_PITCHES = 16
_MOST_PLANES = 4_000_000
"""Planes of all windows together that are counted; beyond that a pair stays unclassified rather than slow."""


def windows_of_planes(parent: I64, sizes: I64, producer: Footprint, consumer: Footprint) -> bool:
    """Return whether each parent set is one window of every plane that it reaches, at one pitch for all sets.

    ``parent`` holds the sets one after another, each ascending, ``sizes`` their lengths (at least 1).
    """
    piece = _piece(producer)
    if piece > 0 and any(_arcs(parent, sizes, piece, pitch) for pitch in _pitches(consumer, piece)):
        return True
    return _wraps(parent, sizes)


def _wraps(parent: I64, sizes: I64) -> bool:
    """Return whether sets in several runs reach from a plane's first tile to its last; planes have as many tiles."""
    starts = np.cumsum(sizes) - sizes
    low, high = parent[starts], parent[starts + sizes - 1]
    several = high - low + 1 > sizes
    plane = int((high - low + 1)[several].max(initial=0))
    same = ((high - low + 1)[several] == plane).all() and (low[several] % max(plane, 1) == 0).all()
    return bool(plane > 2 and same) and _arcs(parent, sizes, 1, plane)


def _piece(producer: Footprint) -> int:
    """Return bytes between the first bytes that neighbouring tiles write; 0 where they differ."""
    boxes = producer.boxes
    write_rows = np.flatnonzero(boxes.mode != READ)
    if len(write_rows) == 0 or producer.tiles < 3:
        return 0
    write_rows = write_rows[boxes.operand[write_rows] == boxes.operand[write_rows].min()]
    begin = np.full(producer.tiles, -1, np.int64)
    order = np.argsort(-boxes.offset[write_rows], kind="stable")  # the lowest offset is set last
    begin[boxes.tile[write_rows][order]] = boxes.offset[write_rows][order]
    steps = np.diff(begin)
    return int(steps[0]) if begin.min() >= 0 and steps[0] > 0 and (steps == steps[0]).all() else 0


def _pitches(consumer: Footprint, piece: int) -> list[int]:
    """Return distances of repeated reads above a piece, the longest first."""
    boxes = consumer.boxes
    levels = ((boxes.count_0, boxes.stride_0), (boxes.count_1, boxes.stride_1))
    pitches = np.unique(np.concatenate([stride[(count > 1) & (boxes.mode == READ)] for count, stride in levels]))
    return sorted((int(p) for p in pitches if p > piece), reverse=True)[:_MOST_PITCHES]


def _arcs(parent: I64, sizes: I64, piece: int, pitch: int) -> bool:
    """Return whether the tiles of the smallest arc around each set, between its ends, are the set and nothing else."""
    starts = np.cumsum(sizes) - sizes
    low, high = parent[starts], parent[starts + sizes - 1]
    owner, place = ragged(sizes)
    phase = parent * piece % pitch
    order = np.lexsort((phase, owner))
    phase = phase[order]
    # The widest gap on the circle lies outside of the arc; after the last phase of a set its first one follows.
    last = place == sizes[owner] - 1
    after = np.where(last, phase[starts][owner] + pitch, np.roll(phase, -1))
    gap = after - phase
    widest = np.maximum.reduceat(gap, starts)
    at = np.flatnonzero(gap == widest[owner])
    _, first = np.unique(owner[at], return_index=True)
    end = at[first]
    begins = after[end] % pitch
    length = (phase[end] - begins) % pitch
    # Tiles with a phase in [begins, begins + length], plane by plane.
    planes = (high * piece - begins) // pitch - (low * piece - begins - length) // pitch + 1
    if planes.sum() > _MOST_PLANES:
        return False
    owner, k = ragged(planes)
    plane = ((low * piece - begins - length) // pitch)[owner] + k
    from_byte = begins[owner] + plane * pitch
    first_tile = np.maximum(-(-from_byte // piece), low[owner])
    last_tile = np.minimum((from_byte + length[owner]) // piece, high[owner])
    counts = np.bincount(owner, np.maximum(last_tile - first_tile + 1, 0), minlength=len(sizes))
    return bool((counts == sizes).all() and (widest > piece).any())
