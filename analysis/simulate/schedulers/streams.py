"""``streams``: independent launches on several hardware queues."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tileprof.analysis.simulate.plan import Draft
from tileprof.analysis.simulate.scheduler import Options, Program, option


@dataclass(frozen=True)
class Streams(Options):
    """Launches spread over ``queues`` streams by their dependencies: a launch follows in the queue of a parent that is still the
    last there, else it takes the queue used longest ago; events keep the other dependencies, recycled memory included.

    ``queues`` defaults to 8, CUDA's own number of hardware connections (CUDA_DEVICE_MAX_CONNECTIONS, CUDA C++
    Programming Guide, "Environment Variables"). ``gap_ns`` as in ``stream``; ``sync_ns`` is added where another queue's event is
    awaited, and is assumed, not measured.
    """

    name: ClassVar[str] = "streams"

    queues: int = option(8, "hardware queues", least=1)
    gap_ns: float | None = option(None, "ns between dependent launches; the device's by default")
    sync_ns: float = option(1000.0, "ns more where an event of another queue is awaited")

    def draft(self, program: Program) -> Draft:
        gap = program.device.launch_gap_ns if self.gap_ns is None else self.gap_ns
        draft = Draft(program.count)
        tail = [-1] * self.queues
        for launch in range(program.count):
            parents = program.all_parents(launch)
            queue = next(
                (q for q in range(self.queues) if tail[q] in parents), min(range(self.queues), key=tail.__getitem__)
            )
            before = {tail[queue]} - {-1}
            tail[queue] = launch
            draft.after[launch] = parents | before
            draft.gap_ns[launch] = (gap if draft.after[launch] else 0.0) + (self.sync_ns if parents - before else 0.0)
        return draft
