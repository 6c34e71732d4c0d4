"""Names the cycle of waits in a run that did not end, in a sentence."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tileprof.analysis.bounds.problem import Problem
from tileprof.analysis.simulate.engine.event_loop import Outcome
from tileprof.analysis.simulate.engine.plan import GRID, READY, Plan

_MOST_STEPS = 6
"""Steps of a cycle that are told."""


@dataclass(frozen=True, slots=True)
class _Step:
    """A sentence about a launch that is stuck, and the launch that it waits for; None where none can be named."""

    says: str
    waits_for: int | None


def deadlock(p: Problem, plan: Plan, outcome: Outcome) -> str:
    """Describe the way from the first tile that holds its slot and waits, or else from the first launch or tile that is
    stuck, to what it waits for, and on until a launch repeats.
    """
    waiting = np.isfinite(outcome.begin_ns) & ~np.isfinite(outcome.end_ns)
    blocked_tiles = waiting if waiting.any() else ~np.isfinite(outcome.end_ns)
    launch: int | None = _launch_of(p, int(np.flatnonzero(blocked_tiles)[0]))
    reasons: list[str] = []
    visited: list[int] = []
    while launch is not None and launch not in visited and len(visited) < _MOST_STEPS:
        visited.append(launch)
        step = _step(p, plan, outcome, launch)
        reasons.append(step.says)
        launch = step.waits_for
    cycle = f"; that is a cycle through launch {p.launch[launch]}" if launch in visited and launch is not None else ""
    waiting_tiles = f": {int(waiting.sum()):,} tiles hold slots and wait" if waiting.any() else ""
    return "; ".join(reasons) + cycle + waiting_tiles


def _step(p: Problem, plan: Plan, outcome: Outcome, launch: int) -> _Step:
    name = f"launch {p.launch[launch]}"
    tiles = slice(int(p.tile_base[launch]), int(p.tile_base[launch + 1]))
    inside = np.flatnonzero(np.isfinite(outcome.begin_ns[tiles]) & ~np.isfinite(outcome.end_ns[tiles]))
    if len(inside):
        parent, other = _unfinished_parent(p, plan, outcome, launch, int(inside[0]))
        return _Step(f"{name} tile {inside[0]} holds its slot and waits for {parent}, which has not ended", other)
    if not np.isfinite(outcome.open_ns[launch]):
        return _closed_launch(p, plan, outcome, launch)
    tile = int(np.flatnonzero(~np.isfinite(outcome.begin_ns[tiles]))[0])
    if plan.gate[launch] == READY:
        parent, other = _unfinished_parent(p, plan, outcome, launch, tile)
        if other is not None:
            return _Step(f"{name} tile {tile} is not dispatched before {parent} has ended", other)
    holder = np.flatnonzero(np.isfinite(outcome.begin_ns) & ~np.isfinite(outcome.end_ns))
    if len(holder):
        other = _launch_of(p, int(holder[0]))
        return _Step(
            f"{name} tile {tile} cannot be dispatched: tiles of launch {p.launch[other]} hold the slots", other
        )
    return _Step(f"{name} tile {tile} is never dispatched: it fits no SM", None)


def _closed_launch(p: Problem, plan: Plan, outcome: Outcome, launch: int) -> _Step:
    name = f"launch {p.launch[launch]}"
    for at, waiting, what, times in (
        (plan.after_at, plan.after, "ends", outcome.end_ns),
        (plan.started_at, plan.started, "has begun all its tiles", outcome.begin_ns),
    ):
        for other in range(len(p.launch)):
            tiles = slice(int(p.tile_base[other]), int(p.tile_base[other + 1]))
            if launch in waiting[at[other] : at[other + 1]] and not np.isfinite(times[tiles]).all():
                return _Step(f"{name} never opens before launch {p.launch[other]} {what}", other)
    for other in range(len(p.launch)):
        tiles = slice(int(p.tile_base[other]), int(p.tile_base[other + 1]))
        if other != launch and np.isfinite(outcome.open_ns[other]) and not np.isfinite(outcome.end_ns[tiles]).all():
            return _Step(
                f"{name} never opens: launch {p.launch[other]} keeps its place in the window or its queue", other
            )
    return _Step(f"{name} never opens: the launches that it waits for never end or start", None)


def _unfinished_parent(p: Problem, plan: Plan, outcome: Outcome, launch: int, tile: int) -> tuple[str, int | None]:
    """Return an unfinished parent in words, and its launch."""
    if plan.gate[launch] == GRID:
        parent_launch = int(plan.waits_for[launch])
        return f"the end of launch {p.launch[parent_launch]}", parent_launch
    for link in range(p.links_at[launch], p.links_at[launch + 1]):
        r, producer = p.relation[link], int(p.producer[link])
        k = p.set_of[p.tile_at[r] + tile]
        if k >= 0:
            for e in range(p.indptr[p.set_at[r] + k], p.indptr[p.set_at[r] + k + 1]):
                parent = int(p.parent[p.entry_at[r] + e])
                if not np.isfinite(outcome.end_ns[p.tile_base[producer] + parent]):
                    return f"launch {p.launch[producer]} tile {parent}", producer
    return "nothing that is known", None


def _launch_of(p: Problem, tile: int) -> int:
    return int(np.searchsorted(p.tile_base, tile, side="right")) - 1
