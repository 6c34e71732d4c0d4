"""Finds the operator call of each launch, as PyTorch dispatched it, for the column ``call``.

The hooks inside the program (`inprocess/tileprof_calls.py`) write a ``called`` event behind the launches of a call,
between the two marks that name its operator.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tileprof.record.cuda.footprints.lifetimes import Lifetimes


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of a call: shapes and strides in elements; ``written``: the operator writes to it."""

    argument: str
    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    itemsize: int
    written: bool
    device: str

    @property
    def layout(self) -> dict[str, Any]:
        """Return the layout as in the ``call`` column."""
        return {
            "argument": self.argument, "shape": list(self.shape), "strides": list(self.strides), "dtype": self.dtype,
        }  # fmt: skip

    @property
    def view(self) -> tuple[Any, ...]:
        """Equal for two tensors with the same elements in the same order."""
        return self.address, self.shape, self.strides, self.dtype


@dataclass(frozen=True, slots=True)
class OperatorCall:
    """An operator call; ``arguments`` as the hooks wrote them, with places in ``tensors``."""

    op: str
    arguments: dict[str, Any]
    tensors: tuple[Tensor, ...]

    @classmethod
    def of(cls, event: dict[str, Any]) -> OperatorCall:
        """Return the call of a ``called`` event."""
        tensors = (Tensor(t[0], t[1], tuple(t[2]), tuple(t[3]), *t[4:]) for t in event["tensors"])
        return cls(event["op"], event["arguments"], tuple(tensors))

    def origins(self) -> list[int]:
        """Return addresses at which its tensors on the GPU begin."""
        return sorted({t.address for t in self.tensors if t.device == "cuda" and t.address})

    def column(self, number: int, operands: Sequence[tuple[int, int]], lifetimes: Lifetimes) -> str:
        """Return the text of ``launches.call`` for one of its launches; ``number`` is the same for all launches of the
        call.

        Beside what the model recorder writes it holds every tensor of the call with buffer (-1: unknown) and offset in
        bytes, whether or not this launch touches it.
        """
        places = [_place(t, lifetimes) for t in self.tensors]
        tensors = [
            t.layout | {"buffer": buffer, "offset": offset, "written": t.written}
            for t, (buffer, offset) in zip(self.tensors, places, strict=True)
        ]
        slots = [self._slot(operand, places) for operand in operands]
        arguments = {name: value for name, value in self.arguments.items() if not _has_tensor(value)}
        text = {
            "operands": [] if None in slots else [slot or None for slot in slots],
            "arguments": arguments,
            "number": number,
            "tensors": tensors,
            "places": {name: value for name, value in self.arguments.items() if _has_tensor(value)},
        }
        return json.dumps(text, separators=(",", ":"))

    def _slot(self, operand: tuple[int, int], places: Sequence[tuple[int, int]]) -> dict[str, Any] | None:
        """Return the layout of the tensor that an operand slot is; empty for workspace, None where several tensors
        share a buffer.
        """
        buffer, offset = operand
        here = {t.view: (t, at) for t, (b, at) in zip(self.tensors, places, strict=True) if b == buffer}
        if not here:
            return {}
        [(tensor, at), *others] = here.values()
        return tensor.layout if at == offset and not others else None


def by_mark(events: Iterable[dict[str, Any]]) -> dict[int, OperatorCall]:
    """Return the call that was made under each mark, by the identity of the mark's event."""
    calls: dict[int, OperatorCall] = {}
    mark: dict[str, Any] | None = None
    for event in events:
        if event["e"] == "mark":
            mark = event
        elif event["e"] == "called" and mark is not None and mark.get("op") == event["op"]:
            calls[id(mark)] = OperatorCall.of(event)
    return calls


def _place(tensor: Tensor, lifetimes: Lifetimes) -> tuple[int, int]:
    """Return buffer and offset in bytes of a tensor's first element; -1 where its memory is not in the trace."""
    leaves = lifetimes.leaves()
    if tensor.device != "cuda" or not tensor.address or not len(leaves.edges):
        return -1, 0
    piece = int(leaves.find(np.array([tensor.address]))[0])
    if piece < 0 or leaves.buffer[piece] < 0:
        return -1, 0
    return int(leaves.buffer[piece]), tensor.address - int(leaves.base[piece])


def _has_tensor(value: Any) -> bool:
    if isinstance(value, list):
        return any(_has_tensor(v) for v in value)
    return isinstance(value, dict)
