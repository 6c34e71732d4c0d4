"""Products of matrices, with what follows them in the same kernel."""

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
class Gemm(Operator):
    """``out = epilogue(a @ b + bias) + residual``, or ``* residual`` with ``combine`` "multiply".

    Shapes: a [m, k], b [k, n], or both with a leading batch, as out has then. With ``split_k`` above 1 tile z sums over
    the z-th part of k, rounded up to ``split_multiple``, and out holds the float32 partial sums [split_k, m, n] for a
    `reduce` stage. With `epilogues.GATE` b has 2n columns.
    """

    NAME: ClassVar[str] = "gemm"

    a: View
    b: View
    out: View
    bias: View | None = None
    residual: View | None = None
    tile: tuple[int, int] = (128, 128)
    epilogue: str = "none"
    split_k: int = 1
    split_multiple: int = 64
    rows_along: str = "y"
    combine: str = "add"

    def __post_init__(self) -> None:
        epilogues.check(self.epilogue, self.combine)
        *batch, m, k = self.a.shape
        *same, inner, n = self.b.shape
        if k != inner or batch != same or len(batch) > 1:
            raise UserError(
                f"gemm: a is {self.a.shape} and b is {self.b.shape}; they are [m, k] and [k, n], with at most one "
                "batch in front"
            )
        n = n // 2 if self.epilogue == epilogues.GATE else n
        split = [self.split_k] if self.split_k > 1 else []
        if self.out.shape != (*batch, *split, m, n):
            raise UserError(
                f"gemm: out is {self.out.shape}; for a {self.a.shape} and b {self.b.shape} it is "
                f"{(*batch, *split, m, n)}"
            )
        if self.split_k < 1 or self.split_multiple < 1:
            raise UserError(
                f"gemm: split_k is {self.split_k} and split_multiple {self.split_multiple}; both are at least 1"
            )
        if self.split_k > 1 and (
            batch or self.bias or self.residual or self.epilogue != "none" or self.out.dtype != "float32"
        ):
            raise UserError(
                "gemm: with split_k out is float32 partial sums, without batch, bias, epilogue or residual: a reduce "
                "stage follows"
            )
        if self.bias is not None and self.bias.shape != self.b.shape[-1:]:
            raise UserError(f"gemm: bias is {self.bias.shape}; b has {self.b.shape[-1]} columns")
        if self.residual is not None and self.residual.shape != self.out.shape:
            raise UserError(f"gemm: residual is {self.residual.shape}; out is {self.out.shape}")
        _ = self._tiling

    @property
    def _tiling(self) -> Tiling:
        return Tiling(self.out.shape[-2], self.out.shape[-1], self.tile, self.rows_along)

    @property
    def grid(self) -> Grid:
        x, y = self._tiling.grid
        return x, y, self.out.shape[0] if len(self.out.shape) == 3 else 1

    def regions(self, x: int, y: int, z: int) -> Iterator[Region]:
        rows, columns = self._tiling.spans(x, y)
        batch, inner = self._depth(z)
        yield Region("a", (*batch, rows, inner))
        for span in self._columns(columns):
            yield Region("b", (*batch, inner, span))
            if self.bias is not None:
                yield Region("bias", (span,))
        first = ((z, z + 1),) if len(self.out.shape) == 3 else ()
        if self.residual is not None:
            yield Region("residual", (*first, rows, columns))
        yield write_region((*first, rows, columns))

    def run_tile(self, x: int, y: int, z: int, tensors: Mapping[str, Any]) -> None:
        rows, columns = self._tiling.spans(x, y)
        batch, inner = self._depth(z)
        a = cut(tensors["a"], (*batch, rows, inner)).float()
        spans = self._columns(columns)
        b = torch.cat([cut(tensors["b"], (*batch, inner, span)) for span in spans], dim=-1).float()
        bias = None if self.bias is None else torch.cat([cut(tensors["bias"], (span,)) for span in spans]).float()
        first = ((z, z + 1),) if len(self.out.shape) == 3 else ()
        residual = None if self.residual is None else cut(tensors["residual"], (*first, rows, columns)).float()
        cut(tensors["out"], (*first, rows, columns)).copy_(
            epilogues.finish(a @ b, self.epilogue, bias, residual, self.combine)
        )

    def reference(self, tensors: Mapping[str, Any]) -> Any:
        a, b = tensors["a"], tensors["b"]
        if self.split_k > 1:
            spans = [self._depth(z)[1] for z in range(self.split_k)]
            return torch.stack([a[:, low:high].float() @ b[low:high].float() for low, high in spans])
        bias, residual = tensors.get("bias"), tensors.get("residual")
        if bias is not None and a.dim() == 2:  # in the product, as nn.Linear has it
            return epilogues.finish(torch.addmm(bias, a, b), self.epilogue, None, residual, self.combine)
        return epilogues.finish(a @ b, self.epilogue, bias, residual, self.combine)

    def _depth(self, z: int) -> tuple[tuple[Span, ...], Span]:
        """Return the batch of tile z, if there are any, and its part of k."""
        k = self.a.shape[-1]
        if self.split_k == 1:
            return (((z, z + 1),) if len(self.out.shape) == 3 else ()), (0, k)
        part = -(-k // (self.split_k * self.split_multiple)) * self.split_multiple
        return (), (min(k, z * part), min(k, (z + 1) * part))

    def _columns(self, columns: Span) -> tuple[Span, ...]:
        """Return columns of b behind columns of the result."""
        if self.epilogue != epilogues.GATE:
            return (columns,)
        half = self.out.shape[-1]
        return columns, (columns[0] + half, columns[1] + half)
