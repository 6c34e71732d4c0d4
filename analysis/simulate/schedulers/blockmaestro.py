"""``blockmaestro``: kernels launched early, their blocks held back by a hardware scheduler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tileprof.analysis.simulate.plan import FREE, READY, Draft
from tileprof.analysis.simulate.scheduler import Options, Program, option


@dataclass(frozen=True)
class BlockMaestro(Options):
    """Kernels are launched while the ones before them still run, so that launch costs are hidden; a block is dispatched when the counter of its
    parents is down to zero; kernels complete in order (Abdolrashidi et al., "BlockMaestro: Enabling
    Programmer-Transparent Task-based Execution in GPU Systems", ISCA 2021).

    The paper finds dependencies by static analysis of PTX; here they are the recorded ones. Launches with a tile of more than
    ``counter`` parents wait for whole launches, since a counter has so many values; where a launch has more than ``entries``
    dependencies, their lists lie in memory, and an update takes ``memory_ns`` instead of ``update_ns``. ``window`` 2 is a
    kernel and the one launched ahead of it; ``gap_ns`` (the device's launch gap) is paid from a launch's entry into the window.
    Sizes and times other than that are assumed, not the authors'.
    """

    name: ClassVar[str] = "blockmaestro"

    window: int = option(2, "launches under way, the running one included", least=1)
    counter: int = option(63, "most parents that a tile's counter holds")
    entries: int = option(4096, "dependencies of a launch that the buffer on the chip holds")
    update_ns: float = option(20.0, "ns from the end of a parent to a tile that waits for it")
    memory_ns: float = option(600.0, "ns likewise, of a launch whose dependencies lie in memory")
    gap_ns: float | None = option(None, "ns to launch a kernel ahead; the device's launch gap by default")

    def draft(self, program: Program) -> Draft:
        gap = program.device.launch_gap_ns if self.gap_ns is None else self.gap_ns
        draft = Draft(program.count, window=self.window, in_order=True)
        signals, coarse, in_memory = [], 0, 0
        for launch in range(program.count):
            draft.gap_ns[launch] = gap if launch else 0.0
            fine = program.fan_in[launch] <= self.counter
            draft.gate[launch] = READY if fine else FREE
            if not fine:
                draft.after[launch] = program.all_parents(launch)
            held = program.edges[launch] <= self.entries
            signals.append(self.update_ns if held else self.memory_ns)
            coarse, in_memory = coarse + (not fine), in_memory + (fine and not held)
        draft.signal_ns = signals
        if coarse:
            draft.notes.append(
                f"{coarse:,} launches wait for whole launches: a tile has more than {self.counter} parents."
            )
        if in_memory:
            draft.notes.append(f"{in_memory:,} launches have their dependencies in memory: more than {self.entries:,}.")
        return draft
