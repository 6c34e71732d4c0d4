"""A launch of a trace as a call: its operand slots with layouts and places in memory, and which elements its first tile
writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from tileprof.nesting import parse_json
from tileprof.policy.format.tile_numbers import coordinates, grid_of
from tileprof.trace.footprint import READ, WRITE

if TYPE_CHECKING:
    from tileprof.analysis import TileGraph
    from tileprof.trace.footprint import Footprint

ITEM_BYTES: Final = {"float16": 2, "bfloat16": 2, "float32": 4}
"""The types that stages compute in."""

Shape = tuple[int, ...]

_MOST: Final = 1 << 60
_RANDOM: Final = ("native_dropout", "_fused_dropout", "bernoulli")
_SLOT_KEYS: Final = {"argument", "dtype", "shape", "strides"}


class UnknownStageError(Exception):
    """No operator describes a stage; the text says why, for the user."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A tensor of a call: ``shape`` and ``strides`` in elements from ``offset`` (elements) of ``buffer``."""

    number: int
    argument: str
    shape: Shape
    strides: Shape
    dtype: str
    buffer: int
    offset: int

    @property
    def last(self) -> int:
        """The element of the buffer behind its last."""
        return self.offset + sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True)) + 1

    def computable(self) -> Slot:
        """Return the slot; raises `UnknownStageError` where stages do not compute in its type."""
        if self.dtype not in ITEM_BYTES:
            raise UnknownStageError(f"{self.argument} is {self.dtype}; stages compute in {', '.join(ITEM_BYTES)}")
        return self

    def like(self, shape: Sequence[int], strides: Sequence[int]) -> Slot:
        """Return the same elements in another form."""
        return replace(self, shape=tuple(shape), strides=tuple(strides))

    def permuted(self, *dims: int) -> Slot:
        return self.like([self.shape[d] for d in dims], [self.strides[d] for d in dims])

    def matrix(self) -> Slot:
        """Return all dimensions but the last as one; raises `UnknownStageError` where they do not follow each other in
        memory.
        """
        shape, strides = list(self.shape), list(self.strides)
        while len(shape) > 2:
            if shape[0] != 1 and shape[1] != 1 and strides[0] != shape[1] * strides[1]:
                raise UnknownStageError(
                    f"{self.argument} of shape {self.shape} and strides {self.strides} is not a matrix"
                )
            inner = strides[1] if shape[1] != 1 else strides[0]
            shape[:2], strides[:2] = [shape[0] * shape[1]], [inner]
        if len(shape) == 1:
            shape, strides = [1, *shape], [shape[0], *strides]
        return self.like(shape, strides)

    def flat(self) -> Slot:
        """Return all elements as one row, in memory order; raises `UnknownStageError` where there are gaps between
        them.
        """
        run = 1
        for stride, size in sorted((s, n) for n, s in zip(self.shape, self.strides, strict=True) if n > 1):
            if stride != run:
                raise UnknownStageError(
                    f"{self.argument} of shape {self.shape} and strides {self.strides} has gaps in memory"
                )
            run *= size
        return self.like((1, run), (run, 1))


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """A launch: ``op`` without namespace and overload, slots by argument name, and the operator's other arguments."""

    launch: int
    op: str
    kernel: str
    grid: tuple[int, int, int]
    slots: tuple[Slot | None, ...]
    arguments: dict[str, Any]
    workspace: tuple[int, int]
    """Slot and buffer of the workspace; -1 for none."""
    footprint: Footprint
    at: NDArray[np.int64]
    """Coordinates of the tiles in ``grid``."""

    @classmethod
    def of(cls, graph: TileGraph, launch: int) -> RecordedCall:
        """Raises `UnknownStageError` where the trace does not say how the operator was called."""
        row = graph.launches.iloc[launch]
        text = str(row.get("call", ""))
        if not text:
            name = str(row["op"] or row["kernel"])
            how = (
                "; a trace of the model recorder does: tileprof record --recorder model"
                if name.startswith("aten::")
                else ""
            )
            raise UnknownStageError(f"the trace does not say how {name} was called{how}")
        if str(row.get("coverage", "exact")) != "exact":
            raise UnknownStageError(f"{row['op']} was not recorded exactly")
        call = _call_of(text)
        operator = str(row["op"]).removeprefix("aten::").split(".")[0]
        if operator.rstrip("_") in _RANDOM or call["arguments"].get("dropout_p", 0):
            raise UnknownStageError(
                f"{operator} uses random numbers of PyTorch's generator, which stages cannot reproduce: record the "
                "model in eval mode; a softmax stage has its own dropout and seed"
            )
        buffers, offsets = (column.tolist() for column in graph.recording.operands_of(launch))
        slots = [
            None if operand is None else _slot(number, operand, buffers[number], offsets[number])
            for number, operand in enumerate(call["operands"])
        ]
        empty = next((n for n, slot in enumerate(slots) if slot is None), -1)
        return cls(
            launch,
            operator,
            str(row["kernel"]),
            grid_of(graph, launch),
            tuple(slots),
            call["arguments"],
            (empty, buffers[empty] if empty >= 0 else -1),
            graph.footprint(int(row["footprint"])),
            coordinates(graph, launch),
        )

    def find(self, *names: str) -> Slot | None:
        """Return the slot of the first of these arguments that the launch has."""
        for name in names:
            for slot in self.slots:
                if slot is not None and slot.argument == name:
                    return slot.computable()
        return None

    def need(self, *names: str) -> Slot:
        slot = self.find(*names)
        if slot is None:
            raise UnknownStageError(f"{self.op} touches no {names[0]}")
        return slot

    def written_slot(self) -> Slot:
        """Return the operand that the launch writes; raises `UnknownStageError` for none, or for several that later
        stages could read.
        """
        boxes = self.footprint.boxes
        numbers = np.unique(boxes.operand[boxes.mode == WRITE]).tolist()
        slot: Slot | None = self.slots[numbers[0]] if numbers else None
        if slot is None:
            raise UnknownStageError(f"{self.kernel} writes workspace")
        return slot.computable()

    def only(self, **expected: Any) -> None:
        """Raise `UnknownStageError` unless each of these arguments has the value expected or is not there."""
        for name, value in expected.items():
            if self.arguments.get(name, value) != value:
                raise UnknownStageError(f"{self.op} with {name} {self.arguments[name]!r}")

    def span(self, slot: Slot | int, mode: int, tile: tuple[int, int, int], itemsize: int) -> tuple[int, int]:
        """Return first and last element of an operand that a tile touches, from the operand's first; raises where it
        touches none.
        """
        number = slot if isinstance(slot, int) else slot.number
        boxes = self.footprint.boxes
        place = int(np.flatnonzero((self.at == np.asarray(tile)).all(axis=1))[0])
        rows = np.arange(np.searchsorted(boxes.tile, place), np.searchsorted(boxes.tile, place, "right"))
        rows = rows[(boxes.operand[rows] == number) & (boxes.mode[rows] == mode)]
        if not len(rows):
            raise UnknownStageError(f"{self.kernel} does not touch operand {number} in tile {tile}")
        reach = boxes.length[rows] + (boxes.count_0[rows] - 1) * boxes.stride_0[rows]
        reach += (boxes.count_1[rows] - 1) * boxes.stride_1[rows]
        low, high = int(boxes.offset[rows].min()), int((boxes.offset[rows] + reach).max())
        return low // itemsize, high // itemsize - 1

    def tile(self, out: Slot) -> Shape:
        """Return how far along each dimension of ``out`` the tile at the origin of the grid reaches."""
        _, last = self.span(out, WRITE, (0, 0, 0), ITEM_BYTES[out.dtype])
        return tuple(n + 1 for n in place(last, out))

    def reads_from(self, slot: Slot, tile: tuple[int, int, int]) -> Shape:
        """Return coordinates of the first element of ``slot`` that a tile reads."""
        return place(self.span(slot, READ, tile, ITEM_BYTES[slot.dtype])[0], slot)


def _call_of(text: str) -> dict[str, Any]:
    """Return the JSON of a launch's ``call``; raises `UnknownStageError` where it is none, or of another form."""
    try:
        call = parse_json(text)
    except ValueError:
        call = None
    operands = call.get("operands") if isinstance(call, dict) else None
    if not isinstance(call, dict) or not isinstance(operands, list) or not isinstance(call.get("arguments"), dict):
        raise UnknownStageError("the trace's description of how the operator was called is damaged")
    if not all(one is None or _is_slot(one) for one in operands):
        raise UnknownStageError("the trace's description of the operands is damaged")
    return call


def _is_slot(value: Any) -> bool:
    if not (isinstance(value, dict) and value.keys() >= _SLOT_KEYS):
        return False
    shape, strides = value["shape"], value["strides"]
    lists = isinstance(shape, list) and isinstance(strides, list) and len(shape) == len(strides)
    return lists and all(type(n) is int and 0 <= n <= _MOST for n in (*shape, *strides))


def place(element: int, slot: Slot) -> Shape:
    """Return coordinates in ``slot`` of an element, counted from its first; dimensions that repeat elements
    are at 0.
    """
    coordinates = [0] * len(slot.shape)
    sizes = [(s, d) for d, (n, s) in enumerate(zip(slot.shape, slot.strides, strict=True)) if n > 1 and s > 0]
    for stride, dim in sorted(sizes, reverse=True):
        coordinates[dim], element = divmod(element, stride)
    return tuple(coordinates)


def _slot(number: int, description: dict[str, Any], buffer: int, offset: int) -> Slot:
    dtype, shape, strides = str(description["dtype"]), tuple(description["shape"]), tuple(description["strides"])
    item_bytes = ITEM_BYTES.get(dtype, 1)  # a slot of another type says so when an operator asks for it
    if offset % item_bytes:
        raise UnknownStageError(f"{description['argument']} does not begin at a whole element of its buffer")
    return Slot(number, str(description["argument"]), shape, strides, dtype, buffer, offset // item_bytes)
