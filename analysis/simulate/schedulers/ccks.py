"""``ccks``: a persistent kernel whose tiles the CPU hands out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tileprof.analysis.simulate.plan import READY, Deciding, Draft
from tileprof.analysis.simulate.scheduler import Options, Program, option


@dataclass(frozen=True)
class Ccks(Options):
    """Workers of a persistent kernel report ends of tiles to the CPU over a coherent link, and the CPU decides what
    runs next and writes it back (a proposal for Grace Hopper, "CCKS: Cooperative Coherent Kernel Scheduler",
    openreview.net/forum?id=tXHoLHkm8O; its abstract and figures are what this follows: no code is public).

    ``speculate=1``: the CPU enqueues tiles of the next ``window`` launches before their parents have ended, and the GPU
    starts them ``local_ns`` after the last parent; the window moves on when the report of a launch's end has arrived.
    0: decisions begin when the report of the last parent has arrived. ``bypass``: tiles with at most this many parents
    start without the CPU, ``local_ns`` after these. ``batch`` decisions share one ``commit_ns``.

    ``up_ns`` and ``down_ns``, the link each way, ``threads``, ``decide_ns``, ``commit_ns`` and ``fetch_ns`` are assumed
    for NVLink-C2C, not measured. Over PCIe an H200 answers in 3.0 us from one block and 5.0 us from 132 (a CPU thread
    that decides nothing): ``ccks:up=2500ns,down=2500ns`` is the runtime's ``ccks`` there, within 9% on ten chains, and
    with ``speculate=0`` its ``ccks-ready`` (docs/ccks.md). ``local_ns`` is two L2 round trips. Workers are as large as
    the largest tile, as in ``persistent``.

    | rule | source | here | worth |
    |---|---|---|---|
    | decisions | ahead of parents | the same; `speculate=0` | -2.6, -34.9, -28.5% |
    | bypass | one parent | the same; `bypass=0` | 0, -0.2, 0% |
    """

    name: ClassVar[str] = "ccks"

    up_ns: float = option(500.0, "ns from the end of a tile on the GPU to the CPU")
    down_ns: float = option(500.0, "ns from a commit on the CPU to the SM")
    decide_ns: float = option(20.0, "ns of CPU time per tile")
    commit_ns: float = option(100.0, "ns of CPU time per batch")
    batch: int = option(32, "tiles in a batch, at most", least=1)
    threads: int = option(4, "CPU threads that decide", least=1)
    speculate: int = option(1, "1: enqueue tiles before their parents have ended", most=1)
    window: int = option(4, "launches under way, 0: any number")
    bypass: int = option(1, "parents of tiles that start without the CPU, at most; 0: none")
    local_ns: float = option(700.0, "ns from the end of a parent to a tile that the GPU starts by itself")
    fetch_ns: float = option(100.0, "ns of a worker's time per tile")

    def draft(self, program: Program) -> Draft:
        n = program.count
        deciding = Deciding(
            servers=self.threads,
            decide_ns=self.decide_ns,
            commit_ns=self.commit_ns,
            batch=self.batch,
            deliver_ns=self.down_ns,
            ahead=bool(self.speculate),
            bypass=self.bypass,
            bypass_ns=self.local_ns,
        )
        draft = Draft(
            n,
            gate=[READY] * n,
            overhead_ns=[self.fetch_ns] * n,
            signal_ns=self.local_ns if self.speculate else self.up_ns,
            window=self.window,
            one_kernel=True,
            deciding=deciding,
        )
        for launch in range(self.window, n) if self.speculate and self.window else ():
            draft.after[launch].add(launch - self.window)
            draft.gap_ns[launch] = self.up_ns
        return draft
