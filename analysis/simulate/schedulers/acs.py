"""``acs-sw`` and ``acs-hw``: whole kernels out of order, from a window."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tileprof.analysis.simulate.plan import Draft
from tileprof.analysis.simulate.scheduler import Options, Program, option

_NAMED = 5
"""Missed pairs that a note names."""


@dataclass(frozen=True)
class AcsSoftware(Options):
    """Launches enter a window in order and start, each on a stream of its own, when the launches in it that they depend on have
    ended (Durvasula et al., "ACS: Concurrent Kernel Execution on Irregular, Input-Dependent Computational Graphs",
    arXiv:2401.12377, software version). All three hazards are kept, recycled memory included; ``published=1`` keeps what
    the check as printed there finds: it holds the segments that the new kernel writes against those of the window, so that a kernel
    that only reads what another writes waits for nothing. The note says which dependencies are then missed, and the
    schedule is one that would compute wrong results.

    ``window`` 32 as in the paper. A launch is delayed by ``check_ns`` and by ``segment_ns`` for each pair of its segments (operands) and
    those of a launch in the window, shared by ``threads`` checking threads, and by ``gap_ns`` (the device's launch gap); the
    host's costs are assumed, not measured.
    """

    name: ClassVar[str] = "acs-sw"

    window: int = option(32, "launches in the window", least=1)
    gap_ns: float | None = option(None, "ns from the last dependency to the begin; the device's launch gap by default")
    check_ns: float = option(500.0, "ns of host time to check a launch")
    segment_ns: float = option(1.0, "ns of host time to compare two segments")
    threads: int = option(1, "host threads that check", least=1)
    published: int = option(0, "1: only what the printed check finds, 0: all hazards", most=1)

    def draft(self, program: Program) -> Draft:
        gap = program.device.launch_gap_ns if self.gap_ns is None else self.gap_ns
        draft = windowed(program, self.window, published=bool(self.published))
        issued, in_window = 0.0, 0
        for launch, segments in enumerate(program.segments):
            issued += (self.check_ns + self.segment_ns * segments * in_window) / self.threads if launch else 0.0
            in_window += segments - (program.segments[launch - self.window] if launch >= self.window else 0)
            draft.gap_ns[launch] = gap if launch else 0.0
            draft.issue_ns[launch] = issued
        return draft


@dataclass(frozen=True)
class AcsHardware(Options):
    """As ``acs-sw``, with the window on the GPU (Durvasula et al., arXiv:2401.12377, hardware version): the host sends launches with their
    segments without waiting for anything, and the GPU checks them and starts kernels itself, so that no round trip to the host
    lies between a kernel and the next.

    ``window`` 32 as in the paper. ``send_ns``, the host's time a launch, ``check_ns``, the GPU's, and ``gap_ns`` from the end of the last
    dependency to the begin are assumed, not measured. ``published`` as in ``acs-sw``.
    """

    name: ClassVar[str] = "acs-hw"

    window: int = option(32, "launches in the window", least=1)
    gap_ns: float = option(200.0, "ns from the last dependency to the begin")
    send_ns: float = option(250.0, "ns of host time to send a launch with its segments")
    check_ns: float = option(50.0, "ns of GPU time to check a launch")
    published: int = option(0, "1: only what the printed check finds, 0: all hazards", most=1)

    def draft(self, program: Program) -> Draft:
        draft = windowed(program, self.window, published=bool(self.published))
        for launch in range(program.count):
            draft.gap_ns[launch] = self.check_ns + (self.gap_ns if draft.after[launch] else 0.0)
            draft.issue_ns[launch] = launch * self.send_ns
        return draft


def windowed(program: Program, window: int, *, published: bool) -> Draft:
    """Launches that wait for those they depend on, or for those that the published check finds."""
    draft = Draft(program.count, window=window)
    for launch in range(program.count):
        hazards = program.hazards[launch]
        draft.after[launch] = {p for p, kinds in hazards.items() if not published or kinds & {"WAR", "WAW"}}
    if published:
        draft.notes = missed(program.hazards, draft.after)
    return draft


def missed(hazards: list[dict[int, set[str]]], after: list[set[int]]) -> list[str]:
    """A sentence about the dependencies that nothing keeps: neither the check nor a chain of checked launches."""
    kept: list[set[int]] = []
    found: list[tuple[int, int, set[str]]] = []
    total = 0
    for launch, depends in enumerate(hazards):
        before = set(after[launch]).union(*(kept[p] for p in after[launch]))
        kept.append(before)
        lost = [p for p in depends if p not in before]
        total += len(depends)
        found += [(p, launch, depends[p]) for p in sorted(lost)]
    if not found:
        return ["The published check misses no dependency here."]
    kinds = sorted({kind for _, _, lost_kinds in found for kind in lost_kinds})
    some = ", ".join(f"{p} to {c}" for p, c, _ in found[:_NAMED])
    more = f" and {len(found) - _NAMED:,} more" if len(found) > _NAMED else ""
    said = (
        f"The published check misses {len(found):,} of {total:,} dependent pairs of launches ({', '.join(kinds)}): {some}{more}. "
        "This schedule would compute wrong results."
    )
    return [said]
