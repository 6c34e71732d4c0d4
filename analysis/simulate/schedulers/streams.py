"""``streams``: independent launches on several hardware queues."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tileprof.analysis.simulate.engine.plan import Draft, Queues
from tileprof.analysis.simulate.scheduler import Options, Program, option

IN_TURN, OLDEST, CRITICAL = range(3)


@dataclass(frozen=True)
class Streams(Options):
    """Launches spread over ``queues`` streams by their dependencies: a launch follows in the queue of a parent that is
    still the last there, else it takes the queue used longest ago; events keep the other dependencies, recycled memory
    included.

    ``queues`` defaults to 8, CUDA's own number of hardware connections (CUDA_DEVICE_MAX_CONNECTIONS, CUDA C++
    Programming Guide, "Environment Variables"). ``gap_ns`` and ``issue_ns`` as in ``stream``: one host thread launches
    into all queues; ``sync_ns`` is added where another queue's event is awaited, and is assumed, not measured.

    With ``hardware`` the GPU watches only this many queues at a time and the others are oversubscribed (Puthoor et al.,
    "Oversubscribed Command Queues in GPUs", GPGPU 2018): whenever ``quantum_ns`` has passed, a queue with nothing under
    way gives its place to another, even if all that it did was to wait. Which two is the question of that paper:
    ``priority=0`` takes them in turn; 1 and 2 bring in the queue whose first launch is most urgent and send out the
    least urgent idle one, by issue order or by the longest path of launches behind it. How the paper's own priorities
    are found could not be read; these two stand for them. The quantum, 100 us, and that one queue changes at a time are
    those of the hardware scheduler that its authors gave to gem5 (``src/dev/hsa/hw_scheduler.cc``, ``wakeupDelay``);
    there a queue that is empty stays until it is destroyed, here it leaves at once.

    | rule | source | here | worth |
    |---|---|---|---|
    | queues watched | 4 of 8, in turn | all | 0, +51.1, 0% |
    """

    name: ClassVar[str] = "streams"

    queues: int = option(8, "queues in use", least=1)
    gap_ns: float | None = option(None, "ns between dependent launches; the device's by default")
    issue_ns: float | None = option(None, "ns of host time per launch; the device's figure for one thread by default")
    sync_ns: float = option(1000.0, "additional ns if the launch waits for an event of another queue")
    hardware: int = option(0, "queues that the GPU watches at a time, 0: all")
    quantum_ns: float = option(100_000.0, "ns between changes of the queues that are watched", least=1.0)
    priority: int = option(IN_TURN, "0 in turn, 1 oldest launch first, 2 longest path first", most=CRITICAL)

    def draft(self, program: Program) -> Draft:
        gap = program.device.launch_gap_ns if self.gap_ns is None else self.gap_ns
        draft = Draft(program.count, issue_ns=program.issued(self.issue_ns), period_ns=program.device.graph_issue_ns)
        tail = [-1] * self.queues
        for launch in range(program.count):
            parents = program.all_parents(launch)
            queue = next(
                (q for q in range(self.queues) if tail[q] in parents), min(range(self.queues), key=tail.__getitem__)
            )
            before = {tail[queue]} - {-1}
            tail[queue] = launch
            draft.queue[launch] = queue
            draft.after[launch] = parents | before
            draft.gap_ns[launch] = (gap if draft.after[launch] else 0.0) + (self.sync_ns if parents - before else 0.0)
        draft.queues = Queues(self.hardware, self.quantum_ns, by_priority=self.priority != IN_TURN)
        if self.priority == CRITICAL:
            draft.urgency = _by_path(program, draft.after)
        return draft


def _by_path(program: Program, after: list[set[int]]) -> list[int]:
    """Return rank of each launch by the longest path behind it, queue order included, so that nothing urgent waits for
    less urgent launches.
    """
    behind = [float(ns) for ns in program.launches["duration_ns"].tolist()]
    own = list(behind)
    for launch in range(program.count - 1, -1, -1):
        for parent in after[launch]:
            behind[parent] = max(behind[parent], own[parent] + behind[launch])
    order = sorted(range(program.count), key=lambda launch: (-behind[launch], launch))
    rank = [0] * program.count
    for place, launch in enumerate(order):
        rank[launch] = place
    return rank
