"""Functions of single elements where operands lie anyhow: a tile is a run of elements of the result, row by row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import isfinite, prod
from typing import Any, ClassVar

from tileprof.errors import UserError
from tileprof.runtime.stages.operator import Grid, Operator, Region, cut, write_region
from tileprof.runtime.stages.pointwise import ONE, TWO
from tileprof.runtime.stages.view import Spans, View


@dataclass(frozen=True, slots=True)
class Elementwise(Operator):
    """``out = function(number * x)`` or ``function(number * x, y)``; all of one shape of any dimensions, inputs perhaps
    with strides of 0.

    Tile n takes the elements ``n*run`` to ``(n+1)*run`` of the row-major numbering of the shape.
    """

    NAME: ClassVar[str] = "elementwise"

    x: View
    out: View
    y: View | None = None
    function: str = "copy"
    run: int = 1024
    number: float = 1.0

    def __post_init__(self) -> None:
        functions = ONE if self.y is None else TWO
        if self.function not in functions:
            raise UserError(
                f"elementwise: no function {self.function!r} of {1 if self.y is None else 2} operands; known: "
                f"{', '.join(functions)}"
            )
        shapes = {view.shape for view in self.views().values()}
        if len(shapes) != 1 or self.run < 1 or not isfinite(self.number):
            raise UserError(
                f"elementwise: operands have shapes {sorted(shapes)}, runs of {self.run}, number {self.number}; all "
                "have one shape"
            )
        if any(n > 1 and s == 0 for n, s in zip(self.out.shape, self.out.strides, strict=True)):
            raise UserError("elementwise: a result cannot repeat its elements")

    @property
    def grid(self) -> Grid:
        return -(-prod(self.out.shape) // self.run), 1, 1

    def regions(self, x: int, y: int, z: int) -> Iterator[Region]:  # noqa: ARG002 - runs along x
        for part in self._parts(x):
            yield Region("x", part)
            if self.y is not None:
                yield Region("y", part)
            yield write_region(part)

    def run_tile(self, x: int, y: int, z: int, tensors: Mapping[str, Any]) -> None:  # noqa: ARG002 - runs along x
        for part in self._parts(x):
            values = {role: cut(tensors[role], part).float() for role in ("x", "y") if role in tensors}
            cut(tensors["out"], part).copy_(self.reference(values))

    def reference(self, tensors: Mapping[str, Any]) -> Any:
        first, *rest = (tensors[role] for role in ("x", "y") if role in tensors)
        scaled = first if self.number == 1 else first * self.number
        return (ONE | TWO)[self.function](scaled, *rest)

    def _parts(self, tile: int) -> Iterator[Spans]:
        total = prod(self.out.shape)
        yield from _boxes(self.out.shape, tile * self.run, min(total, (tile + 1) * self.run))


def _boxes(shape: tuple[int, ...], begin: int, end: int) -> Iterator[Spans]:
    """Yield elements ``begin`` to ``end`` of the row-major numbering of ``shape``, as disjoint boxes."""
    if begin >= end:
        return
    if len(shape) == 1:
        yield ((begin, end),)
        return
    inner = prod(shape[1:])
    first, last = -(-begin // inner), end // inner
    if first > last:  # within one slab
        for rest in _boxes(shape[1:], begin % inner, end - last * inner):
            yield ((last, last + 1), *rest)
        return
    for rest in _boxes(shape[1:], begin - (first - 1) * inner, inner) if begin % inner else ():
        yield ((first - 1, first), *rest)
    if first < last:
        yield ((first, last), *((0, n) for n in shape[1:]))
    for rest in _boxes(shape[1:], 0, end % inner):
        yield ((last, last + 1), *rest)
