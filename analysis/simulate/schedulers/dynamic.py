"""``persistent-dynamic``: one kernel for the whole program, its tiles handed out on the GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tileprof.analysis.simulate.engine.plan import READY, Deciding, Draft
from tileprof.analysis.simulate.scheduler import Options, Program, option

SCHEDULERS_PER_SM = 4


@dataclass(frozen=True)
class PersistentDynamic(Options):
    """A persistent kernel: worker SMs run tiles and count up events, scheduler warps on other SMs see an event complete
    and put the tiles that waited for it into workers' queues (Cheng et al., "Mirage Persistent Kernel: A Compiler and
    Runtime for Mega-Kernelizing Tensor Programs", arXiv:2512.22219, and its repository, whose runtime sets 4 SMs of a
    132-SM GPU apart and runs 4 schedulers on each).

    ``scheduler_sms`` is that share of the GPU unless given. ``signal_ns``, from a tile's end through its event counter
    to a scheduler, and ``deliver_ns``, from there through a queue to a worker, are an L2 round trip each, about 0.35 us
    (Luo et al. 2024, arXiv:2402.13499); ``decide_ns``, a scheduler's time per tile, and ``fetch_ns``, a worker's for
    the tile's description, are assumed, not measured. All launches are tasks of one kernel, whose workers are
    alike (`tileprof.analysis.simulate.engine.state.Room.of_one_kernel`).

    ``scheduler_sms`` 0 and ``decide_ns`` 0 are the runtime's ``persistent-dynamic``: there the tile that brings
    the last input of another puts it into a queue, and no SM is set apart. ``persistent`` has static lists.

    | rule | source | here | worth |
    |---|---|---|---|
    | schedulers | 4 SMs of 132 | the same; `scheduler_sms=0` | +3.7, +7.3, +2.7% |
    """

    name: ClassVar[str] = "persistent-dynamic"

    scheduler_sms: int | None = option(None, "SMs for schedulers; 4 of 132 by default", whole=True)
    signal_ns: float = option(350.0, "ns from the end of a tile to a scheduler that waits for it")
    decide_ns: float = option(50.0, "ns of a scheduler's time per tile")
    deliver_ns: float = option(350.0, "ns from a scheduler to a worker")
    fetch_ns: float = option(100.0, "ns of a worker's time per tile")

    def draft(self, program: Program) -> Draft:
        n, sms = program.count, program.sms
        share = min(max(1, round(sms * 4 / 132)), sms - 1)
        reserved = share if self.scheduler_sms is None else self.scheduler_sms
        servers = max(1, reserved * SCHEDULERS_PER_SM)
        return Draft(
            n,
            gate=[READY] * n,
            overhead_ns=[self.fetch_ns] * n,
            signal_ns=self.signal_ns,
            deciding=Deciding(servers=servers, decide_ns=self.decide_ns, deliver_ns=self.deliver_ns),
            reserved_sms=reserved,
            one_kernel=True,
        )
