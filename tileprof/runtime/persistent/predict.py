"""Predicts the time of a plan from the times of its stages alone.

Tasks are replayed cluster by cluster. A task lasts its stage's time alone, less what a launch costs, over its rounds
there; it ends no sooner than what it awaits, plus that time, less what its loader has fetched of the weights in the
meantime. Bandwidth that idle clusters leave to the others is not counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from tileprof.arrays.ragged import owners
from tileprof.runtime.persistent.cost import LAUNCH_US, SIGNAL_US, lag_us, rest_us, stage_us, waits_for_memory
from tileprof.runtime.persistent.plan import Plan
from tileprof.runtime.stages.conv import Conv2d

BOUNDARY_US: Final = 2.5
"""The part of a launch that the next stage does not wait for within one launch: barriers, tensor maps, the first loads,
and the last blocks to end. With it 50 gains measured on an H200 (products of 1 to 2048 tokens) are predicted without
bias, 48 of them within 5 points, from stages that were timed alone.
"""


def predicted_us(
    plan: Plan, alone_us: Sequence[float], gap_us: float, boundary_us: Sequence[float] | None = None
) -> float:
    """Return the whole plan in a graph; ``alone_us``: each stage alone, in a graph, too, ``gap_us`` between two
    launches of a graph included in each. ``boundary_us``: the part of each that the next stage does not wait for,
    `BOUNDARY_US` where stages were timed.
    """
    boundaries = boundary_us or [BOUNDARY_US] * len(plan.stages)
    rounds = [-(-stage.tasks // plan.clusters) for stage in plan.stages]
    tile_us = [
        max(us - gap_us - boundary, 0.0) / n for us, n, boundary in zip(alone_us, rounds, boundaries, strict=True)
    ]
    free = np.zeros(plan.clusters)
    posted: list[list[float]] = [[] for _ in range(plan.semaphores)]
    cluster_of = owners(plan.task_ptr)
    for task in np.lexsort((np.arange(len(plan.tasks)), plan.tasks[:, 0])):
        stage, cluster = int(plan.tasks[task, 0]), int(cluster_of[task])
        ready = 0.0
        for _, _, semaphore, value, _ in plan.waits[plan.wait_ptr[task] : plan.wait_ptr[task + 1]]:
            times = sorted(posted[semaphore])
            clusters_needed = -(-int(value) // plan.split)
            ready = max(ready, (times[clusters_needed - 1] if clusters_needed <= len(times) else 0.0) + SIGNAL_US)
        life = tile_us[stage]
        late = ready - free[cluster]
        free[cluster] += life if late <= 0 else late + rest_us(plan.stages[stage], plan.split, life, late)
        for semaphore in plan.posts[plan.post_ptr[task] : plan.post_ptr[task + 1]]:
            posted[semaphore].append(float(free[cluster]))
    return gap_us + boundaries[0] + float(free.max(initial=0.0))


@dataclass(frozen=True, slots=True)
class Modelled:
    """Microseconds by the model of `cost`, where nothing has been measured: stages one after the other, and in one
    launch.
    """

    alone_us: float
    together_us: float


def modelled(plan: Plan, gap_us: float) -> Modelled:
    """Return what a plan saves by the model alone.

    A stage does not wait for what sets the launch of the one before it up, and where memory is the limit not for the
    lag behind its last load either: the loader continues with the next stage's weights. A convolution alone has no such
    lag: that of its fit, to pairs in one launch, contains what `finish_us` adds for each stage.

    These rules came from 18 recorded programs (2026-11-23; `tests/gpu/results/recorded.json`): with a lag in every
    stage, saved at every boundary, their gains were 5.0 points off, with the rules 1.4.
    """
    alone, boundaries = [], []
    for stage in plan.stages:
        clusters = min(plan.clusters, stage.tasks)
        lag = lag_us(stage, plan.split)
        product = not isinstance(stage.operator, Conv2d)
        alone.append(stage_us(stage, plan.split, clusters) - (0.0 if product else lag) + gap_us + LAUNCH_US)
        boundaries.append(LAUNCH_US + (lag if product and waits_for_memory(stage, plan.split, clusters) else 0.0))
    return Modelled(sum(alone), predicted_us(plan, alone, gap_us, boundaries))
