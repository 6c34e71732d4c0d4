"""A policy as tasks and event counters, the form of persistent-kernel runtimes.

A *counter* is a semaphore; counters of all stages have one numbering. A *group* is a set of tasks (tiles) of one stage
that become ready together: when every counter in ``waits`` has reached its value. A task that ends adds 1 to the
counters in ``posts``. A runtime may put a whole group into its queue when its last counter is reached, and needs to
look at no other. ::

    {"schema": "tileprof counters", "version": 1,
     "stages":   [{"name": "up", "grid": [24, 4, 1], "launch": 12, "order": null, "posts": [[0, 0, ..., 3]]}, ...],
     "counters": [24, 24, 24, 24],                              # posts that each gets in a round
     "groups":   [{"stage": 1, "tiles": [[0, 48]], "waits": [[0, 24]]}, ...]}

``posts`` holds one list per semaphore array of the stage, with a counter for each tile by number; ``tiles`` are
half-open ranges of tile numbers. A task runs when its turn comes: in stage order, within a stage in ``order`` (null:
ascending), nothing deadlocks.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from tileprof.analysis.dependencies.grouping import equal_lists
from tileprof.arrays import I64
from tileprof.arrays.ragged import ragged
from tileprof.policy.format import Policy
from tileprof.policy.format.lowering import lower

COUNTERS = "counters.json"


def counters_files(policy: Policy) -> dict[str, str]:
    """Return texts by file name."""
    return {COUNTERS: json.dumps(counters(policy), separators=(",", ":")) + "\n"}


def counters(policy: Policy) -> dict[str, Any]:
    """Return the JSON value; arrays of semaphores that no edge uses are left out."""
    lowered = lower(policy)
    arrays = sorted({waits.edge.semaphores for waits in lowered})
    sizes = [policy.semaphores[number].count for number in arrays]
    base = dict(zip(arrays, np.cumsum([0, *sizes])[:-1].tolist(), strict=True))
    of = {waits.edge.semaphores: (waits.of, waits.posts) for waits in lowered}
    posts: list[list[list[int]]] = [[] for _ in policy.stages]
    counts: list[int] = []
    for number in arrays:
        semaphore, posted = of[number]
        posts[policy.semaphores[number].producer].append((semaphore + base[number]).tolist())
        counts += posted.tolist()
    stages = [
        {
            "name": s.name,
            "grid": list(s.grid),
            "launch": s.launch,
            "order": None if s.order is None else list(s.order),
            "posts": p,
        }
        for s, p in zip(policy.stages, posts, strict=True)
    ]
    groups = []
    for stage, description in enumerate(policy.stages):
        parts = [
            (w.indptr, w.semaphore + base[w.edge.semaphores], w.value) for w in lowered if w.edge.consumer == stage
        ]
        groups += _groups(stage, description.tiles, parts)
    return {"schema": "tileprof counters", "version": 1, "stages": stages, "counters": counts, "groups": groups}


def _groups(stage: int, tiles: int, parts: list[tuple[I64, I64, I64]]) -> list[dict[str, Any]]:
    """Return tiles with equal waits, in order of their first."""
    owner = np.concatenate([np.empty(0, np.int64), *(ragged(np.diff(indptr))[0] for indptr, _, _ in parts)])
    counter, value = (np.concatenate([np.empty(0, np.int64), *(part[n] for part in parts)]) for n in (1, 2))
    order = np.lexsort((value, counter, owner))
    owner, counter, value = owner[order], counter[order], value[order]
    indptr = np.searchsorted(owner, np.arange(tiles + 1)).astype(np.int64)
    group, first = equal_lists(indptr, (counter, value))
    counters = []
    for number, tile in enumerate(first.tolist()):
        wait_range = slice(int(indptr[tile]), int(indptr[tile + 1]))
        waits = np.stack([counter[wait_range], value[wait_range]], axis=1).tolist()
        counters.append({"stage": stage, "tiles": _ranges(np.flatnonzero(group == number)), "waits": waits})
    return counters


def _ranges(tiles: I64) -> list[list[int]]:
    breaks = np.flatnonzero(np.diff(tiles) > 1) + 1
    return [[int(run[0]), int(run[-1]) + 1] for run in np.split(tiles, breaks)]
