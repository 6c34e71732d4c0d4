"""Longest paths through the tile graph: how early each tile can end, how much must follow it.

*Ready-gated*: a tile is dispatched when all its parents have ended, so ``begin >= end of every parent``.

*Wait-inside*: a tile may be dispatched early and wait inside, at the access that needs the bytes. A tile works
through its accesses in recorded order; a wait only stretches it. With the producer's bytes written after
``last`` of its work and the consumer's need after ``first`` of its own::

    end_c >= written_p + (1 - first) * duration_c
    written_p >= end_p - (1 - last) * duration_p     if all needs of p come before that access
    written_p >= last * duration_p                   otherwise: p may wait for something later on

The second form of ``written_p`` is weaker than the truth and therefore safe in a lower bound. So is an unknown
``last`` read as 0, an unknown ``first`` read as 1, and the longest tile's duration taken for all tiles that
wait for the same set of parents.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tileprof.analysis.bounds.by_reference import by_reference
from tileprof.analysis.bounds.compiled import without_allocation
from tileprof.analysis.bounds.problem import Problem


class Paths(NamedTuple):
    """Longest paths, ns. ``head_ns`` and ``tail_ns`` ``[launches]`` are ready-gated and the least over a
    launch's tiles: no tile of it can begin before, nor less can follow each of them.
    """

    ready_ns: float
    wait_inside_ns: float
    head_ns: NDArray[np.float64]
    tail_ns: NDArray[np.float64]


def paths(p: Problem) -> Paths:
    """Return both critical paths, heads and tails; O(tiles + entries of each link's parent sets)."""
    ends, inside, heads = _forward(p)
    return Paths(float(ends.max(initial=0.0)), float(inside.max(initial=0.0)), heads, _backward(p, np.zeros(p.tiles)))


def ready_times(p: Problem) -> NDArray[np.float64]:
    """Return ``[tiles]`` earliest ready-gated end of every tile, ns."""
    return _forward(p)[0]


def tails(p: Problem) -> NDArray[np.float64]:
    """Return ``[tiles]`` ready-gated time that must follow a tile's end before everything is done, ns."""
    tail = np.zeros(p.tiles)
    _backward(p, tail)
    return tail


def _forward(p: Problem) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return ready-gated ends, wait-inside ends, heads."""
    ends, inside, need = np.empty(p.tiles), np.empty(p.tiles), np.zeros(p.tiles, np.float32)
    heads, a_set = np.zeros(len(p.launch)), np.empty((4, int(p.sets.max(initial=1))))
    _walk(by_reference(p), ends, inside, need, heads, a_set)
    return ends, inside, heads


def _backward(p: Problem, tail: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return least tail of each launch; ``tail`` ``[tiles]`` starts at zero and is filled in."""
    tails = np.zeros(len(p.launch))
    _walk_back(by_reference(p), tail, tails, np.empty(int(p.sets.max(initial=1))))
    return tails


@without_allocation
def _walk(
    p: Problem,
    ends: NDArray[np.float64],
    inside: NDArray[np.float64],
    need: NDArray[np.float32],
    heads: NDArray[np.float64],
    a_set: NDArray[np.float64],
) -> None:
    """``need``: when in its work a tile last waits; ``a_set``: scratch, four values a set."""
    ready_of, begin_of, need_of, longest = a_set[0], a_set[1], a_set[2], a_set[3]
    for c in range(len(p.launch)):
        base, count = p.tile_base[c], p.tile_base[c + 1] - p.tile_base[c]
        life = p.ns[p.ns_at[c] : p.ns_at[c] + count]
        ends[base : base + count] = 0.0  # holds begins until all links are seen
        inside[base : base + count] = 0.0
        for link in range(p.links_at[c], p.links_at[c + 1]):
            r, producer = p.relation[link], p.producer[link]
            set_of = p.set_of[p.tile_at[r] : p.tile_at[r] + count]
            producer_base, producer_ns = p.tile_base[producer], p.ns_at[producer]
            longest[: p.sets[r]] = 0.0
            for t in range(count):
                if set_of[t] >= 0 and life[t] > longest[set_of[t]]:
                    longest[set_of[t]] = life[t]
            for s in range(p.sets[r]):
                ready, begin, latest = 0.0, 0.0, np.float32(0.0)
                for e in range(p.indptr[p.set_at[r] + s], p.indptr[p.set_at[r] + s + 1]):
                    entry = p.entry_at[r] + e
                    parent = producer_base + p.parent[entry]
                    lived, last, first = p.ns[producer_ns + p.parent[entry]], p.last[entry], p.first[entry]
                    ready = max(ready, ends[parent])
                    written = inside[parent] - (1.0 - last) * lived if last >= need[parent] else last * lived
                    begin = max(begin, written - first * longest[s])
                    latest = max(latest, first)
                ready_of[s], begin_of[s], need_of[s] = ready, begin, latest
            for t in range(count):
                s = set_of[t]
                if s >= 0:
                    ends[base + t] = max(ends[base + t], ready_of[s])
                    inside[base + t] = max(inside[base + t], begin_of[s])
                    need[base + t] = max(need[base + t], np.float32(need_of[s]))
        head = np.inf
        for t in range(count):
            head = min(head, ends[base + t])
            ends[base + t] += life[t]
            inside[base + t] += life[t]
        heads[c] = head if count else 0.0


@without_allocation
def _walk_back(p: Problem, tail: NDArray[np.float64], tails: NDArray[np.float64], follows: NDArray[np.float64]) -> None:
    for c in range(len(p.launch) - 1, -1, -1):
        base, count = p.tile_base[c], p.tile_base[c + 1] - p.tile_base[c]
        least = np.inf
        for t in range(count):
            least = min(least, tail[base + t])
        tails[c] = least if count else 0.0
        for link in range(p.links_at[c], p.links_at[c + 1]):
            r = p.relation[link]
            producer_base = p.tile_base[p.producer[link]]
            follows[: p.sets[r]] = 0.0
            for t in range(count):
                s = p.set_of[p.tile_at[r] + t]
                if s >= 0:
                    follows[s] = max(follows[s], p.ns[p.ns_at[c] + t] + tail[base + t])
            for s in range(p.sets[r]):
                for e in range(p.indptr[p.set_at[r] + s], p.indptr[p.set_at[r] + s + 1]):
                    parent = producer_base + p.parent[p.entry_at[r] + e]
                    tail[parent] = max(tail[parent], follows[s])
