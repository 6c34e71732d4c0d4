"""``spawn``: kernels whose threads may launch child grids, and who decides whether they do.

A workload is a sequence of parent kernels (*rounds*); each of their threads has some items of work, which it does one
after the other (*inline*) or hands to a child grid, a thread an item (CUDA dynamic parallelism). Threads of a warp that
launch do so together: the warp stands still for ``launch_ns`` and ``another_ns`` a launch, then all its grids arrive,
or, with ``serve_ns``, are served one after the other with those of the whole GPU, and its other threads do their items.
Parent and child tiles share the GPU's blocks and threads, parents first, or children with ``children=1``; at most
``queues`` child grids are in execution, the others wait in order of arrival. A round ends when all its tiles and all
child tiles have ended.

Children may launch, too (``first_child``): an item is then a thread with items of its own, which are asked about where
it runs. A thread that keeps such items does them one after the other, depth first, and launches from among them cost
it the whole overhead, since its warp's other threads stand elsewhere. All of a tile's decisions are taken when the tile
starts.

Source: Tang et al., "Controlled Kernel Launch for Dynamic Parallelism in GPUs", HPCA 2017, doi:10.1109/HPCA.2017.14
(SPAWN). Its rule: launch where ``overhead + (tiles in the queue + own tiles) / throughput < items x time of a child
warp``, throughput and time being those of child tiles: all that ended over the time in which any ran, or, with
``window_ns`` (the paper has 1,024 cycles), the mean number that ran at a time in the last whole window, over the mean
time of all that ended. It is asked where the program as written would launch. What it does before the first child has
ended we do not know: see ``prior``, and ``untried``, the bound of spawn.cuh in the CUDA examples.

``stagger_ns``: parent tiles reach their launch sites one after the other. ``guess_ns``: the rule ``warp`` knows items'
times as spawn.cuh does, from items that threads which kept their work have done, and guesses before.

``lag_ns``: rules read the length of the queue at most once in this time, and tiles that start in between decide by the
value that was read last.

The rule ``warp`` is ours. Threads of a warp wait for the slowest of them, so that to launch one thread's items gains
nothing while another keeps as many; and a child warp's time is more than an item's. It launches the largest of a warp's
sites, as many of them as make the later of the warp and its children end first, with an item's own time.

Left out: memory bandwidth (a tile lasts as long on a full GPU as alone).

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
from tileprof.arrays.ragged import ragged
from tileprof.errors import UserError

FLAT, ALWAYS, THRESHOLD, SPAWN, WARP = range(5)
POLICIES = ("flat", "always", "threshold", "spawn", "warp")
PROGRAM = "program"
"""``threshold`` with the threshold that the program as written has."""


class Spawns(NamedTuple):
    """A workload: ``round_at`` ``[rounds + 1]`` CSR over parent threads; ``items`` and ``item_ns`` ``[threads]`` of
    each; times in nanoseconds. Threads that are items of others follow those of all rounds.
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
    first_child: NDArray[np.int64] | None = None
    """``[threads]`` the first of the threads that a thread's items are, a later number than its own; -1 for items that
    have none. None: no child launches.
    """


@dataclass(frozen=True, slots=True)
class Spawning:
    """Costs of launching, and the GPU. Times in nanoseconds.

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
    children: int = field(
        default=0,
        metadata={"meaning": "1: child tiles start before parent tiles that wait", "least": 0, "most": 1},
    )
    lag_ns: float = field(
        default=0.0,
        metadata={"meaning": "between two looks of the rules at the children in the queue", "least": 0},
    )
    stagger_ns: float = field(
        default=0.0,
        metadata={"meaning": "between two parent tiles whose threads reach their launch sites", "least": 0},
    )
    guess_ns: float = field(
        default=0.0,
        metadata={"meaning": "of an item for the rule warp until one was done inline; 0: items' own times", "least": 0},
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
    """The outcome of a policy: ``launched`` and ``inlined`` count threads with items; ``estimate_error`` is the mean
    relative error of the queue model's time of a launched grid (NaN where it estimated none).
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
    return Spawned(name, outcome.time_ns, spawned, some - spawned, float(errors.mean()) if estimated.any() else np.nan)


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


(
    _PARENT, _CURRENT, _RUNNING, _HELD, _ROOM, _QUEUED, _CHILDREN, _ENDED, _ACTIVE, _ENTERED, _ARRIVED, _FRONT, _SIZE,
    _SEEN,
) = range(14)  # fmt: skip
"""Counters: next parent thread, round, parent tiles that run, free slots, free threads, child tiles launched and not
ended, of these running, child tiles ended, grids in execution, grids that have entered execution, grids arrived, first
grid with tiles to start, events, and child tiles in the queue when a rule last looked.
"""

(
    _BUSY, _SINCE, _LIVED, _SERVED, _AREA, _TICKED, _CLOSES, _MEAN, _LOOKED, _REACHES, _OWN_ITEMS, _OWN_NS,
) = range(12)  # fmt: skip
"""Times: in which some child tile ran, since when one does, of all child tiles that have ended; when the last launch
has been served. Of the window: child tiles times time so far, until when, when it ends, and how many ran at a time in
the one before. When a rule looked at the queue; when the next parent tile may start; items done inline by tiles that
have ended, and their time.
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
    lives: NDArray[np.float64]
    """``[slots]`` of the tile that runs there."""
    owner: NDArray[np.int64]
    """Threads whose items are done inline, one for each level of nesting, and which of their items comes next."""
    next: NDArray[np.int64]
    chosen: NDArray[np.bool_]
    """``[warp]`` which threads of a warp launch."""
    picked: NDArray[np.int64]
    """``[warp]`` those, the largest first."""
    own_items: NDArray[np.int64]
    """``[slots + 1]`` items that the tile there does inline, and their time; last, those of the tile that starts."""
    own_ns: NDArray[np.float64]


class _Work(NamedTuple):
    items: NDArray[np.int64]
    item_ns: NDArray[np.float64]
    first_child: NDArray[np.int64]
    base_ns: float
    child_ns: float
    policy: int
    threshold: int


class _Costs(NamedTuple):
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
    children: int
    lag_ns: float
    stagger_ns: float
    guess_ns: float


def run(work: Spawns, options: Spawning, policy: int, threshold: int = 1) -> Ran:
    """Return the compiled simulation; ``threshold``: fewer items are never launched by THRESHOLD, SPAWN and WARP.

    Raises UserError where a thread's items are threads that are not its own.
    """
    o, n = options, len(work.items)
    first_child = np.full(n, -1, np.int64) if work.first_child is None else work.first_child
    depth = _depth(work, first_child)
    costs = _Costs(
        int(o.slots), int(o.resident), int(o.parent), int(o.child), int(o.warp), float(o.launch_ns),
        float(o.another_ns), float(o.serve_ns), float(o.window_ns), int(o.queues), float(o.gap_ns), int(o.prior),
        int(o.untried), int(o.children), float(o.lag_ns), float(o.stagger_ns), float(o.guess_ns),
    )  # fmt: skip
    z = _State(
        np.zeros(14, np.int64), np.zeros(12), np.empty(o.slots + n + 2), np.empty(o.slots + n + 2, np.int64),
        np.empty(o.slots, np.int64), np.arange(o.slots), np.empty(n + 1, np.int64), np.zeros(n, np.int64),
        np.zeros(n, np.int64), np.full(n, np.nan), np.full(n, np.nan), np.full(n, np.nan), np.zeros(o.slots),
        np.empty(depth + 1, np.int64), np.empty(depth + 1, np.int64), np.zeros(o.warp, np.bool_),
        np.empty(o.warp, np.int64), np.zeros(o.slots + 1, np.int64), np.zeros(o.slots + 1),
    )  # fmt: skip
    z.c[_HELD], z.c[_ROOM] = o.slots, o.resident
    z.ns[_CLOSES], z.ns[_LOOKED] = o.window_ns, -np.inf
    program = _Work(
        work.items, work.item_ns, first_child, float(work.base_ns), float(work.child_ns), int(policy), int(threshold)
    )
    return Ran(_run(work.round_at, program, costs, z), z.took, z.estimate)


def _depth(work: Spawns, first_child: NDArray[np.int64]) -> int:
    """Return levels of threads below those of the rounds."""
    roots = int(work.round_at[-1])
    level, count, depth = np.arange(roots), roots, 0
    while True:
        parents = level[(first_child[level] >= 0) & (work.items[level] > 0)]
        if not len(parents):
            break
        owner, place = ragged(work.items[parents])
        level = first_child[parents][owner] + place
        count += len(level)
        depth += 1
        if level.max() >= len(work.items) or level.min() < roots or count > len(work.items):
            raise UserError(
                f"workload {work.name}: items of threads are threads {level.min()} to {level.max()}, expected "
                f"{roots} to {len(work.items) - 1}, each once; number the threads level by level"
            )
    if count != len(work.items):
        raise UserError(f"workload {work.name}: {len(work.items) - count} threads are in no round and no item")
    return depth


@compiled
def _run(round_at: NDArray[np.int64], w: _Work, o: _Costs, z: _State) -> float:
    """Run event by event: slot s falls free (s), grid g arrives (slots + g), the next round begins (slots + threads of
    all rounds).
    """
    c, n = z.c, len(w.items)
    now = 0.0
    while c[_CURRENT] + 1 < len(round_at):
        stop = round_at[c[_CURRENT] + 1]
        while c[_ACTIVE] < o.queues and c[_ENTERED] < c[_ARRIVED]:
            c[_ACTIVE] += 1
            c[_ENTERED] += 1
        while o.children > 0 and c[_HELD] > 0 and c[_FRONT] < c[_ENTERED] and c[_ROOM] >= o.child:
            _start_child(z, o, w, now)
        while c[_HELD] > 0 and c[_PARENT] < stop and c[_ROOM] >= o.parent and now >= z.ns[_REACHES]:
            last = min(c[_PARENT] + o.parent, stop)
            life = _tile_life(w, o, z, now, c[_PARENT], last, w.base_ns)
            c[_PARENT] = last
            _start(z, -1, o.parent, now, life)
            if o.stagger_ns > 0 and c[_PARENT] < stop:
                z.ns[_REACHES] = now + o.stagger_ns
                _schedule(z, z.ns[_REACHES], o.slots + n)
        while c[_HELD] > 0 and c[_PARENT] == stop and c[_FRONT] < c[_ENTERED] and c[_ROOM] >= o.child:
            _start_child(z, o, w, now)
        if c[_RUNNING] == 0 and c[_QUEUED] == 0:
            c[_CURRENT] += 1
            if c[_CURRENT] + 1 < len(round_at):
                _schedule(z, now + o.gap_ns, o.slots + n)
        if c[_SIZE] == 0:
            break
        now = z.keys[0]
        while c[_SIZE] > 0 and z.keys[0] == now:
            _happens(z, o, n, now)
    return now


@internal
def _schedule(z: _State, when: float, item: int) -> None:
    push(z.keys, z.events, z.c[_SIZE], when, item)
    z.c[_SIZE] += 1


@internal
def _happens(z: _State, o: _Costs, threads: int, now: float) -> None:
    item = z.events[0]
    pop(z.keys, z.events, z.c[_SIZE])
    z.c[_SIZE] -= 1
    if item == o.slots + threads:
        return
    if item >= o.slots:
        z.arrived[z.c[_ARRIVED]] = item - o.slots
        z.c[_ARRIVED] += 1
        return
    z.free[z.c[_HELD]] = item
    z.c[_HELD] += 1
    z.ns[_OWN_ITEMS] += z.own_items[item]
    z.ns[_OWN_NS] += z.own_ns[item]
    grid = z.runs[item]
    if grid < 0:
        z.c[_RUNNING] -= 1
        z.c[_ROOM] += o.parent
        return
    z.c[_ROOM] += o.child
    z.c[_QUEUED] -= 1
    z.c[_ENDED] += 1
    z.ns[_LIVED] += z.lives[item]
    _tick(z, o, now)
    z.c[_CHILDREN] -= 1
    if z.c[_CHILDREN] == 0:
        z.ns[_BUSY] += now - z.ns[_SINCE]
    z.to_end[grid] -= 1
    if z.to_end[grid] == 0:
        z.c[_ACTIVE] -= 1
        z.took[grid] = now - z.asked[grid]


@internal
def _start(z: _State, what: int, threads: int, now: float, life: float) -> None:
    z.c[_HELD] -= 1
    z.c[_ROOM] -= threads
    slot = z.free[z.c[_HELD]]
    z.runs[slot] = what
    z.lives[slot] = life
    z.own_items[slot], z.own_ns[slot] = z.own_items[-1], z.own_ns[-1]
    z.own_items[-1], z.own_ns[-1] = 0, 0.0
    if what < 0:
        z.c[_RUNNING] += 1
    _schedule(z, now + life, slot)


@internal
def _tick(z: _State, o: _Costs, now: float) -> None:
    """Count child tiles over the window, before the number of those that run changes or is asked for."""
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
def _start_child(z: _State, o: _Costs, w: _Work, now: float) -> None:
    grid = z.arrived[z.c[_FRONT]]
    tile = _tiles(o, w.items[grid]) - z.to_start[grid]
    z.to_start[grid] -= 1
    if z.to_start[grid] == 0:
        z.c[_FRONT] += 1
    if z.c[_CHILDREN] == 0:
        z.ns[_SINCE] = now
    _tick(z, o, now)
    z.c[_CHILDREN] += 1
    life = w.child_ns + w.item_ns[grid]
    if w.first_child[grid] >= 0:
        first, last = tile * o.child, min((tile + 1) * o.child, w.items[grid])
        life = _tile_life(w, o, z, now, w.first_child[grid] + first, w.first_child[grid] + last, life)
    _start(z, grid, o.child, now, life)


@internal
def _tiles(o: _Costs, items: int) -> int:
    return (items + o.child - 1) // o.child


@internal
def _tile_life(w: _Work, o: _Costs, z: _State, now: float, begin: int, stop: int, base_ns: float) -> float:
    """The threads of a tile decide, warp by warp, after ``base_ns`` each, and the longest warp is the tile's life."""
    life = 0.0
    for first in range(begin, stop, o.warp):
        last = min(first + o.warp, stop)
        if w.policy == WARP:
            _choose(w, o, z, first, last, now)
        launches = 0
        for t in range(first, last):
            if w.items[t] > 0 and (z.chosen[t - first] if w.policy == WARP else _launches(w, o, z, t, launches, now)):
                _launch(w, o, z, t, launches, now, now + base_ns)
                launches += 1
        cost_ns = base_ns + (o.launch_ns + launches * o.another_ns if launches > 0 else 0.0)
        for t in range(first, last):
            if z.to_end[t] > 0:
                _arrive(z, o, t, now + cost_ns)
        longest = 0.0
        for t in range(first, last):
            if w.items[t] > 0 and z.to_end[t] == 0:
                took = _inline(w, o, z, t, now, cost_ns)
                longest = max(longest, took)
                z.own_items[-1] += w.items[t]
                z.own_ns[-1] += took
        life = max(life, cost_ns + longest)
    return life


@internal
def _launches(w: _Work, o: _Costs, z: _State, t: int, launches: int, now: float) -> bool:
    """Return whether a thread launches after some other launches of its warp, by a rule for each thread of its own."""
    if w.policy < THRESHOLD:
        return w.policy == ALWAYS
    if w.items[t] < w.threshold:
        return False
    if w.policy == THRESHOLD:
        return True
    if o.prior == 0 and z.c[_ENDED] == 0:
        return bool(_queued(z, o, now) + _tiles(o, w.items[t]) <= o.untried)
    each, warp_ns = _pace(w, o, z, t, now)
    expected = o.launch_ns + (launches + 1) * o.another_ns + (_queued(z, o, now) + _tiles(o, w.items[t])) * each
    return not expected >= w.items[t] * warp_ns


@internal
def _queued(z: _State, o: _Costs, now: float) -> int:
    """Child tiles launched and not ended, as a rule sees them, which looks again after ``lag_ns``."""
    if o.lag_ns <= 0 or now > z.ns[_LOOKED] + o.lag_ns:
        z.c[_SEEN], z.ns[_LOOKED] = z.c[_QUEUED], now
    return int(z.c[_SEEN])


@internal
def _choose(w: _Work, o: _Costs, z: _State, first: int, last: int, now: float) -> None:
    """Choose the sites of a warp to launch: the largest, as many as make the later of warp and children end first."""
    z.chosen[:] = False
    best_ns, best, tiles = 0.0, 0, 0
    for launches in range(last - first + 1):
        largest, longest = -1, 0.0
        for t in range(first, last):
            took = w.items[t] * _item_ns(w, o, z, t)
            if not z.chosen[t - first] and took > longest:
                largest, longest = t, took
        ends_ns = longest
        if launches > 0:
            warp_ns = o.launch_ns + launches * o.another_ns
            each, _ = _pace(w, o, z, first, now)
            served_ns = max(0.0, z.ns[_SERVED] - now - warp_ns) + launches * o.serve_ns
            queued_ns = (_queued(z, o, now) + tiles) * (o.serve_ns if np.isnan(each) else each)
            ends_ns = warp_ns + max(longest, served_ns + queued_ns)
        if launches == 0 or ends_ns < best_ns:
            best_ns, best = ends_ns, launches
        if largest < 0 or w.items[largest] < w.threshold:
            break
        z.chosen[largest - first] = True
        z.picked[launches] = largest - first
        tiles += _tiles(o, w.items[largest])
    for launch in range(best, z.chosen.sum()):
        z.chosen[z.picked[launch]] = False


@internal
def _item_ns(w: _Work, o: _Costs, z: _State, t: int) -> float:
    """Return the time of an item of thread t as the rule for warps knows it."""
    if o.guess_ns <= 0:
        return float(w.item_ns[t])
    return float(z.ns[_OWN_NS] / z.ns[_OWN_ITEMS]) if z.ns[_OWN_ITEMS] > 0 else o.guess_ns


@internal
def _launch(w: _Work, o: _Costs, z: _State, t: int, launches: int, now: float, threads: float) -> None:
    """Count a launch of thread t, the number ``launches`` of its warp, that is asked for at a time."""
    tiles = _tiles(o, w.items[t])
    each, _ = _pace(w, o, z, t, now)
    z.asked[t] = threads
    z.estimate[t] = o.launch_ns + (launches + 1) * o.another_ns + (z.c[_QUEUED] + tiles) * each
    z.to_end[t] = z.to_start[t] = tiles
    z.c[_QUEUED] += tiles


@internal
def _arrive(z: _State, o: _Costs, t: int, when: float) -> None:
    z.ns[_SERVED] = max(when, z.ns[_SERVED] + o.serve_ns)
    _schedule(z, z.ns[_SERVED] if o.serve_ns > 0 else when, o.slots + t)


@internal
def _inline(w: _Work, o: _Costs, z: _State, t: int, now: float, begin: float) -> float:
    """Return the time that a thread takes for its items one after the other, and for theirs where these are not
    launched.
    """
    if w.first_child[t] < 0:
        return float(w.items[t] * w.item_ns[t])
    took, depth = 0.0, 0
    z.owner[0], z.next[0] = t, w.first_child[t]
    while depth >= 0:
        owner, u = z.owner[depth], z.next[depth]
        if u == w.first_child[owner] + w.items[owner]:
            depth -= 1
            continue
        z.next[depth] += 1
        took += w.item_ns[owner]
        if w.items[u] == 0:
            continue
        launched = w.policy != WARP and _launches(w, o, z, u, 0, now)
        if w.policy == WARP:
            _choose(w, o, z, u, u + 1, now)
            launched = z.chosen[0]
        if launched:
            _launch(w, o, z, u, 0, now, now + begin + took)
            took += o.launch_ns + o.another_ns
            _arrive(z, o, u, now + begin + took)
        elif w.first_child[u] < 0:
            took += w.items[u] * w.item_ns[u]
        else:
            depth += 1
            z.owner[depth], z.next[depth] = u, w.first_child[u]
    return took


@internal
def _pace(w: _Work, o: _Costs, z: _State, t: int, now: float) -> tuple[float, float]:
    """Return one over the throughput of child tiles, and the time of a child warp; not a number while nothing
    is known.
    """
    each, warp_ns = np.nan, np.nan
    if o.prior:
        warp_ns = w.child_ns + w.item_ns[t]
        each = warp_ns / min(o.slots, o.resident // o.child)
    if z.c[_ENDED] > 0:
        busy = z.ns[_BUSY] + (now - z.ns[_SINCE] if z.c[_CHILDREN] > 0 else 0.0)
        each = busy / z.c[_ENDED]
        warp_ns = z.ns[_LIVED] / z.c[_ENDED]
        if o.window_ns > 0:
            _tick(z, o, now)
            each = warp_ns / max(z.ns[_MEAN], 1.0)
    return each, warp_ns
