"""The decisions of a scheduler, as arrays that an engine can run.

A launch *opens* when all its gates have opened, ``gap_ns`` has passed since the last of them, the host has issued it
(``issue_ns``) and it has entered the window of launches under way. Tiles of open launches are dispatched to SMs in
order of ``rank``, then of tiles; a tile that fits no SM holds back all after it, as the hardware's dispatcher does,
unless the plan is ``greedy``: then tiles of other launches that fit go before it. A ready tile of a persistent launch
(more tiles than blocks) of which as many run as it has blocks holds back no other: it continues when one of them ends.

Within one instant everything that is ready is dispatched before launches open that waited for these dispatches
(``started``). So a launch that opens without a gap comes after tiles of later ranks that were ready already: with
``window`` 0, where all that waits for nothing is open at once, the branches of a program go before the consumers of its
first launch. That is how grids arrive at a GPU, one stream each.

What a tile
waits for after its launch has opened is its launch's ``gate``:

| gate | a tile is dispatched | and then |
|---|---|---|
| FREE | at once | runs |
| READY | when all its parents have ended, ``signal_ns`` ago | runs |
| INSIDE | at once, holding its place | waits at the access that needs a parent's bytes until the parent has ended |
| GRID | at once, holding its place | waits after ``prologue`` of its work until the launch ``waits_for`` has ended |

A launch that opens may have to pass a *launcher*, which opens one per ``period_ns``, and to take one of a number of
*lanes* (streams that are driven by a thread each), which is free again ``lane_ns`` after the launch has ended.

Limits of schedulers with small memories may be added:

*Deciders* (`Deciding`): a READY tile whose waits are over queues for one of a few servers, each of which takes up to
``batch`` of those that wait and hands them to the SMs together; or, with ``ahead``, tiles queue as soon as their launch
is open, and are dispatched when decided and ready.

*Nodes* (`Nodes`): tiles enter a buffer in issue order, leave it when they end, and are dispatched only from it. A
parent that ends notes its children outside in a second buffer; those that find no room there learn of it later.

*Queues* (`Queues`): launches belong to queues, of which only some are mapped at a time; a launch of another queue
cannot start. At the end of each quantum one mapped queue with nothing under way makes room for another; a queue without
launches leaves its place at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar, get_type_hints

import numpy as np
from numpy.typing import NDArray

FREE, READY, INSIDE, GRID = range(4)


class Deciding(NamedTuple):
    """Servers that decide about READY tiles; times in nanoseconds. ``servers`` 0: nothing is decided, tiles are just
    ready.
    """

    servers: int = 0
    decide_ns: float = 0.0
    """A tile, in a server."""
    commit_ns: float = 0.0
    """A batch, in a server."""
    batch: int = 1
    deliver_ns: float = 0.0
    """Time from the decision to the SM."""
    ahead: bool = False
    """Decide when the launch opens, not when the tile is ready."""
    bypass: int = 0
    """Tiles with 1 to this many parents are never decided about: they begin ``bypass_ns`` after their last parent."""
    bypass_ns: float = 0.0


class Nodes(NamedTuple):
    """Room for tiles that a scheduler knows of. ``resident`` 0: any number."""

    resident: int = 0
    pending: int = 0
    """Children outside that may be noted."""
    spill_ns: float = 0.0
    """More, from the end of a parent, to children that could not be noted."""


class Queues(NamedTuple):
    """Queues that the hardware watches. ``mapped`` 0: all."""

    mapped: int = 0
    quantum_ns: float = 0.0
    by_priority: bool = False
    """The queue whose first launch is most urgent comes in, and the least urgent idle one goes out; else in turn."""


class Plan(NamedTuple):
    """Arrays over n launches of a problem; times in nanoseconds."""

    rank: NDArray[np.int64]
    """``[n]`` a permutation: order of dispatch."""
    gate: NDArray[np.int8]
    issue_ns: NDArray[np.float64]
    gap_ns: NDArray[np.float64]
    after_at: NDArray[np.int64]
    """CSR: launches that wait for the end of a launch."""
    after: NDArray[np.int64]
    started_at: NDArray[np.int64]
    """CSR: launches that wait until all tiles of a launch have been dispatched and have done ``trigger`` of their work.
    """
    started: NDArray[np.int64]
    waits_for: NDArray[np.int64]
    """``[n]`` the launch that a GRID launch's tiles wait for; -1 for none."""
    prologue: NDArray[np.float64]
    """``[n]`` share of a tile's work before that wait."""
    trigger: NDArray[np.float64]
    """``[n]`` share of a tile's work after which it counts for those that wait in ``started``; 0: when it is
    dispatched. The rest of the work is taken to run at rate 1.
    """
    overhead_ns: NDArray[np.float64]
    """``[n]`` added to every tile of a launch."""
    signal_ns: NDArray[np.float64]
    """``[n]`` from the end of what is waited for to the moment a waiting tile of a launch knows."""
    period_ns: float
    """Time between two launches that open; 0: any number at once."""
    lanes: int
    """Launches that may be open and not ended; 0: any number."""
    lane_ns: float
    """Time from the end of a launch to the moment its lane is free."""
    greedy: bool
    """A tile that fits no SM does not hold back tiles of other launches."""
    window: int
    """Launches that may be under way (entered in issue order, not ended); 0: any number."""
    in_order: bool
    """Launches leave the window in issue order."""
    deciding: Deciding
    nodes: Nodes
    queues: Queues
    queue: NDArray[np.int64]
    """``[n]`` the queue of a launch; launches of a queue must run one ``after`` another."""
    urgency: NDArray[np.int64]
    """``[n]`` the least is most urgent."""


@dataclass(slots=True)
class Draft:
    """A plan in the making, in lists: what schedulers fill in. Defaults: everything opens at once, in issue order."""

    launches: int
    gate: list[int] = field(default_factory=list)
    gap_ns: list[float] = field(default_factory=list)
    issue_ns: list[float] = field(default_factory=list)
    after: list[set[int]] = field(default_factory=list)
    """Launches that must have ended, by launch."""
    started: list[set[int]] = field(default_factory=list)
    """Launches whose tiles must all have been dispatched, and have done their launch's ``trigger`` of work, by launch.
    """
    trigger: list[float] = field(default_factory=list)
    waits_for: list[int] = field(default_factory=list)
    prologue: list[float] = field(default_factory=list)
    overhead_ns: list[float] = field(default_factory=list)
    signal_ns: float | list[float] = 0.0
    period_ns: float = 0.0
    lanes: int = 0
    lane_ns: float = 0.0
    greedy: bool = False
    one_kernel: bool = False
    """All launches are tasks of one kernel, which has one configuration: see
    `tileprof.analysis.simulate.engine.state.Room`.
    """
    window: int = 0
    in_order: bool = False
    deciding: Deciding = field(default_factory=Deciding)
    nodes: Nodes = field(default_factory=Nodes)
    queues: Queues = field(default_factory=Queues)
    queue: list[int] = field(default_factory=list)
    urgency: list[int] = field(default_factory=list)
    rank: list[int] = field(default_factory=list)
    """Empty: issue order."""
    reserved_sms: int = 0
    """SMs on which no tile runs."""
    notes: list[str] = field(default_factory=list)
    """Sentences for the reader of the result."""

    def __post_init__(self) -> None:
        n = self.launches
        self.gate = self.gate or [FREE] * n
        self.gap_ns = self.gap_ns or [0.0] * n
        self.issue_ns = self.issue_ns or [0.0] * n
        self.after = self.after or [set() for _ in range(n)]
        self.started = self.started or [set() for _ in range(n)]
        self.trigger = self.trigger or [0.0] * n
        self.queue = self.queue or [0] * n
        self.urgency = self.urgency or list(range(n))
        self.waits_for = self.waits_for or [-1] * n
        self.prologue = self.prologue or [0.0] * n
        self.overhead_ns = self.overhead_ns or [0.0] * n

    def plan(self) -> Plan:
        after_at, after = _waiting(self.after)
        started_at, started = _waiting(self.started)
        return Plan(
            rank=np.array(self.rank or range(self.launches), np.int64),
            gate=np.array(self.gate, np.int8),
            issue_ns=np.array(self.issue_ns, np.float64),
            gap_ns=np.array(self.gap_ns, np.float64),
            after_at=after_at,
            after=after,
            started_at=started_at,
            started=started,
            waits_for=np.array(self.waits_for, np.int64),
            prologue=np.array(self.prologue, np.float64),
            trigger=np.array(self.trigger, np.float64),
            overhead_ns=np.array(self.overhead_ns, np.float64),
            signal_ns=np.broadcast_to(np.asarray(self.signal_ns, np.float64), (self.launches,)).copy(),
            period_ns=float(self.period_ns),
            lanes=int(self.lanes),
            lane_ns=float(self.lane_ns),
            greedy=bool(self.greedy),
            window=int(self.window),
            in_order=bool(self.in_order),
            deciding=_with_declared_types(self.deciding),
            nodes=_with_declared_types(self.nodes),
            queues=_with_declared_types(self.queues),
            queue=np.array(self.queue, np.int64),
            urgency=np.array(self.urgency, np.int64),
        )


Limits = TypeVar("Limits", Deciding, Nodes, Queues)


def _with_declared_types(limits: Limits) -> Limits:
    """Return the same numbers as the types that their fields declare: the engine is compiled once per type of plan,
    which takes half a minute, and a 0 where another scheduler has 0.0 is another type.
    """
    types = get_type_hints(type(limits))
    return limits._replace(**{name: types[name](getattr(limits, name)) for name in limits._fields})


def _waiting(sources: Sequence[set[int]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return CSR from each source to those that name it."""
    pairs = sorted((source, launch) for launch, targets in enumerate(sources) for source in targets)
    first = np.array([p[0] for p in pairs], np.int64)
    return np.searchsorted(first, np.arange(len(sources) + 1)).astype(np.int64), np.array(
        [p[1] for p in pairs], np.int64
    )
