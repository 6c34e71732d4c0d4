"""Operators of all stages of a policy, with names for their tensors.

Equal names are the same memory. A tensor is a buffer of the trace, and bears its name where it has one. Two things get
names of their own: a part of a buffer that no stage writes and that does not begin where the buffer's first part does,
and a buffer's content from the stage on that writes all of it again (in place, or into memory used again): what is read
is then the newest content, as in the program.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tileprof.policy.operators.epilogues import absorb
from tileprof.policy.operators.kinds import Draft, draft
from tileprof.policy.operators.recorded_call import RecordedCall, Slot, UnknownStageError

if TYPE_CHECKING:
    from tileprof.analysis import TileGraph
    from tileprof.policy.format import Stage


def describe(graph: TileGraph, stages: Sequence[Stage], folded: Sequence[int] = ()) -> tuple[Stage, ...]:
    """Return the stages with ``operator`` filled in; where none describes a stage, ``reason`` says why.

    ``folded``: launches that are taken as part of the stage before them (`tileprof.policy.synthesis.epilogue_fusion`).
    """
    attempts = [_attempt(graph, int(stage.launch or 0)) for stage in stages]
    drafts, reasons = [d for d, _ in attempts], [r for _, r in attempts]
    for launch in folded:
        latest = max((n for n, s in enumerate(stages) if (s.launch or 0) < launch), default=0)
        absorb(graph, launch, drafts, reasons, latest)
    names = _Names(graph, [d for d in drafts if d is not None])
    described = []
    for stage, one, reason in zip(stages, drafts, reasons, strict=True):
        operator: dict[str, Any] = {} if one is None else names.bind(one)
        described.append(replace(stage, operator=operator, reason=reason))
    return tuple(described)


def _attempt(graph: TileGraph, launch: int) -> tuple[Draft | None, str]:
    try:
        return draft(RecordedCall.of(graph, launch)), ""
    except UnknownStageError as error:
        return None, str(error)
    except (TypeError, ValueError, LookupError, ArithmeticError):
        # The call is text of the trace, and its layouts and numbers may contradict each other and the accesses in any
        # way.
        return None, "the trace's description of how the operator was called contradicts what the launch did"


class _Names:
    """Names of tensors, stage after stage."""

    def __init__(self, graph: TileGraph, drafts: Sequence[Draft]) -> None:
        self._written = {d.operands["out"].buffer for d in drafts}
        slots = [slot for d in drafts for slot in d.operands.values()]
        self._first: dict[int, int] = {}
        self._last: dict[int, int] = {}
        for slot in slots:
            self._first[slot.buffer] = min(slot.offset, self._first.get(slot.buffer, slot.offset))
            self._last[slot.buffer] = max(slot.last, self._last.get(slot.buffer, 0))
        self._version: dict[int, int] = {}
        self._touched: set[int] = set()
        self._base = _base_names(graph, [slot.buffer for slot in slots])

    def bind(self, one: Draft) -> dict[str, Any]:
        """Return the operator as a policy holds it; readers see the content before the stage writes."""
        reads = {role: self._view(slot) for role, slot in one.operands.items() if role != "out"}
        self._touched |= {slot.buffer for role, slot in one.operands.items() if role != "out"}
        out = one.operands["out"]
        whole = out.offset == self._first[out.buffer] and out.last == self._last[out.buffer]
        if whole and out.buffer in self._touched:
            self._version[out.buffer] = self._version.get(out.buffer, 1) + 1
        self._touched.add(out.buffer)
        return {"name": one.name, "operands": {**reads, "out": self._view(out)}, "parameters": one.parameters}

    def _view(self, slot: Slot) -> dict[str, Any]:
        first = self._first[slot.buffer]
        name, offset = self._base[slot.buffer], slot.offset - first
        if slot.buffer not in self._written and offset:
            name, offset = f"{name}+{offset}", 0
        if self._version.get(slot.buffer, 1) > 1:
            name = f"{name}#{self._version[slot.buffer]}"
        view = {"tensor": name, "shape": list(slot.shape), "strides": list(slot.strides), "dtype": slot.dtype}
        return view | ({"offset": offset} if offset else {})


def _base_names(graph: TileGraph, buffers: Sequence[int]) -> dict[int, str]:
    """Return the trace's names where they tell buffers apart, else numbers."""
    recorded_names = graph.recording.buffers["name"].astype(str)
    names = {buffer: recorded_names.iloc[buffer] for buffer in dict.fromkeys(buffers)}
    all_names = list(names.values())
    return {b: name if name and all_names.count(name) == 1 else f"{name or 't'}{b}" for b, name in names.items()}
