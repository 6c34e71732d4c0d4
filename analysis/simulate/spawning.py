"""``spawn``: kernels whose threads may launch child grids, and who decides whether they do.

A workload is a sequence of parent kernels (*rounds*); each of their threads has some items of work, which it does one after the other
(*inline*) or hands to a child grid, a thread an item (CUDA dynamic parallelism). Parent tiles and child tiles share the
GPU's slots; at most ``queues`` child grids are in execution, the others wait in order of arrival. A round ends when all its
tiles and all child tiles have ended.

Source: Tang et al., "Controlled Kernel Launch for Dynamic Parallelism in GPUs", HPCA 2017, doi:10.1109/HPCA.2017.14 (SPAWN). Its
rule: launch where ``overhead + (tiles in the queue + own tiles) / throughput < items x time of an item``, the throughput
being that of child tiles so far. What it does before the first child has ended we do not know: see ``prior``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tileprof.analysis.bounds.compiled import compiled, internal
from tileprof.analysis.bounds.listing import _pop, _push
from tileprof.errors import UserError

FLAT, ALWAYS, THRESHOLD, SPAWN = range(4)
POLICIES = ("flat", "always", "threshold", "spawn")


class Spawns(NamedTuple):
    """A workload: ``round_at`` ``[rounds + 1]`` CSR over parent threads; ``items`` ``[threads]`` of each; times in nanoseconds."""

    name: str
    round_at: NDArray[np.int64]
    items: NDArray[np.int64]
    item_ns: float
    """A thread's time for an item."""
    base_ns: float
    """A thread's time besides items."""


@dataclass(frozen=True, slots=True)
class Spawning:
    """What launching costs, and the GPU. Times in nanoseconds; none of the defaults is measured: the launch costs are of the order of what
    is reported for device-side launches, a few microseconds, and should be swept.
    """

    slots: int = field(default=132 * 8, metadata={"meaning": "tiles of the whole GPU that run at a time", "least": 1})
    threads: int = field(default=128, metadata={"meaning": "threads of a tile, parent or child", "least": 1})
    launch_ns: float = field(
        default=5000.0, metadata={"meaning": "from a device-side launch to the grid's arrival", "least": 0}
    )
    another_ns: float = field(
        default=500.0, metadata={"meaning": "more for each launch before it from the same tile", "least": 0}
    )
    queues: int = field(default=32, metadata={"meaning": "child grids in execution at a time", "least": 1})
    gap_ns: float = field(default=2000.0, metadata={"meaning": "between rounds", "least": 0})
    prior: int = field(
        default=1,
        metadata={
            "meaning": "until a child tile has ended, 1: assume the throughput of a GPU full of them, 0: launch",
            "least": 0,
        },
    )

    def __post_init__(self) -> None:
        for f in self.__dataclass_fields__.values():
            value = getattr(self, f.name)
            if not f.metadata["least"] <= value < np.inf:
                raise UserError(
                    f"spawn: {f.name} is {value:g}, expected at least {f.metadata['least']} ({f.metadata['meaning']})"
                )


@dataclass(frozen=True, slots=True)
class Spawned:
    """How a policy did: ``launched`` and ``inlined`` count threads with items; ``estimate_error`` is the mean relative error of the
    queue model's time of a launched grid (NaN where it estimated none).
    """

    policy: str
    time_ns: float
    launched: int
    inlined: int
    estimate_error: float

    def to_json(self) -> dict[str, Any]:
        error = self.estimate_error if np.isfinite(self.estimate_error) else None
        return {"policy": self.policy, "time_ns": self.time_ns, "launched": self.launched, "inlined": self.inlined,
                "estimate_error": error}  # fmt: skip


class Ran(NamedTuple):
    """``took_ns`` and ``estimate_ns`` ``[threads]``: from the launch of a grid to its end, as it happened and as estimated; NaN for none."""

    time_ns: float
    took_ns: NDArray[np.float64]
    estimate_ns: NDArray[np.float64]


def spawn(work: Spawns, options: Spawning, policy: str, threshold: int = 1) -> Spawned:
    """One policy; ``threshold`` is the least number of items that "threshold" launches. Raises UserError for an unknown policy."""
    if policy not in POLICIES:
        raise UserError(f"there is no spawn policy {policy!r}; there are {', '.join(POLICIES)}")
    ran = run(work, options, POLICIES.index(policy), threshold)
    launched = np.isfinite(ran.took_ns)
    known = launched & np.isfinite(ran.estimate_ns)
    errors = np.abs(ran.estimate_ns[known] / ran.took_ns[known] - 1)
    name = f"{policy} {threshold:,}" if policy == "threshold" else policy
    some = int((work.items > 0).sum())
    return Spawned(
        name,
        ran.time_ns,
        int(launched.sum()),
        some - int(launched.sum()),
        float(errors.mean()) if known.any() else np.nan,
    )


def compare(work: Spawns, options: Spawning) -> list[Spawned]:
    """Flat, always, the best static threshold (of powers of two) and SPAWN's rule."""
    most = int(work.items.max(initial=1))
    static = [spawn(work, options, "threshold", 1 << k) for k in range(1, most.bit_length() + 1)]
    best = min(static, key=lambda s: s.time_ns)
    return [spawn(work, options, "flat"), spawn(work, options, "always"), best, spawn(work, options, "spawn")]


_PARENT, _CURRENT, _RUNNING, _HELD, _QUEUED, _CHILDREN, _ENDED, _ACTIVE, _ENTERED, _ARRIVED, _FRONT, _SIZE = range(12)
"""Counters: next parent thread, round, parent tiles that run, free slots, child tiles launched and not ended, of these running, child
tiles ended, grids in execution, grids that have entered execution, grids arrived, first grid with tiles to start, events.
"""


class _State(NamedTuple):
    c: NDArray[np.int64]
    child_ns: NDArray[np.float64]
    """``[2]`` time in which some child tile ran, and since when one does."""
    keys: NDArray[np.float64]
    events: NDArray[np.int64]
    runs: NDArray[np.int64]
    """``[slots]`` -1 a parent tile, else a grid."""
    free: NDArray[np.int64]
    """Free slots, a stack."""
    arrived: NDArray[np.int64]
    """Grids in order of arrival."""
    to_start: NDArray[np.int64]
    to_end: NDArray[np.int64]
    asked: NDArray[np.float64]
    took: NDArray[np.float64]
    estimate: NDArray[np.float64]


class _Costs(NamedTuple):
    item_ns: float
    base_ns: float
    slots: int
    threads: int
    launch_ns: float
    another_ns: float
    queues: int
    gap_ns: float
    prior: int


def run(work: Spawns, options: Spawning, policy: int, threshold: int = 1) -> Ran:
    """The compiled simulation."""
    o, n = options, len(work.items)
    costs = _Costs(
        float(work.item_ns), float(work.base_ns), int(o.slots), int(o.threads), float(o.launch_ns), float(o.another_ns),
        int(o.queues), float(o.gap_ns), int(o.prior),
    )  # fmt: skip
    z = _State(
        np.zeros(12, np.int64), np.zeros(2), np.empty(o.slots + n + 2), np.empty(o.slots + n + 2, np.int64),
        np.empty(o.slots, np.int64), np.arange(o.slots), np.empty(n + 1, np.int64), np.zeros(n, np.int64),
        np.zeros(n, np.int64), np.full(n, np.nan), np.full(n, np.nan), np.full(n, np.nan),
    )  # fmt: skip
    z.c[_HELD] = o.slots
    return Ran(_run(work.round_at, work.items, costs, z, policy, threshold), z.took, z.estimate)


@compiled
def _run(
    round_at: NDArray[np.int64], items: NDArray[np.int64], o: _Costs, z: _State, policy: int, threshold: int
) -> float:
    """Events: slot s falls free (s), grid g arrives (slots + g), the next round begins (slots + threads of all rounds)."""
    c, n = z.c, len(items)
    now = 0.0
    while c[_CURRENT] + 1 < len(round_at):
        stop = round_at[c[_CURRENT] + 1]
        while c[_ACTIVE] < o.queues and c[_ENTERED] < c[_ARRIVED]:
            c[_ACTIVE] += 1
            c[_ENTERED] += 1
        while c[_HELD] > 0 and (c[_PARENT] < stop or c[_FRONT] < c[_ENTERED]):
            if c[_PARENT] < stop:
                _start(
                    z, -1, now + _parent_life(items, o, z, policy, threshold, now, min(c[_PARENT] + o.threads, stop))
                )
            else:
                _start_child(z, now, now + o.base_ns + o.item_ns)
        if c[_RUNNING] == 0 and c[_QUEUED] == 0:
            c[_CURRENT] += 1
            if c[_CURRENT] + 1 < len(round_at):
                _schedule(z, now + o.gap_ns, o.slots + n)
        if c[_SIZE] == 0:
            break
        now = z.keys[0]
        while c[_SIZE] > 0 and z.keys[0] == now:
            _happens(z, o.slots, n, now)
    return now


@internal
def _schedule(z: _State, when: float, item: int) -> None:
    _push(z.keys, z.events, z.c[_SIZE], when, item)
    z.c[_SIZE] += 1


@internal
def _happens(z: _State, slots: int, n: int, now: float) -> None:
    item = z.events[0]
    _pop(z.keys, z.events, z.c[_SIZE])
    z.c[_SIZE] -= 1
    if item == slots + n:
        return
    if item >= slots:
        z.arrived[z.c[_ARRIVED]] = item - slots
        z.c[_ARRIVED] += 1
        return
    z.free[z.c[_HELD]] = item
    z.c[_HELD] += 1
    grid = z.runs[item]
    if grid < 0:
        z.c[_RUNNING] -= 1
        return
    z.c[_QUEUED] -= 1
    z.c[_ENDED] += 1
    z.c[_CHILDREN] -= 1
    if z.c[_CHILDREN] == 0:
        z.child_ns[0] += now - z.child_ns[1]
    z.to_end[grid] -= 1
    if z.to_end[grid] == 0:
        z.c[_ACTIVE] -= 1
        z.took[grid] = now - z.asked[grid]


@internal
def _start(z: _State, what: int, until: float) -> None:
    z.c[_HELD] -= 1
    slot = z.free[z.c[_HELD]]
    z.runs[slot] = what
    if what < 0:
        z.c[_RUNNING] += 1
    _schedule(z, until, slot)


@internal
def _start_child(z: _State, now: float, until: float) -> None:
    grid = z.arrived[z.c[_FRONT]]
    z.to_start[grid] -= 1
    if z.to_start[grid] == 0:
        z.c[_FRONT] += 1
    if z.c[_CHILDREN] == 0:
        z.child_ns[1] = now
    z.c[_CHILDREN] += 1
    _start(z, grid, until)


@internal
def _parent_life(
    items: NDArray[np.int64], o: _Costs, z: _State, policy: int, threshold: int, now: float, stop: int
) -> float:
    """The threads of the next parent tile decide, and the longest of them is the tile's life."""
    life, launches = 0.0, 0
    for t in range(z.c[_PARENT], stop):
        own = (items[t] + o.threads - 1) // o.threads
        each = (o.base_ns + o.item_ns) / o.slots if o.prior else np.nan  # one over the throughput
        if z.c[_ENDED] > 0:
            each = (z.child_ns[0] + (now - z.child_ns[1] if z.c[_CHILDREN] > 0 else 0.0)) / z.c[_ENDED]
        expected = o.launch_ns + launches * o.another_ns + (z.c[_QUEUED] + own) * each
        launch = policy == ALWAYS or (policy == THRESHOLD and items[t] >= threshold)
        if policy == SPAWN:
            launch = not expected >= items[t] * o.item_ns  # not a number: nothing is known, so launch
        if launch and items[t] > 0:
            z.asked[t], z.estimate[t] = now, expected
            z.to_start[t] = own
            z.to_end[t] = own
            z.c[_QUEUED] += own
            _schedule(z, now + o.launch_ns + launches * o.another_ns, o.slots + t)
            launches += 1
            life = max(life, o.base_ns)
        else:
            life = max(life, o.base_ns + items[t] * o.item_ns)
    z.c[_PARENT] = stop
    return life
