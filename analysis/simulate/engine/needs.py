"""The moments in its work at which a tile needs what its parents have written, and how early it can end for that;
compiled with the engine.
"""

from __future__ import annotations

from tileprof.analysis.bounds.compiled import internal
from tileprof.analysis.bounds.problem import Problem
from tileprof.arrays import F64


@internal
def known_end(p: Problem, link: int, s: int, life: float, ends: F64, signal_ns: float) -> float:
    """Return how early a consumer's tile can end for the parents in one set, all of which have ended."""
    r = p.relation[link]
    base = p.tile_base[p.producer[link]]
    earliest = 0.0
    for e in range(p.indptr[p.set_at[r] + s], p.indptr[p.set_at[r] + s + 1]):
        entry = p.entry_at[r] + e
        written = ends[base + p.parent[entry]] + signal_ns
        earliest = max(earliest, written + (1.0 - p.first[entry]) * life)
    return earliest


@internal
def rest_of(p: Problem, link: int, s: int, life: float, ends: F64, signal_ns: float, earliest: float) -> float:
    """Return work after the wait that decides `known_end`."""
    r = p.relation[link]
    base = p.tile_base[p.producer[link]]
    rest = 0.0
    for e in range(p.indptr[p.set_at[r] + s], p.indptr[p.set_at[r] + s + 1]):
        entry = p.entry_at[r] + e
        after = (1.0 - p.first[entry]) * life
        if ends[base + p.parent[entry]] + signal_ns + after == earliest:
            rest = max(rest, after)
    return rest


@internal
def first_need(p: Problem, launch: int, tile: int) -> float:
    """Return share of a tile's work before it first needs what an earlier launch wrote; 1 where it needs nothing."""
    least = 1.0
    for link in range(p.links_at[launch], p.links_at[launch + 1]):
        r = p.relation[link]
        k = p.set_of[p.tile_at[r] + tile - p.tile_base[launch]]
        if k >= 0:
            for e in range(p.indptr[p.set_at[r] + k], p.indptr[p.set_at[r] + k + 1]):
                least = min(least, p.first[p.entry_at[r] + e])
    return least
