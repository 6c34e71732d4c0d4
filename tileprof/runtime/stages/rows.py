"""Operators whose tile is a block of whole rows: norms and softmax."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any, ClassVar

import torch
from torch.nn import functional

from tileprof.errors import UserError
from tileprof.runtime.stages import dropout
from tileprof.runtime.stages.operator import Grid, Operator, Region, cut, write_region
from tileprof.runtime.stages.view import Spans, View


class _Rows(Operator):
    """Tiles along x, of ``rows`` rows each."""

    x: View
    rows: int

    def _check(self) -> None:
        if len(self.x.shape) != 2 or self.out.shape != self.x.shape or self.rows < 1:
            raise UserError(
                f"{self.NAME}: x is {self.x.shape}, out is {self.out.shape}, {self.rows} rows per tile; x and out are "
                "the same [m, n]"
            )

    @property
    def grid(self) -> Grid:
        return -(-self.x.shape[0] // self.rows), 1, 1

    def _part(self, x: int) -> Spans:
        return (x * self.rows, min(self.x.shape[0], (x + 1) * self.rows)), (0, self.x.shape[1])


@dataclass(frozen=True, slots=True)
class Norm(_Rows):
    """Layer norm or RMS norm over the columns of x [m, n], with weight [n] and, for layer norms, bias [n]."""

    NAME: ClassVar[str] = "norm"

    x: View
    out: View
    weight: View | None = None
    bias: View | None = None
    rows: int = 1
    kind: str = "layer"
    epsilon: float = 1e-5

    def __post_init__(self) -> None:
        self._check()
        if self.kind not in {"layer", "rms"} or (self.kind == "rms" and self.bias is not None) or not self.epsilon >= 0:
            raise UserError(f"norm: kind {self.kind!r}, epsilon {self.epsilon}; there are layer, and rms without bias")
        for role in ("weight", "bias"):
            view = getattr(self, role)
            if view is not None and view.shape != self.x.shape[1:]:
                raise UserError(f"norm: {role} is {view.shape}; x has {self.x.shape[1]} columns")

    def regions(self, x: int, y: int, z: int) -> Iterator[Region]:  # noqa: ARG002 - rows run along x
        yield Region("x", self._part(x))
        for role in ("weight", "bias"):
            if getattr(self, role) is not None:
                yield Region(role, ((0, self.x.shape[1]),))
        yield write_region(self._part(x))

    def run_tile(self, x: int, y: int, z: int, tensors: Mapping[str, Any]) -> None:  # noqa: ARG002 - rows run along x
        affine = {role: tensors[role].float() for role in ("weight", "bias") if role in tensors}
        cut(tensors["out"], self._part(x)).copy_(
            self.reference({"x": cut(tensors["x"], self._part(x)).float(), **affine})
        )

    def reference(self, tensors: Mapping[str, Any]) -> Any:
        x, weight = tensors["x"], tensors.get("weight")
        if self.kind == "rms":
            return functional.rms_norm(x, x.shape[1:], weight, self.epsilon)
        return functional.layer_norm(x, x.shape[1:], weight, tensors.get("bias"), self.epsilon)


@dataclass(frozen=True, slots=True)
class Softmax(_Rows):
    """``softmax(scale * x)`` over the columns of x [m, n]; then a share ``dropout`` of the elements becomes 0 and the
    others grow by 1 / (1 - dropout).

    Which elements is decided by ``seed`` and their place in x alone (`tileprof.runtime.stages.dropout`): the same in
    every run, tiling and order, on the CPU and on a GPU. They are not those that PyTorch's own generator chooses.
    """

    NAME: ClassVar[str] = "softmax"

    x: View
    out: View
    rows: int = 1
    scale: float = 1.0
    dropout: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        self._check()
        if not isfinite(self.scale):
            raise UserError(f"softmax: the scale is {self.scale}; it is a finite number")
        dropout.check(self.dropout, self.seed)

    def regions(self, x: int, y: int, z: int) -> Iterator[Region]:  # noqa: ARG002 - rows run along x
        yield Region("x", self._part(x))
        yield write_region(self._part(x))

    def run_tile(self, x: int, y: int, z: int, tensors: Mapping[str, Any]) -> None:  # noqa: ARG002 - rows run along x
        part = self._part(x)
        value = torch.softmax(self.scale * cut(tensors["x"], part).float(), dim=1)
        cut(tensors["out"], part).copy_(dropout.apply(value, self.dropout, self.seed, part[0][0]))

    def reference(self, tensors: Mapping[str, Any]) -> Any:
        return dropout.apply(torch.softmax(self.scale * tensors["x"], dim=1), self.dropout, self.seed)
