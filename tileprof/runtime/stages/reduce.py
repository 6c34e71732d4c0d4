"""Partial sums of a product split along k, added up and finished."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from tileprof.errors import UserError
from tileprof.runtime.stages import epilogues
from tileprof.runtime.stages.operator import Grid, Operator, Region, cut, write_region
from tileprof.runtime.stages.tiling import Span, Tiling
from tileprof.runtime.stages.view import View


@dataclass(frozen=True, slots=True)
class Reduce(Operator):
    """``out = epilogue(sum of x over its first axis + bias) + residual``; x [split, m, n], out [m, n] (or n/2 columns
    with the gate).
    """

    NAME: ClassVar[str] = "reduce"

    x: View
    out: View
    bias: View | None = None
    residual: View | None = None
    tile: tuple[int, int] = (128, 128)
    epilogue: str = "none"
    rows_along: str = "y"

    def __post_init__(self) -> None:
        epilogues.check(self.epilogue)
        width = 2 if self.epilogue == epilogues.GATE else 1
        if (
            len(self.x.shape) != 3
            or len(self.out.shape) != 2
            or self.x.shape[1:] != (self.out.shape[0], width * self.out.shape[1])
        ):
            raise UserError(
                f"reduce: x is {self.x.shape} and out is {self.out.shape}; they are [split, m, n] and [m, n]"
            )
        if self.bias is not None and self.bias.shape != self.x.shape[2:]:
            raise UserError(f"reduce: bias is {self.bias.shape}; x has {self.x.shape[2]} columns")
        if self.residual is not None and self.residual.shape != self.out.shape:
            raise UserError(f"reduce: residual is {self.residual.shape}; out is {self.out.shape}")
        _ = self._tiling

    @property
    def _tiling(self) -> Tiling:
        return Tiling(self.out.shape[0], self.out.shape[1], self.tile, self.rows_along)

    @property
    def grid(self) -> Grid:
        return (*self._tiling.grid, 1)

    def regions(self, x: int, y: int, z: int) -> Iterator[Region]:  # noqa: ARG002 - one matrix, no z
        rows, columns = self._tiling.spans(x, y)
        for span in self._columns(columns):
            yield Region("x", ((0, self.x.shape[0]), rows, span))
            if self.bias is not None:
                yield Region("bias", (span,))
        if self.residual is not None:
            yield Region("residual", (rows, columns))
        yield write_region((rows, columns))

    def run_tile(self, x: int, y: int, z: int, tensors: Mapping[str, Any]) -> None:  # noqa: ARG002 - one matrix, no z
        rows, columns = self._tiling.spans(x, y)
        spans = self._columns(columns)
        parts = torch.cat([cut(tensors["x"], ((0, self.x.shape[0]), rows, span)) for span in spans], dim=-1).float()
        bias = None if self.bias is None else torch.cat([cut(tensors["bias"], (span,)) for span in spans]).float()
        residual = None if self.residual is None else cut(tensors["residual"], (rows, columns)).float()
        cut(tensors["out"], (rows, columns)).copy_(epilogues.finish(parts.sum(0), self.epilogue, bias, residual))

    def reference(self, tensors: Mapping[str, Any]) -> Any:
        return epilogues.finish(
            tensors["x"].float().sum(0), self.epilogue, tensors.get("bias"), tensors.get("residual")
        )

    def _columns(self, columns: Span) -> tuple[Span, ...]:
        if self.epilogue != epilogues.GATE:
            return (columns,)
        half = self.out.shape[-1]
        return columns, (columns[0] + half, columns[1] + half)
