"""Functions of single elements, of one matrix or two."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import torch
from torch.nn import functional

from tileprof.errors import UserError
from tileprof.runtime.stages.epilogues import ACTIVATIONS
from tileprof.runtime.stages.operator import Grid, Operator, Region, cut, write_region
from tileprof.runtime.stages.tiling import Tiling
from tileprof.runtime.stages.view import View

ONE: Final[dict[str, Callable[[Any], Any]]] = {"copy": torch.clone} | {
    name: function for name, function in ACTIVATIONS.items() if name != "none"
}
TWO: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "add": torch.add, "mul": torch.mul, "silu_mul": lambda gate, up: functional.silu(gate) * up,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Pointwise(Operator):
    """``out = function(x)`` or ``function(x, y)``; all [m, n]."""

    NAME: ClassVar[str] = "pointwise"

    x: View
    out: View
    y: View | None = None
    function: str = "copy"
    tile: tuple[int, int] = (1, 1024)
    rows_along: str = "y"

    def __post_init__(self) -> None:
        functions = ONE if self.y is None else TWO
        if self.function not in functions:
            raise UserError(
                f"pointwise: no function {self.function!r} of {1 if self.y is None else 2} operands; known: "
                f"{', '.join(functions)}"
            )
        shapes = {view.shape for view in self.views().values()}
        if len(shapes) != 1 or len(self.x.shape) != 2:
            raise UserError(f"pointwise: operands have shapes {sorted(shapes)}; all are the same [m, n]")
        _ = self._tiling

    @property
    def _tiling(self) -> Tiling:
        return Tiling(self.out.shape[0], self.out.shape[1], self.tile, self.rows_along)

    @property
    def grid(self) -> Grid:
        return (*self._tiling.grid, 1)

    def regions(self, x: int, y: int, z: int) -> Iterator[Region]:  # noqa: ARG002 - one matrix, no z
        part = self._tiling.spans(x, y)
        yield Region("x", part)
        if self.y is not None:
            yield Region("y", part)
        yield write_region(part)

    def run_tile(self, x: int, y: int, z: int, tensors: Mapping[str, Any]) -> None:  # noqa: ARG002 - one matrix, no z
        part = self._tiling.spans(x, y)
        values = [cut(tensors[role], part).float() for role in ("x", "y") if role in tensors]
        cut(tensors["out"], part).copy_((ONE | TWO)[self.function](*values))

    def reference(self, tensors: Mapping[str, Any]) -> Any:
        return (ONE | TWO)[self.function](*(tensors[role] for role in ("x", "y") if role in tensors))
