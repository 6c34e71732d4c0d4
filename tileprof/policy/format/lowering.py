"""A policy as arrays: what each tile posts and awaits, expressions evaluated and checked against the grids."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tileprof.arrays import I64, grids
from tileprof.arrays.ragged import ragged
from tileprof.policy.format import Edge, Policy, PolicyError, Range, Semaphores, Stage, WaitTable
from tileprof.policy.format.expression import Expression

_MOST_WAITS = 200_000_000


@dataclass(frozen=True, slots=True)
class Waits:
    """One edge as CSR: consumer tile ``t`` awaits ``semaphore[indptr[t]:indptr[t+1]]`` at the ``value`` beside it.

    ``posts`` ``[semaphores]``: how many producer tiles post each; ``of`` ``[producer tiles]``: the semaphore that each
    posts.
    """

    edge: Edge
    indptr: I64
    semaphore: I64
    value: I64
    of: I64
    posts: I64


def coordinates(stage: Stage) -> dict[str, I64]:
    """Return x, y, z of every tile of a stage, by tile number."""
    number = np.arange(stage.tiles, dtype=np.int64)
    return dict(zip("xyz", grids.place(stage.grid, number), strict=True))


def lower(policy: Policy) -> list[Waits]:
    """Return one `Waits` per edge; raises `PolicyError` where an expression leaves its grid."""
    return [lower_edge(policy, number) for number in range(len(policy.edges))]


def lower_edge(policy: Policy, number: int) -> Waits:
    """Return the `Waits` of one edge; see `lower`."""
    edge = policy.edges[number]
    array = policy.semaphores[edge.semaphores]
    of = _posted_semaphores(policy, edge.semaphores, array)
    indptr, semaphore, value = _waits(policy, number, edge, array)
    return Waits(edge, indptr, semaphore, value, of, np.bincount(of, minlength=array.count).astype(np.int64))


def _posted_semaphores(policy: Policy, number: int, array: Semaphores) -> I64:
    stage = policy.stages[array.producer]
    place = f"semaphores {number}, posted by stage {array.producer} ({stage.name})"
    if not isinstance(array.of[0], Expression):
        of = np.array(array.of, np.int64)
        _inside(of, array.count, place)
        return of
    at = coordinates(stage)
    axes = [e(at) for e in array.of if isinstance(e, Expression)]
    for axis, values in enumerate(axes):
        _inside(values, array.grid[axis], f"{place}, axis {'uvw'[axis]}")
    return grids.number(array.grid, *axes)


def _inside(values: I64, size: int, place: str) -> None:
    wrong = np.flatnonzero((values < 0) | (values >= size))
    if len(wrong):
        raise PolicyError(f"{place}: tile {wrong[0]} names {values[wrong[0]]}, outside 0..{size - 1}")


def _waits(policy: Policy, number: int, edge: Edge, array: Semaphores) -> tuple[I64, I64, I64]:
    stage = policy.stages[edge.consumer]
    at = coordinates(stage)
    place = f"edge {number}, awaited by stage {edge.consumer} ({stage.name})"
    if isinstance(edge.waits, WaitTable):
        indptr, semaphore = np.array(edge.waits.indptr, np.int64), np.array(edge.waits.semaphore, np.int64)
        _inside(semaphore, array.count, place)
    else:
        indptr, semaphore = _box(edge.waits, at, array, place)
    if isinstance(edge.value, tuple):
        return indptr, semaphore, np.array(edge.value, np.int64)
    owner, _ = ragged(np.diff(indptr))
    gu, gv, _ = array.grid
    scope = {name: column[owner] for name, column in at.items()}
    scope |= {"u": semaphore % gu, "v": semaphore // gu % gv, "w": semaphore // (gu * gv)}
    value = np.array(edge.value(scope))
    below = np.flatnonzero(value < 0)
    if len(below):
        raise PolicyError(f"{place}: tile {owner[below[0]]} awaits value {value[below[0]]}; semaphores count up from 0")
    return indptr, semaphore, value


def _box(waits: tuple[Range, ...], at: dict[str, I64], array: Semaphores, place: str) -> tuple[I64, I64]:
    lows, counts, steps = [], [], []
    for axis, span in enumerate(waits):
        low, high, step = span.low(at), span.high(at), span.step
        count = np.maximum(0, (high - low) // step + 1)
        some = count > 0
        for bound in (low[some], (low + (count - 1) * step)[some]):
            _inside(bound, array.grid[axis], f"{place}, axis {'uvw'[axis]}")
        lows.append(low)
        counts.append(count)
        steps.append(step)
    total = counts[0] * counts[1] * counts[2]
    if int(total.sum()) > _MOST_WAITS:
        raise PolicyError(f"{place}: {int(total.sum()):,} waits; at most {_MOST_WAITS:,} are read")
    owner, rank = ragged(total)
    u = lows[0][owner] + rank % counts[0][owner] * steps[0]
    v = lows[1][owner] + rank // counts[0][owner] % counts[1][owner] * steps[1]
    w = lows[2][owner] + rank // (counts[0] * counts[1])[owner] * steps[2]
    indptr = np.concatenate([np.zeros(1, np.int64), np.cumsum(total)])
    return indptr, grids.number(array.grid, u, v, w)
