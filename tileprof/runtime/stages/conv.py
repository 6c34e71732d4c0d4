"""Convolutions in two dimensions, channels last, as implicit products: a tile is a run of pixels by some channels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from torch.nn import functional

from tileprof.errors import UserError
from tileprof.runtime.stages import epilogues
from tileprof.runtime.stages.operator import Grid, Operator, Region, cut, write_region
from tileprof.runtime.stages.tiling import Span, Tiling
from tileprof.runtime.stages.view import View

NORM_ROLES: Final = ("mean", "var", "scale", "shift")


@dataclass(frozen=True, slots=True)
class Conv2d(Operator):
    """``out = epilogue(norm(conv(x, weight) + bias)) + residual``, or ``* residual`` with ``combine`` "multiply".

    Shapes: x [n, h, w, c], weight [k, r, s, c], out [n, p, q, k]. Pixels are numbered ``(n*P + p)*Q + q``; a tile takes
    ``tile[0]`` of them and ``tile[1]`` channels. ``mean``, ``var``, ``scale`` and ``shift`` [k], all or none, are a
    batch norm by running averages with ``epsilon``.
    """

    NAME: ClassVar[str] = "conv2d"

    x: View
    weight: View
    out: View
    bias: View | None = None
    residual: View | None = None
    mean: View | None = None
    var: View | None = None
    scale: View | None = None
    shift: View | None = None
    tile: tuple[int, int] = (128, 64)
    stride: int = 1
    padding: int = 0
    epilogue: str = "none"
    rows_along: str = "y"
    combine: str = "add"
    epsilon: float = 0.0

    def __post_init__(self) -> None:
        epilogues.check(self.epilogue, self.combine)
        if self.epilogue == epilogues.GATE or self.stride < 1 or self.padding < 0:
            raise UserError(
                f"conv2d: stride {self.stride}, padding {self.padding}, epilogue {self.epilogue}: there is no such "
                "convolution"
            )
        if (
            not len(self.x.shape) == len(self.weight.shape) == len(self.out.shape) == 4
            or self.x.shape[3] != self.weight.shape[3]
        ):
            raise UserError(
                f"conv2d: x is {self.x.shape} and weight is {self.weight.shape}; they are [n, h, w, c] and [k, r, s, c]"
            )
        n, h, w, _ = self.x.shape
        k, r, s, _ = self.weight.shape
        p, q = ((size + 2 * self.padding - kernel) // self.stride + 1 for size, kernel in ((h, r), (w, s)))
        if self.out.shape != (n, p, q, k):
            raise UserError(
                f"conv2d: out is {self.out.shape}; for x {self.x.shape} and weight {self.weight.shape} it is "
                f"{(n, p, q, k)}"
            )
        if self.bias is not None and self.bias.shape != (k,):
            raise UserError(f"conv2d: bias is {self.bias.shape}; there are {k} channels")
        norm = [getattr(self, role) for role in NORM_ROLES]
        if any(norm) and not all(view is not None and view.shape == (k,) for view in norm):
            raise UserError(f"conv2d: {', '.join(NORM_ROLES)} are given together, each with {k} channels")
        if not isinstance(self.epsilon, float) or not 0 <= self.epsilon < 1 or (any(norm) and not self.epsilon):
            raise UserError(f"conv2d: epsilon is {self.epsilon!r:.40}; a batch norm has one above 0 and below 1")
        if self.residual is not None and self.residual.shape != self.out.shape:
            raise UserError(f"conv2d: residual is {self.residual.shape}; out is {self.out.shape}")
        _ = self._tiling

    @property
    def _tiling(self) -> Tiling:
        n, p, q, k = self.out.shape
        return Tiling(n * p * q, k, self.tile, self.rows_along)

    @property
    def grid(self) -> Grid:
        return (*self._tiling.grid, 1)

    def regions(self, x: int, y: int, z: int) -> Iterator[Region]:  # noqa: ARG002 - z is 0
        pixels, channels = self._tiling.spans(x, y)
        for image, p, columns in self._rows(pixels):
            rows, span = self._window(p, p + 1, 0), self._window(*columns, 1)
            yield Region("x", ((image, image + 1), rows, span, (0, self.x.shape[3])))
            part = ((image, image + 1), (p, p + 1), columns, channels)
            if self.residual is not None:
                yield Region("residual", part)
            yield write_region(part)
        yield Region("weight", (channels, *self.weight.whole()[1:]))
        for role in ("bias", *NORM_ROLES):
            if getattr(self, role) is not None:
                yield Region(role, (channels,))

    def run_tile(self, x: int, y: int, z: int, tensors: Mapping[str, Any]) -> None:  # noqa: ARG002 - z is 0
        pixels, channels = self._tiling.spans(x, y)
        weight = cut(tensors["weight"], (channels, *self.weight.whole()[1:])).float().permute(0, 3, 1, 2)
        bias = None if self.bias is None else cut(tensors["bias"], (channels,)).float()
        for image, p, columns in self._rows(pixels):
            part = ((image, image + 1), (p, p + 1), columns, channels)
            residual = None if self.residual is None else cut(tensors["residual"], part).float()
            patch = self._patch(tensors["x"][image], p, columns)
            value = functional.conv2d(patch, weight, stride=self.stride).permute(0, 2, 3, 1)
            if self.mean is not None:
                value = value if bias is None else value + bias
                norm = {role: cut(tensors[role], (channels,)).float() for role in NORM_ROLES}
                value = epilogues.normalised(value, **norm, epsilon=self.epsilon)
            bias_left = bias if self.mean is None else None
            cut(tensors["out"], part).copy_(epilogues.finish(value, self.epilogue, bias_left, residual, self.combine))

    def reference(self, tensors: Mapping[str, Any]) -> Any:
        x, weight = (tensors[role].permute(0, 3, 1, 2) for role in ("x", "weight"))
        value = functional.conv2d(x, weight, tensors.get("bias"), stride=self.stride, padding=self.padding)
        if self.mean is not None:
            mean, var, scale, shift = (tensors[role] for role in NORM_ROLES)
            value = functional.batch_norm(value, mean, var, scale, shift, training=False, eps=self.epsilon)
        value = value.permute(0, 2, 3, 1)
        return epilogues.finish(value, self.epilogue, None, tensors.get("residual"), self.combine)

    def _rows(self, pixels: Span) -> Iterator[tuple[int, int, Span]]:
        """Yield image, row and columns of each piece of a run of pixels."""
        _, p, q, _ = self.out.shape
        at = pixels[0]
        while at < pixels[1]:
            row, column = divmod(at, q)
            stop = min(pixels[1], (row + 1) * q)
            yield row // p, row % p, (column, column + stop - at)
            at = stop

    def _window(self, begin: int, end: int, axis: int) -> Span:
        """Return input rows (axis 0) or columns (1) that output rows or columns ``begin`` to ``end`` read."""
        low = begin * self.stride - self.padding
        high = (end - 1) * self.stride - self.padding + self.weight.shape[1 + axis]
        return max(0, min(low, self.x.shape[1 + axis])), max(0, min(high, self.x.shape[1 + axis]))

    def _patch(self, image: Any, p: int, columns: Span) -> Any:
        """Return the input behind one row of the result, zeros where it leaves the image, as [1, c, r, width]
        float32.
        """
        rows, span = self._window(p, p + 1, 0), self._window(*columns, 1)
        inside = image[slice(*rows), slice(*span)].float().permute(2, 0, 1)[None]
        top, left = (low - (at * self.stride - self.padding) for low, at in ((rows[0], p), (span[0], columns[0])))
        height = self.weight.shape[1]
        width = (columns[1] - columns[0] - 1) * self.stride + self.weight.shape[2]
        right, bottom = width - left - (span[1] - span[0]), height - top - (rows[1] - rows[0])
        return functional.pad(inside, (left, right, top, bottom))
