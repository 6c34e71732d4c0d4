"""``spawn``: kernels whose threads may launch child grids, and who decides whether they do.

A workload is a sequence of parent kernels (*rounds*); each of their threads has some items of work, which it does one
after the other (*inline*) or hands to a child grid, a thread an item (CUDA dynamic parallelism). Threads of a warp that
launch do so together: the warp stands still for ``launch_ns`` and ``another_ns`` a launch, then all its grids arrive,
or, with ``serve_ns``, are served one after the other with those of the whole GPU, and its other threads do their items.
Parent and child tiles share the GPU's blocks and threads, parents first; at most ``queues`` child grids are in
execution, the others wait in order of arrival. A round ends when all its tiles and all child tiles have ended.

Source: Tang et al., "Controlled Kernel Launch for Dynamic Parallelism in GPUs", HPCA 2017, doi:10.1109/HPCA.2017.14
(SPAWN). Its rule: launch where ``overhead + (tiles in the queue + own tiles) / throughput < items x time of a child
warp``, throughput and time being those of child tiles: all that ended over the time in which any ran, or, with
``window_ns`` (the paper has 1,024 cycles), the mean number that ran at a time in the last whole window, over the mean
time of all that ended. It is asked where the program as written would launch. What it does before the first child has
ended we do not know: see ``prior``, and ``untried``, the bound of spawn.cuh in the CUDA examples.

Left out: memory bandwidth (a tile lasts as long on a full GPU as alone), and children that launch.

| rule | source | here | worth |
|---|---|---|---|
| throughput | windows of 1,024 cycles | all of time | +64.0, +80.4, 0% |
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tileprof.analysis.bounds.compiled import compiled, internal
from tileprof.analysis.heaps import pop, push
from tileprof.analysis.simulate.scheduler import LONGEST_NS, MOST_COUNTED, short
from tileprof.errors import UserError

FLAT, ALWAYS, THRESHOLD, SPAWN = range(4)
POLICIES = ("flat", "always", "threshold", "spawn")
PROGRAM = "program"
"""``threshold`` with the threshold that the program as written has."""


class Spawns(NamedTuple):
    """A workload: ``round_at`` ``[rounds + 1]`` CSR over parent threads; ``items`` and ``item_ns`` ``[threads]`` of
    each; times in nanoseconds.
    """

    name: str
    round_at: NDArray[np.int64]
    items: NDArray[np.int64]
    item_ns: NDArray[np.float64]
    """A thread's time for one of its items, inline or as a child."""
    base_ns: float
    """A parent thread's time besides launches and items."""
    child_ns: float
    """A child thread's time besides its item."""
    threshold: int
    """Items from which the program as written launches."""


@dataclass(frozen=True, slots=True)
class Spawning:
    """What launching costs, and the GPU. Times in nanoseconds.

    The defaults are a K20c, whose launches were measured for GPGPU-Sim (``-cdp_latency``: 20,000 cycles for a warp that
    launches and 1,700 more for each of its launches, with the call for the parameter buffer; here at 706 MHz): 13 SMs
    of at most 16 blocks and 2,048 threads. Parents of 256 and children of 32 threads are those of dragon_li, the
    benchmarks of Wang and Yalamanchili (IISWC 2014). ``gap_ns`` is assumed. Of an H200: ``launch_ns`` 45,000,
    ``another_ns`` 400 and ``serve_ns`` 400 were measured (docs/spawn.md), with 4,224 slots and 270,336 threads.
    """

    slots: int = field(default=13 * 16, metadata={"meaning": "blocks that the GPU holds", "least": 1})
    resident: int = field(default=13 * 2048, metadata={"meaning": "threads that the GPU holds", "least": 1})
    parent: int = field(default=256, metadata={"meaning": "threads of a parent tile", "least": 1})
    child: int = field(default=32, metadata={"meaning": "threads of a child tile", "least": 1})
    warp: int = field(default=32, metadata={"meaning": "threads that launch together", "least": 1})
    launch_ns: float = field(default=28_300.0, metadata={"meaning": "for a warp to launch at all", "least": 0})
    another_ns: float = field(default=2_400.0, metadata={"meaning": "more for each of its launches", "least": 0})
    serve_ns: float = field(
        default=0.0, metadata={"meaning": "for each launch of the whole GPU, one after the other", "least": 0}
    )
    window_ns: float = field(
        default=0.0, metadata={"meaning": "of time over which children are counted, 0: all of it", "least": 0}
    )
    queues: int = field(default=32, metadata={"meaning": "child grids in execution at a time", "least": 1})
    gap_ns: float = field(default=7_000.0, metadata={"meaning": "between rounds", "least": 0})
    prior: int = field(
        default=1,
        metadata={
            "meaning": "until a child tile has ended, 0: launch, 1: assume the throughput of a GPU full of children",
            "least": 0,
            "most": 1,
        },
    )
    untried: int = field(
        default=MOST_COUNTED,
        metadata={"meaning": "child tiles that are launched until one has ended, with prior=0", "least": 0},
    )

    def __post_init__(self) -> None:
        for f in self.__dataclass_fields__.values():
            value = getattr(self, f.name)
            most = f.metadata.get("most", LONGEST_NS if f.name.endswith("_ns") else MOST_COUNTED)
            if not f.metadata["least"] <= value <= most:
                raise UserError(
                    f"spawn: {f.name} is {short(value)}, expected at least {f.metadata['least']} and at most "
                    f"{short(most)} ({f.metadata['meaning']})"
                )
        if self.resident < max(self.parent, self.child):
            raise UserError(
                f"spawn: resident is {self.resident}, fewer threads than a tile has ({max(self.parent, self.child)}); "
                "no tile could start"
            )


@dataclass(frozen=True, slots=True)
class Spawned:
    """How a policy did: ``launched`` and ``inlined`` count threads with items; ``estimate_error`` is the mean relative
    error of the queue model's time of a launched grid (NaN where it estimated none).
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
    """``took_ns`` and ``estimate_ns`` ``[threads]``: from the launch of a grid to its end, as it happened and as
    estimated; NaN for none.
    """

    time_ns: float
    took_ns: NDArray[np.float64]
    estimate_ns: NDArray[np.float64]


def spawn(work: Spawns, options: Spawning, policy: str, threshold: int = 1) -> Spawned:
    """One policy; ``threshold`` is the least number of items that "threshold" launches, "program" takes the workload's
    own.

    Raises UserError for an unknown policy.
    """
    if policy not in (*POLICIES, PROGRAM):
        raise UserError(f"there is no spawn policy {policy!r}; there are {', '.join((*POLICIES, PROGRAM))}")
    name = f"{policy} {threshold:,}" if policy == "threshold" else policy
    if policy in (PROGRAM, "spawn"):
        threshold = work.threshold
    ran = run(work, options, THRESHOLD if policy == PROGRAM else POLICIES.index(policy), threshold)
    launched = np.isfinite(ran.took_ns)
    estimated = launched & np.isfinite(ran.estimate_ns)
    errors = np.abs(ran.estimate_ns[estimated] / ran.took_ns[estimated] - 1)
    some, spawned = int((work.items > 0).sum()), int(launched.sum())
    return Spawned(name, ran.time_ns, spawned, some - spawned, float(errors.mean()) if estimated.any() else np.nan)


def compare(work: Spawns, options: Spawning) -> list[Spawned]:
    """Flat, always, the program as written, the best static threshold (of powers of two) and SPAWN's rule."""
    best = min(thresholds(work, options), key=lambda s: s.time_ns)
    others = {policy: spawn(work, options, policy) for policy in ("flat", "always", PROGRAM, "spawn")}
    return [others["flat"], others["always"], others[PROGRAM], best, others["spawn"]]


def thresholds(work: Spawns, options: Spawning) -> list[Spawned]:
    """Every static threshold that is a power of two, from 1 (always) to more than any thread has (flat)."""
    most = int(work.items.max(initial=1))
    return [spawn(work, options, "threshold", 1 << k) for k in range(most.bit_length() + 1)]


_PARENT, _CURRENT, _RUNNING, _HELD, _ROOM, _QUEUED, _CHILDREN, _ENDED, _ACTIVE, _ENTERED, _ARRIVED, _FRONT, _SIZE = (
    range(13)
)
"""Counters: next parent thread, round, parent tiles that run, free slots, free threads, child tiles launched and not
ended, of these running, child tiles ended, grids in execution, grids that have entered execution, grids arrived, first
grid with tiles to start, events.
"""

_BUSY, _SINCE, _LIVED, _SERVED, _AREA, _TICKED, _CLOSES, _MEAN = range(8)
"""Times: in which some child tile ran, since when one does, of all child tiles that have ended; when the last launch
has been served. Of the window: child tiles times time so far, until when, when it ends, and how many ran at a time in
the one before.
"""


class _State(NamedTuple):
    c: NDArray[np.int64]
    ns: NDArray[np.float64]
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
    base_ns: float
    child_ns: float
    slots: int
    resident: int
    parent: int
    child: int
    warp: int
    launch_ns: float
    another_ns: float
    serve_ns: float
    window_ns: float
    queues: int
    gap_ns: float
    prior: int
    untried: int


def run(work: Spawns, options: Spawning, policy: int, threshold: int = 1) -> Ran:
    """The compiled simulation; ``threshold``: fewer items are never launched by THRESHOLD and SPAWN."""
    o, n = options, len(work.items)
    costs = _Costs(
        float(work.base_ns), float(work.child_ns), int(o.slots), int(o.resident), int(o.parent), int(o.child),
        int(o.warp),
        float(o.launch_ns), float(o.another_ns), float(o.serve_ns), float(o.window_ns), int(o.queues), float(o.gap_ns),
        int(o.prior), int(o.untried),
    )  # fmt: skip
    z = _State(
        np.zeros(13, np.int64), np.zeros(8), np.empty(o.slots + n + 2), np.empty(o.slots + n + 2, np.int64),
        np.empty(o.slots, np.int64), np.arange(o.slots), np.empty(n + 1, np.int64), np.zeros(n, np.int64),
        np.zeros(n, np.int64), np.full(n, np.nan), np.full(n, np.nan), np.full(n, np.nan),
    )  # fmt: skip
    z.c[_HELD], z.c[_ROOM] = o.slots, o.resident
    z.ns[_CLOSES] = o.window_ns
    return Ran(_run(work.round_at, work.items, work.item_ns, costs, z, policy, threshold), z.took, z.estimate)


@compiled
def _run(
    round_at: NDArray[np.int64], items: NDArray[np.int64], item_ns: NDArray[np.float64], o: _Costs, z: _State,
    policy: int,
    threshold: int,
) -> float:  # fmt: skip
    """Events: slot s falls free (s), grid g arrives (slots + g), the next round begins (slots + threads of all
    rounds).
    """
    c, n = z.c, len(items)
    now = 0.0
    while c[_CURRENT] + 1 < len(round_at):
        stop = round_at[c[_CURRENT] + 1]
        while c[_ACTIVE] < o.queues and c[_ENTERED] < c[_ARRIVED]:
            c[_ACTIVE] += 1
            c[_ENTERED] += 1
        while c[_HELD] > 0 and c[_PARENT] < stop and c[_ROOM] >= o.parent:
            life = _parent_life(items, item_ns, o, z, policy, threshold, now, min(c[_PARENT] + o.parent, stop))
            _start(z, -1, o.parent, now + life)
        while c[_HELD] > 0 and c[_PARENT] == stop and c[_FRONT] < c[_ENTERED] and c[_ROOM] >= o.child:
            _start_child(z, o, item_ns, now)
        if c[_RUNNING] == 0 and c[_QUEUED] == 0:
            c[_CURRENT] += 1
            if c[_CURRENT] + 1 < len(round_at):
                _schedule(z, now + o.gap_ns, o.slots + n)
        if c[_SIZE] == 0:
            break
        now = z.keys[0]
        while c[_SIZE] > 0 and z.keys[0] == now:
            _happens(z, o, item_ns, now)
    return now


@internal
def _schedule(z: _State, when: float, item: int) -> None:
    push(z.keys, z.events, z.c[_SIZE], when, item)
    z.c[_SIZE] += 1


@internal
def _happens(z: _State, o: _Costs, item_ns: NDArray[np.float64], now: float) -> None:
    item = z.events[0]
    pop(z.keys, z.events, z.c[_SIZE])
    z.c[_SIZE] -= 1
    if item == o.slots + len(item_ns):
        return
    if item >= o.slots:
        z.arrived[z.c[_ARRIVED]] = item - o.slots
        z.c[_ARRIVED] += 1
        return
    z.free[z.c[_HELD]] = item
    z.c[_HELD] += 1
    grid = z.runs[item]
    if grid < 0:
        z.c[_RUNNING] -= 1
        z.c[_ROOM] += o.parent
        return
    z.c[_ROOM] += o.child
    z.c[_QUEUED] -= 1
    z.c[_ENDED] += 1
    z.ns[_LIVED] += o.child_ns + item_ns[grid]
    _tick(z, o, now)
    z.c[_CHILDREN] -= 1
    if z.c[_CHILDREN] == 0:
        z.ns[_BUSY] += now - z.ns[_SINCE]
    z.to_end[grid] -= 1
    if z.to_end[grid] == 0:
        z.c[_ACTIVE] -= 1
        z.took[grid] = now - z.asked[grid]


@internal
def _start(z: _State, what: int, threads: int, until: float) -> None:
    z.c[_HELD] -= 1
    z.c[_ROOM] -= threads
    slot = z.free[z.c[_HELD]]
    z.runs[slot] = what
    if what < 0:
        z.c[_RUNNING] += 1
    _schedule(z, until, slot)


@internal
def _tick(z: _State, o: _Costs, now: float) -> None:
    """Before the number of child tiles that run changes, or is asked for: count them over the window."""
    if o.window_ns <= 0:
        return
    running = float(z.c[_CHILDREN])
    if now >= z.ns[_CLOSES]:
        skipped = np.floor((now - z.ns[_CLOSES]) / o.window_ns)
        area = z.ns[_AREA] + running * (z.ns[_CLOSES] - z.ns[_TICKED])
        z.ns[_MEAN] = running if skipped > 0 else area / o.window_ns
        z.ns[_TICKED] = z.ns[_CLOSES] + skipped * o.window_ns
        z.ns[_CLOSES] = z.ns[_TICKED] + o.window_ns
        z.ns[_AREA] = 0.0
    z.ns[_AREA] += running * (now - z.ns[_TICKED])
    z.ns[_TICKED] = now


@internal
def _start_child(z: _State, o: _Costs, item_ns: NDArray[np.float64], now: float) -> None:
    grid = z.arrived[z.c[_FRONT]]
    z.to_start[grid] -= 1
    if z.to_start[grid] == 0:
        z.c[_FRONT] += 1
    if z.c[_CHILDREN] == 0:
        z.ns[_SINCE] = now
    _tick(z, o, now)
    z.c[_CHILDREN] += 1
    _start(z, grid, o.child, now + o.child_ns + item_ns[grid])


@internal
def _parent_life(
    items: NDArray[np.int64], item_ns: NDArray[np.float64], o: _Costs, z: _State, policy: int, threshold: int,
    now: float,
    stop: int,
) -> float:  # fmt: skip
    """The threads of the next parent tile decide, warp by warp, and the longest warp is the tile's life."""
    life = 0.0
    while z.c[_PARENT] < stop:
        first, last = z.c[_PARENT], min(z.c[_PARENT] + o.warp, stop)
        inline_ns, launches = 0.0, 0
        for t in range(first, last):
            if items[t] == 0:
                continue
            z.to_end[t] = 0
            expected, alone = _estimate(z, o, items[t], item_ns[t], launches, now)
            launch = policy == ALWAYS or (policy >= THRESHOLD and items[t] >= threshold)
            if launch and policy == SPAWN:
                own = (items[t] + o.child - 1) // o.child
                calibrated = o.prior > 0 or z.c[_ENDED] > 0
                launch = not expected >= alone if calibrated else z.c[_QUEUED] + own <= o.untried
            if launch:
                launches += 1
                z.asked[t], z.estimate[t] = now + o.base_ns, expected
                z.to_end[t] = (items[t] + o.child - 1) // o.child
                z.to_start[t] = z.to_end[t]
                z.c[_QUEUED] += z.to_end[t]
            else:
                inline_ns = max(inline_ns, items[t] * item_ns[t])
        spent = o.base_ns + (o.launch_ns + launches * o.another_ns if launches > 0 else 0.0)
        for t in range(first, last):
            if items[t] > 0 and z.to_end[t] > 0:
                z.ns[_SERVED] = max(now + spent, z.ns[_SERVED] + o.serve_ns)
                _schedule(z, z.ns[_SERVED] if o.serve_ns > 0 else now + spent, o.slots + t)
        life = max(life, spent + inline_ns)
        z.c[_PARENT] = last
    return life


@internal
def _estimate(z: _State, o: _Costs, items: int, item_ns: float, launches: int, now: float) -> tuple[float, float]:
    """Expected time of a child grid after some other launches of the warp, and that of its work inline."""
    own = (items + o.child - 1) // o.child
    each, warp_ns = np.nan, np.nan  # one over the throughput, the time of a child warp
    if o.prior:
        warp_ns = o.child_ns + item_ns
        each = warp_ns / min(o.slots, o.resident // o.child)
    if z.c[_ENDED] > 0:
        busy = z.ns[_BUSY] + (now - z.ns[_SINCE] if z.c[_CHILDREN] > 0 else 0.0)
        each = busy / z.c[_ENDED]
        warp_ns = z.ns[_LIVED] / z.c[_ENDED]
        if o.window_ns > 0:
            _tick(z, o, now)
            each = warp_ns / max(z.ns[_MEAN], 1.0)
    expected = o.launch_ns + (launches + 1) * o.another_ns + (z.c[_QUEUED] + own) * each
    return expected, items * warp_ns
