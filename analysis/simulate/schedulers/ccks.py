"""``ccks``: a persistent kernel whose tiles the CPU hands out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final, Self, cast

import numpy as np
from numpy.typing import NDArray

from tileprof.analysis.bounds.problem import successors
from tileprof.analysis.simulate.engine.event_loop import Outcome, Room
from tileprof.analysis.simulate.engine.plan import READY, Deciding, Draft, Plan
from tileprof.analysis.simulate.rings import Rings, run
from tileprof.analysis.simulate.scheduler import Options, Program, option
from tileprof.analysis.simulate.workers import first_begins, workers
from tileprof.analysis.times_and_counts import counted
from tileprof.arrays import I64
from tileprof.devices.device import LINK_WAYS
from tileprof.errors import UserError

if TYPE_CHECKING:
    from tileprof.analysis.bounds.problem import Problem


_FETCH_NS: Final = 100.0
"""A worker's time to take a tile from a queue on the GPU, assumed."""


_DEPTH: Final = 2
"""Tiles that the runtime's co-pilot sends a worker."""


@dataclass(frozen=True)
class Ccks(Options):
    """Workers of a persistent kernel report ends of tiles to the CPU over a coherent link, and the CPU decides what
    runs next and writes it back (a proposal for Grace Hopper, "CCKS: Cooperative Coherent Kernel Scheduler",
    openreview.net/forum?id=tXHoLHkm8O; its abstract and figures are what this follows: no code is public).

    ``speculate=1``: the CPU enqueues tiles of the next ``window`` launches before their parents have ended, and the GPU
    starts them ``local_ns`` after the last parent; the window moves on when the report of a launch's end has arrived.
    0: decisions begin when the report of the last parent has arrived. ``bypass``: tiles with at most this many parents
    start without the CPU, ``local_ns`` after these. ``batch`` decisions share one ``commit_ns``.

    ``up_ns`` and ``down_ns``, the link each way, are half of the device's round trip for as many blocks as it has SMs,
    by ``way`` (`LINK_WAYS`); on an H200 over PCIe 2.5 us, with which the runtime's ``ccks`` is simulated within 15% on
    15 of 18 chains, and with ``speculate=0`` its ``ccks-ready``, too (docs/ccks.md). For NVLink-C2C, which the proposal
    has, ``up=500ns,down=500ns`` is assumed, and so are ``threads``, ``decide_ns``, ``commit_ns`` and ``fetch_ns``; a
    block that relays costs nothing here. ``local_ns`` is two L2 round trips. Workers are those of ``persistent``.

    ``depth`` ties tiles to workers as the runtime's co-pilot does: each worker is sent up to ``depth`` tiles.
    ``overwrite=1`` overwrites commands that are not taken where a more urgent tile becomes ready
    (`tileprof.analysis.simulate.rings`).
    A worker takes its next command ``lead_ns`` before its tile has ended; the runtime's loaders do when the tile's last
    blocks of k are in their rings.
    Tiles with the longest chain behind them go first, before them the program of launch ``urgent``: all launches that
    depend on each other. One thread decides then, and ``commit_ns``, ``batch``, ``threads``, ``window`` and ``bypass``
    do not count. With ``depth`` 0 whichever worker is free takes a tile, as if each command could be overwritten.

    | rule | source | here | worth |
    |---|---|---|---|
    | decisions | ahead of parents | the same; `speculate=0` | -58.4, -54.1, -60.2% |
    | bypass | one parent | the same; `bypass=0` | 0, 0, 0% |
    """

    name: ClassVar[str] = "ccks"

    up_ns: float | None = option(None, "ns from the end of a tile on the GPU to the CPU; the device's by default")
    down_ns: float | None = option(None, "ns from a commit on the CPU to the SM; the device's by default")
    way: int = option(
        0,
        "how answers come: 0 ring, 1 host, 2 relay, 3 copy engine, 4 stream writes, 5 batches of them",
        names=LINK_WAYS,
    )
    decide_ns: float = option(20.0, "ns of CPU time per tile")
    commit_ns: float = option(100.0, "ns of CPU time per batch")
    batch: int = option(32, "tiles in a batch, at most", least=1)
    threads: int = option(4, "CPU threads that decide", least=1)
    speculate: int = option(1, "1: enqueue tiles before their parents have ended", most=1)
    window: int = option(4, "launches under way, 0: any number")
    bypass: int = option(1, "parents of tiles that start without the CPU, at most; 0: none")
    local_ns: float = option(700.0, "ns from the end of a parent to a tile that the GPU starts by itself")
    fetch_ns: float | None = option(None, "ns of a worker's time per tile; 100, with depth the device's read of a word")
    depth: int = option(0, "most tiles in a worker's ring, 0: tiles are not tied to workers", most=12)
    lead_ns: float = option(0.0, "ns before its tile's end at which a worker takes its next command, with a depth")
    overwrite: int = option(0, "1: overwrite commands that no worker has taken (depth of 2 or more)", most=1)
    urgent: int = option(-1, "number of a launch of the urgent program (with a depth); -1: none", least=-1)

    def with_options(self, options: Mapping[str, str]) -> Self:
        """Return what deals tiles into rings where ``depth``, or what asks for one, is given."""
        configured = super().with_options(options)
        if not (configured.depth or configured.overwrite or configured.urgent >= 0):
            return configured
        in_rings = _CcksInRings(**vars(configured) | {"depth": configured.depth or _DEPTH})
        if in_rings.overwrite and in_rings.depth < _DEPTH:
            raise UserError(f"scheduler ccks: overwrite=1 takes depth=2 or more, not {in_rings.depth}")
        return cast("Self", in_rings)

    def draft(self, program: Program) -> Draft:
        n = program.count
        up_ns, down_ns = self.link_ns(program)
        deciding = Deciding(
            servers=self.threads,
            decide_ns=self.decide_ns,
            commit_ns=self.commit_ns,
            batch=self.batch,
            deliver_ns=down_ns,
            ahead=bool(self.speculate),
            bypass=self.bypass,
            bypass_ns=self.local_ns,
        )
        draft = Draft(
            n,
            gate=[READY] * n,
            overhead_ns=[_FETCH_NS if self.fetch_ns is None else self.fetch_ns] * n,
            signal_ns=self.local_ns if self.speculate else up_ns,
            window=self.window,
            one_kernel=True,
            deciding=deciding,
        )
        for launch in range(self.window, n) if self.speculate and self.window else ():
            draft.after[launch].add(launch - self.window)
            draft.gap_ns[launch] = up_ns
        return draft

    def link_ns(self, program: Program) -> tuple[float, float]:
        """Return the link up and down, the device's where no option gives it."""
        up_ns, down_ns = self.up_ns, self.down_ns
        if up_ns is None or down_ns is None:
            device_ns = program.device.link_one_way_ns(program.sms, LINK_WAYS[self.way])
            up_ns, down_ns = (device_ns if ns is None else ns for ns in (up_ns, down_ns))
        return up_ns, down_ns


@dataclass(frozen=True)
class _CcksInRings(Ccks):
    """`Ccks` with a ``depth``, see `Ccks.with_options`."""

    def draft(self, program: Program) -> Draft:
        n = program.count
        up_ns, down_ns = self.link_ns(program)
        read_ns = program.device.link_read_ns
        if self.down_ns is None:
            down_ns = max(0.0, down_ns - read_ns)  # the round trip ends with the worker's read
        fetch_ns = read_ns if self.fetch_ns is None else self.fetch_ns
        deciding = Deciding(servers=1, decide_ns=self.decide_ns, deliver_ns=down_ns, ahead=bool(self.speculate))
        return Draft(
            n, gate=[READY] * n, overhead_ns=[fetch_ns] * n, signal_ns=up_ns, one_kernel=True, deciding=deciding
        )

    def alone(self, p: Problem, room: Room, plan: Plan) -> tuple[Outcome, list[str]]:
        """Return every tile's times, and sentences about commands and the end of the program that goes first."""
        grade, place, first = urgency(p, self.urgent)
        costs = Rings(
            workers(p, room),
            self.depth,
            ahead=plan.deciding.ahead,
            overwrite=bool(self.overwrite),
            up_ns=float(plan.signal_ns.max(initial=0.0)),
            down_ns=plan.deciding.deliver_ns,
            decide_ns=plan.deciding.decide_ns,
            fetch_ns=float(plan.overhead_ns.max(initial=0.0)),
            local_ns=self.local_ns,
            lead_ns=self.lead_ns,
        )
        outcome = run(p, successors(p), costs, place, grade)
        sentences = []
        if self.overwrite:
            late = f"{outcome.too_late:,} of them too late"
            sentences.append(f"{counted(outcome.overwritten, 'command')} overwritten, {late}.")
        if self.urgent >= len(p.launch):
            sentences.append(f"There is no launch {self.urgent}, so that no program goes first.")
        if first.any():
            end_us = outcome.end_ns[first].max() / 1e3
            sentences.append(f"The program of launch {self.urgent} ends after {end_us:.1f} us.")
        sm = (outcome.worker % room.sms).astype(np.int32)
        opened = first_begins(p, outcome.begin_ns)
        return Outcome(outcome.begin_ns, outcome.end_ns, sm, opened, p.tiles, outcome.deciding_ns, 0), sentences


def urgency(p: Problem, urgent: int) -> tuple[I64, I64, NDArray[np.bool_]]:
    """Return ``[tiles]`` grade, place and whether a tile belongs to the program of launch ``urgent`` (-1: none does).

    A launch is as urgent as the longest chain of tiles behind it, by the longest tile of each launch.
    """
    n = len(p.launch)
    tiles = np.diff(p.tile_base)
    launch_of = np.repeat(np.arange(n), tiles)
    longest = np.array([p.ns[p.ns_at[i] : p.ns_at[i] + tiles[i]].max(initial=0.0) for i in range(n)])
    behind = np.zeros(n)
    for link in np.argsort(-p.producer, kind="stable"):  # a launch depends on earlier ones
        producer, consumer = p.producer[link], p.consumer[link]
        behind[producer] = max(behind[producer], longest[consumer] + behind[consumer])
    program = np.zeros(n, np.bool_)
    if 0 <= urgent < n:
        program[urgent], size = True, 0
        while size < program.sum():
            size = int(program.sum())
            inside = program[p.producer] | program[p.consumer]
            program[p.producer[inside]] = program[p.consumer[inside]] = True
    order = np.lexsort((-(longest + behind), ~program))
    keys = np.stack([~program, -(longest + behind)])[:, order]
    grade_of_launch = np.empty(n, np.int64)
    grade_of_launch[order] = np.cumsum(np.append(0, (keys[:, 1:] != keys[:, :-1]).any(axis=0))) if n else []
    grade = grade_of_launch[launch_of]
    place = np.empty(p.tiles, np.int64)
    place[np.argsort(grade, kind="stable")] = np.arange(p.tiles)
    return grade, place, program[launch_of]
