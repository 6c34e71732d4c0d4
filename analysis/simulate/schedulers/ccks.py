"""``ccks``: a persistent kernel whose tiles the CPU hands out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tileprof.analysis.simulate.plan import READY, Deciding, Draft
from tileprof.analysis.simulate.scheduler import Options, Program, option
from tileprof.devices.device import LINK_WAYS


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
    by ``way`` (`LINK_WAYS`); on an H200 over PCIe 2.5 us, with which the runtime's ``ccks`` is simulated within 9% on
    ten chains, and with ``speculate=0`` its ``ccks-ready`` within 14% (docs/ccks.md). Of NVLink-C2C, which the proposal
    has, ``up=500ns,down=500ns`` is assumed, and so are ``threads``, ``decide_ns``, ``commit_ns`` and ``fetch_ns``; a
    block that relays costs nothing here. ``local_ns`` is two L2 round trips. Workers are those of ``persistent``.

    A tile is not tied to a worker before it runs, as if each command could still be overwritten. The runtime sends each
    worker ``depth`` tiles, which stay there (``ccks``), or overwrites those that no worker has taken
    (``ccks-overwrite``).

    | rule | source | here | worth |
    |---|---|---|---|
    | decisions | ahead of parents | the same; `speculate=0` | -58.4, -55.1, -51.5% |
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
    fetch_ns: float = option(100.0, "ns of a worker's time per tile")

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
            overhead_ns=[self.fetch_ns] * n,
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
