"""A workload under a rule, and rules compared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tileprof.analysis.bounds.by_reference import by_reference
from tileprof.analysis.simulate.spawning.loop import run_events
from tileprof.analysis.simulate.spawning.options import Spawning
from tileprof.analysis.simulate.spawning.state import (
    ENDED,
    LIVED,
    POLICIES,
    THRESHOLD,
    Costs,
    Work,
    fresh_state,
)
from tileprof.analysis.simulate.spawning.work import Spawns, depth_of, own_times
from tileprof.errors import UserError

PROGRAM = "program"
"""``threshold`` with the threshold that the program as written has."""


@dataclass(frozen=True, slots=True)
class Spawned:
    """The outcome of a policy: ``launched`` and ``inlined`` count threads with items; ``estimate_error`` is the mean
    relative error of the queue model's time of a launched grid (NaN where it estimated none); ``child_ns`` is the mean
    life of a child tile (NaN where none was launched).
    """

    policy: str
    time_ns: float
    launched: int
    inlined: int
    estimate_error: float
    child_ns: float = np.nan

    def to_json(self) -> dict[str, Any]:
        error = self.estimate_error if np.isfinite(self.estimate_error) else None
        child_ns = self.child_ns if np.isfinite(self.child_ns) else None
        return {"policy": self.policy, "time_ns": self.time_ns, "launched": self.launched, "inlined": self.inlined,
                "estimate_error": error, "child_ns": child_ns}  # fmt: skip


class Ran(NamedTuple):
    """``took_ns`` and ``estimate_ns`` ``[threads]``: from the launch of a grid to its end, as it happened and as
    estimated; NaN for none. ``child_ns``: what a child tile lived in the mean.
    """

    time_ns: float
    took_ns: NDArray[np.float64]
    estimate_ns: NDArray[np.float64]
    child_ns: float


def spawn(work: Spawns, options: Spawning, policy: str, threshold: int = 1) -> Spawned:
    """Return one policy; ``threshold`` is the least number of items that "threshold" launches, "program" takes the
    workload's own.

    Raises UserError for an unknown policy.
    """
    if policy not in (*POLICIES, PROGRAM):
        raise UserError(f"there is no spawn policy {policy!r}; there are {', '.join((*POLICIES, PROGRAM))}")
    name = f"{policy} {threshold:,}" if policy == "threshold" else policy
    if policy in (PROGRAM, "spawn", "warp"):
        threshold = work.threshold
    outcome = run(work, options, THRESHOLD if policy == PROGRAM else POLICIES.index(policy), threshold)
    launched = np.isfinite(outcome.took_ns)
    estimated = launched & np.isfinite(outcome.estimate_ns)
    errors = np.abs(outcome.estimate_ns[estimated] / outcome.took_ns[estimated] - 1)
    some, spawned = int((work.items > 0).sum()), int(launched.sum())
    error = float(errors.mean()) if estimated.any() else np.nan
    return Spawned(name, outcome.time_ns, spawned, some - spawned, error, outcome.child_ns)


def compare(work: Spawns, options: Spawning) -> list[Spawned]:
    """Return flat, always, the program as written, the best static threshold (of powers of two), SPAWN's rule, and that
    of whole warps.
    """
    best = min(thresholds(work, options), key=lambda s: s.time_ns)
    others = {policy: spawn(work, options, policy) for policy in ("flat", "always", PROGRAM, "spawn", "warp")}
    return [others["flat"], others["always"], others[PROGRAM], best, others["spawn"], others["warp"]]


def thresholds(work: Spawns, options: Spawning) -> list[Spawned]:
    """Return every static threshold that is a power of two, from 1 (always) to more than any thread has (flat)."""
    most = int(work.items.max(initial=1))
    return [spawn(work, options, "threshold", 1 << k) for k in range(most.bit_length() + 1)]


def run(work: Spawns, options: Spawning, policy: int, threshold: int = 1) -> Ran:
    """Return the compiled simulation; ``threshold``: fewer items are never launched by THRESHOLD, SPAWN and WARP.

    Raises UserError where a thread's items are threads that are not its own.
    """
    o, n = options, len(work.items)
    first_child = np.full(n, -1, np.int64) if work.first_child is None else work.first_child
    depth_of(work, first_child)
    values: dict[str, Any] = {key: (float if key.endswith("_ns") else int)(getattr(o, key)) for key in Costs._fields}
    costs = Costs(**values)
    costs = costs._replace(
        assumed_first_ns=costs.assumed_first_ns or costs.launch_ns,
        assumed_another_ns=costs.assumed_another_ns or costs.another_ns,
    )
    z = fresh_state(n, costs)
    program = Work(
        work.items,
        work.item_ns,
        work.item_ns if work.longest_ns is None else work.longest_ns,
        first_child,
        own_times(work, first_child),
        float(work.child_ns),
        float(work.beside_ns),
        int(policy),
        int(threshold),
        float(work.together),
        np.full(len(work.round_at) - 1, float(o.gap_ns)) if work.gap_ns is None else work.gap_ns,
    )
    time_ns = run_events(work.round_at, by_reference(program), by_reference(costs), by_reference(z))
    return Ran(time_ns, z.took, z.estimate, float(z.ns[LIVED] / z.c[ENDED]) if z.c[ENDED] else np.nan)
