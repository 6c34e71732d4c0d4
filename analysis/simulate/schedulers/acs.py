"""``acs-sw`` and ``acs-hw``: whole kernels out of order, from a window."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from tileprof.analysis.simulate.engine.plan import Draft
from tileprof.analysis.simulate.scheduler import Options, Program, option
from tileprof.analysis.simulate.schedulers.acs_lanes import Lanes, Placement

_NAMED = 5
"""Missed pairs that a note names."""


CHECK_NS, SEGMENT_NS = 12.0, 0.49
"""Least squares on the paper's table II (410 to 1,640 ns for 6 and 10 segments per kernel, windows of 16 and 32), whose
times they meet within 30%.
"""


RECORD_NS, WAIT_NS, HOP_NS = 180.0, 200.0, 1000.0
"""The first two are an H200's, measured by `tileprof.runtime.acs.costs`; the last is assumed."""

QUEUE_NS = 150.0
"""Time of the program's thread per launch that a thread beside it issues: on a fake driver, by the test
`test_a_launch_costs_the_program_a_fraction_of_what_the_driver_takes` and others of `test_issuing_thread.py`.
"""

JOIN_NS, BESIDE_NS = 417.0, 94.0
"""Costs in a CUDA graph, measured on an H200 (tests/gpu/measuring/acs/measure_acs_simulated.py, 2026-11-24): kernels of
two branches that cross lose 417 ns each against two that do not, those of eight branches that do not cross 656 ns
against one.
"""

BESIDE_SHARE = 0.05
"""Least squares on 6,018 kernels of three captured programs (`tree_lstm --leaves 16`, Inception v3, NASNet-A) that the
profiler timed alone and beside others on an H200: the same file's `timeline`, 2026-11-24.
"""


@dataclass(frozen=True)
class AcsSoftware(Options):
    """Launches enter a window in order and start when the launches in it that they depend on have ended (Durvasula et
    al., "ACS: Concurrent Kernel Execution on Irregular, Input-Dependent Computational Graphs", arXiv:2401.12377,
    software version).

    One host thread checks launches as they enter: ``check_ns``, and ``segment_ns`` for each pair of its segments
    (operands) and those of a launch in the window (the paper's table II), shared by ``threads``. ``streams`` worker
    threads own a stream each; one of them launches a kernel that depends on nothing under way, in ``issue_ns`` (the
    device's figure for this number of threads launching side by side), waits for its end, and is free for the next
    ``sync_ns`` after that, as are the launches that waited for it (the paper measures 5 to 20 us for that and the
    launch together). ``gap_ns``, the device's launch gap, passes before each kernel but the first.

    ``events=1`` is what ``tileprof run --scheduler acs`` does: one host thread issues, and order is kept on the GPU by
    events, so that nothing waits for the host. A launch follows on a stream that ends with one that it waits for, else
    takes a stream whose work is over for it; each event that is recorded and awaited costs the host ``record_ns`` and
    ``wait_ns``, and where one is awaited ``hop_ns`` pass. The check costs the issuing thread as much as above.
    ``sync_ns`` and ``threads`` then mean nothing.

    ``queued=1``, as ``tileprof run`` does by default: a thread beside the program's issues. The program's own thread
    spends ``queue_ns`` and the part of ``issue_ns`` that is not the driver's (the device's figure); the other thread
    spends the driver's time for each launch, and that for the check and for events.

    ``captured=1`` is the same for launches that the program captures into a CUDA graph of its own: the streams become
    branches of the graph, the host's costs and the events are gone, ``gap_ns`` is the device's gap inside a graph, and
    ``hop_ns`` what a kernel loses that also waits for another branch, and ``beside_ns`` what it loses for each other
    branch that may run beside it, or ``beside_share`` of its own time where that is more.

    Both know what the run's footprint table knows: what a launch reads of a buffer stands for all of it (``fine=1``:
    what ``--fine`` keeps), and a launch that the recorder knows only conservatively orders everything around it.

    ``published=1`` keeps what the check as printed finds: it holds the segments that the new kernel writes against
    those of the window, so that a kernel that only reads what another writes waits for nothing. The note says which
    dependencies are then missed, and the schedule is one that would compute wrong results.

    As in the paper the window has 32 launches; ranges are compared with the last ``window`` launches in issue order, by
    address, so that recycled memory counts. The paper leaves the number of streams to the user.

    | rule | source | here | worth |
    |---|---|---|---|
    | hazards | by ranges | the same; `exact=1` | 0, 0, +21.4% |
    | which hazards | the printed check | all three | -71.4, -68.9, -44.7% |
    | order | by host threads | the same; `events=1` | +129.4, +89.7, +140.2% |
    """

    name: ClassVar[str] = "acs-sw"

    window: int = option(32, "launches in the window", least=1)
    streams: int = option(8, "streams, each with a host thread that launches and waits", least=1)
    gap_ns: float | None = option(None, "ns to launch; the device's gap between launches or in a graph by default")
    issue_ns: float | None = option(
        None, "ns of host time per launch; the device's figure for this number of threads by default"
    )
    sync_ns: float = option(5000.0, "ns from the end of a launch to the host thread that waits for it")
    check_ns: float = option(CHECK_NS, "ns of host time to check a launch")
    segment_ns: float = option(SEGMENT_NS, "ns of host time to compare two segments")
    threads: int = option(1, "host threads that check", least=1)
    exact: int = option(0, "1: hazards by bytes, 0: by ranges of operands", most=1)
    published: int = option(0, "1: only what the printed check finds, 0: all hazards", most=1)
    fine: int = option(0, "1: ranges of what is read, 0: whole buffers (events=1, captured=1)", most=1)
    events: int = option(0, "1: order by events on the GPU, 0: by host threads that wait", most=1)
    record_ns: float = option(RECORD_NS, "ns of host time to record an event (events=1)")
    wait_ns: float = option(WAIT_NS, "ns of host time to make a stream wait for an event (events=1)")
    hop_ns: float | None = option(None, "additional ns if another stream is awaited (events=1: 1000; captured=1: 417)")
    beside_ns: float = option(BESIDE_NS, "additional ns for each branch that may run beside (captured=1)")
    beside_share: float = option(BESIDE_SHARE, "share of its time that a kernel loses instead, if that is more")
    queued: int = option(0, "1: a thread beside the program's issues (events=1)", most=1)
    queue_ns: float = option(QUEUE_NS, "ns of the program's own thread to queue a launch (queued=1)")
    captured: int = option(
        0, "1: the launches are captured into a CUDA graph, whose branches the streams become", most=1
    )

    def draft(self, program: Program) -> Draft:
        if self.captured:
            return self._by_branches(program)
        return self._by_events(program) if self.events else self._by_workers(program)

    def _by_branches(self, program: Program) -> Draft:
        device = program.device
        gap = device.graph_gap_ns if self.gap_ns is None else self.gap_ns
        hop = JOIN_NS if self.hop_ns is None else self.hop_ns
        draft = self._windowed(program)
        draft.window, draft.period_ns = 0, device.graph_issue_ns
        duration = program.launches["duration_ns"].tolist()
        for launch, placement in enumerate(self._placements(program, draft)):
            draft.after[launch] = {*placement.awaited, *({placement.before} if placement.before >= 0 else ())}
            beside = max(self.beside_ns, self.beside_share * duration[launch])
            loss = (hop if placement.awaited else 0.0) + placement.beside * beside
            draft.gap_ns[launch] = gap + loss if draft.after[launch] else 0.0
        return draft

    def _by_events(self, program: Program) -> Draft:
        device = program.device
        gap = device.launch_gap_ns if self.gap_ns is None else self.gap_ns
        each = device.issue_ns() if self.issue_ns is None else self.issue_ns
        draft = self._windowed(program)
        draft.window, draft.period_ns = 0, device.graph_issue_ns
        hop = HOP_NS if self.hop_ns is None else self.hop_ns
        driver = min(each, device.issue_ns()) if self.queued else each
        own = each - driver + self.queue_ns if self.queued else 0.0  # of the program's thread
        issued = 0.0
        compared = pairs_compared(program, self.window)
        for launch, (placement, pairs) in enumerate(zip(self._placements(program, draft), compared, strict=True)):
            draft.after[launch] = {*placement.awaited, *({placement.before} if placement.before >= 0 else ())}
            if launch:
                events = placement.recorded * self.record_ns + len(placement.awaited) * self.wait_ns
                decided = self.check_ns + self.segment_ns * pairs
                issued = max(issued, launch * own) + driver + events + decided
            draft.issue_ns[launch] = issued
            draft.gap_ns[launch] = (gap if draft.after[launch] else 0.0) + (hop if placement.awaited else 0.0)
        return draft

    def _windowed(self, program: Program) -> Draft:
        whole = bool(self.events or self.captured) and not self.fine
        return windowed(program, self.window, exact=bool(self.exact), published=bool(self.published), whole=whole)

    def _placements(self, program: Program, draft: Draft) -> Iterator[Placement]:
        lanes = Lanes(self.streams, self.window)
        unknown = (program.launches["coverage"] == "conservative").tolist()
        for launch in range(program.count):
            yield lanes.barrier(launch) if unknown[launch] else lanes.place(launch, draft.after[launch])

    def _by_workers(self, program: Program) -> Draft:
        gap = program.device.launch_gap_ns if self.gap_ns is None else self.gap_ns
        draft = self._windowed(program)
        draft.lanes, draft.lane_ns = self.streams, self.sync_ns
        draft.period_ns = program.device.issue_ns(self.streams) if self.issue_ns is None else self.issue_ns
        checked = 0.0
        for launch, compared in enumerate(pairs_compared(program, self.window)):
            checked += (self.check_ns + self.segment_ns * compared) / self.threads if launch else 0.0
            has_wait = bool(draft.after[launch]) or launch >= self.window
            draft.gap_ns[launch] = gap + (self.sync_ns if has_wait else 0.0) if launch else 0.0
            draft.issue_ns[launch] = checked
        return draft


@dataclass(frozen=True)
class AcsHardware(Options):
    """The rules of ``acs-sw`` with the window on the GPU (Durvasula et al., arXiv:2401.12377, hardware version): the
    host compares segments with those of the launches that it has last sent, and sends the launch with what it found,
    without waiting for anything; the GPU strikes out what has ended and starts kernels itself, so that no round trip to
    the host lies between a kernel and the next.

    ``window`` 32 as in the paper. The host's list holds the last ``listed`` launches that it sent, ended or not, since
    nothing tells it; its time to compare is that of ``acs-sw``. ``check_ns``, the GPU's time per launch, is 64 cycles
    for a window of 32 (the paper's N cycles to enter and N - 1 to update). ``send_ns``, the host's time to send, and
    ``gap_ns`` from the end of the last dependency to the begin are assumed, not measured. ``published`` and ``exact``
    as in ``acs-sw``.

    | | paper | here |
    |---|---|---|
    | window and list | N entries on the GPU, M on the host | ``window``, ``listed``; a full window holds back |
    | stale entries of the list | struck out on arrival | cost the host's comparisons, and no time on the GPU |
    | hazards | ranges | as in ``acs-sw`` |

    | rule | source | here | worth |
    |---|---|---|---|
    | hazards | by ranges | the same; `exact=1` | 0, 0, +19.8% |
    | which hazards | the printed check | all three | -68.8, -45.7, -36.2% |
    """

    name: ClassVar[str] = "acs-hw"

    window: int = option(32, "launches in the window", least=1)
    listed: int = option(64, "launches on the host's list", least=1)
    gap_ns: float = option(200.0, "ns from the last dependency to the begin")
    send_ns: float = option(250.0, "ns of host time to send a launch with its segments")
    segment_ns: float = option(SEGMENT_NS, "ns of host time to compare two segments")
    check_ns: float = option(50.0, "ns of GPU time to check a launch")
    exact: int = option(0, "1: hazards by bytes, 0: by ranges of operands", most=1)
    published: int = option(0, "1: only what the printed check finds, 0: all hazards", most=1)

    def draft(self, program: Program) -> Draft:
        draft = windowed(program, self.window, exact=bool(self.exact), published=bool(self.published))
        draft.period_ns = program.device.graph_issue_ns
        issued = 0.0
        for launch, compared in enumerate(pairs_compared(program, self.listed)):
            issued += self.send_ns + self.segment_ns * compared if launch else 0.0
            draft.gap_ns[launch] = self.check_ns + (self.gap_ns if draft.after[launch] else 0.0)
            draft.issue_ns[launch] = issued
        return draft


def pairs_compared(program: Program, window: int) -> Iterator[int]:
    """Yield, by launch, the pairs of its segments and those of the launches in a full window before it."""
    in_window = 0
    for launch, segments in enumerate(program.segments):
        yield segments * in_window
        in_window += segments - (program.segments[launch - window] if launch >= window else 0)


def windowed(program: Program, window: int, *, exact: bool, published: bool, whole: bool = False) -> Draft:
    """Return launches that wait for those they depend on, by ranges or by bytes, or for those that the published check
    finds.

    What depends by bytes alone lies outside of the window, and may still be under way.
    """
    draft = Draft(program.count, window=window)
    overlaps = [{} for _ in range(program.count)] if exact else program.overlaps(window, whole)
    for launch in range(program.count):
        for hazards in (program.hazards[launch], overlaps[launch]):
            draft.after[launch] |= {p for p, kinds in hazards.items() if not published or kinds & {"WAR", "WAW"}}
    if published:
        draft.notes = missed_notes(program.hazards, draft.after)
    return draft


def missed_notes(hazards: list[dict[int, set[str]]], after: list[set[int]]) -> list[str]:
    """Return a sentence about the dependencies that nothing keeps: neither the check nor a chain of checked
    launches.
    """
    ancestors: list[set[int]] = []
    missing: list[tuple[int, int, set[str]]] = []
    total = 0
    for launch, depends in enumerate(hazards):
        before = set(after[launch]).union(*(ancestors[p] for p in after[launch]))
        ancestors.append(before)
        missed_parents = [p for p in depends if p not in before]
        total += len(depends)
        missing += [(p, launch, depends[p]) for p in sorted(missed_parents)]
    if not missing:
        return ["The published check misses no dependency here."]
    kinds = sorted({kind for _, _, lost_kinds in missing for kind in lost_kinds})
    some = ", ".join(f"{p} to {c}" for p, c, _ in missing[:_NAMED])
    more = f" and {len(missing) - _NAMED:,} more" if len(missing) > _NAMED else ""
    sentence = (
        f"The published check misses {len(missing):,} of {total:,} dependent pairs of launches ({', '.join(kinds)}): "
        f"{some}{more}. "
        "This schedule would compute wrong results."
    )
    return [sentence]
