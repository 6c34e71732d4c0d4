"""cuDNN's engines whose blocks add to results that were cleared before (`dgrad_engine`, `wgrad_alg0_engine`).

Both take channels first, and treat the weight of a group as a matrix: a row per result channel, a column per channel
and tap. A block of the first engine multiplies columns of the weight (x of the grid) by pixels of the gradient (y) of
an image (z), and adds the products to the pixels of the input's gradient that they belong to. A block of the second
multiplies columns of the weight's gradient (x), as pixels of the input, by rows (y) over 512 pixels of an image (z).
Names tell the sizes of a block as powers of two (recorded: grids, and which launches depend on one another).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import numpy as np

from tileprof.record.model.tiles.convolutions.conv_kernels import Window
from tileprof.record.model.tiles.foundations.sketch import (
    ATOMIC,
    READ,
    WRITE,
    Sketch,
    Span,
    cut,
    grid_blocks,
    is_contiguous,
    memory_order,
    ranges,
    select,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tileprof.arrays import I64
    from tileprof.record.model.tile_model import Kernel, Operand
    from tileprof.record.model.tiles.convolutions.conv_weight_kernels import WeightGradient
    from tileprof.record.model.tiles.convolutions.problem import MeasuredLaunch, Problem
    from tileprof.record.model.tiles.convolutions.windows import Axis

_DGRAD: Final = re.compile(r"dgrad_engine<\w+, \d+, (\d), (\d)")
_WGRAD: Final = re.compile(r"wgrad_alg0_engine<\w+, \d+, (\d), (\d)")
_CLEARED_RUN: Final = 256
"""Elements that a block of `scalePackedTensor` clears."""
_PIXELS: Final = 512
"""Pixels over which a block of `wgrad_alg0_engine` adds."""
_PLANE: Final = 4
"""Dimensions of operands of a convolution in two dimensions."""


def clearing(launch: MeasuredLaunch, target: Operand) -> Kernel | None:
    """Return the launch that clears the results, in runs of memory; None for other kernels and grids."""
    order = memory_order([target])
    strides = [target.strides[dim] for dim in order]
    dense = target.numel == 1 + sum((n - 1) * s for n, s in zip(target.shape, target.strides, strict=True))
    blocks = -(-target.numel // _CLEARED_RUN)
    if "scalePackedTensor" not in launch.name or launch.grid != (blocks, 1, 1) or not dense or 0 in strides:
        return None
    sketch = Sketch(blocks)
    tile, lo, hi = ranges(target.numel, _CLEARED_RUN)
    sketch.span(target, WRITE, tile, Span(order, lo, hi))
    return sketch.kernel(launch.name, threads=launch.block, coverage="inferred")


def kernel(problem: Problem, launch: MeasuredLaunch, inputs: Sequence[Operand], target: Operand) -> Kernel | None:
    """Return the launch of one of the engines; None for other kernels and grids."""
    shape, groups = problem.shape, problem.key[5]
    if groups > 1 or len(target.shape) != _PLANE or not all(map(_channels_first, (*inputs, target))):
        return None
    if isinstance(shape, Window):
        sizes = _DGRAD.search(launch.name) if shape.transposed else None
        return None if sizes is None else _to_pixels(shape, launch, inputs, target, _powers(sizes))
    sizes = _WGRAD.search(launch.name)
    return None if sizes is None else _to_weights(shape, launch, inputs, target, _powers(sizes))


def _channels_first(operand: Operand) -> bool:
    """Return whether each image, or filter, lies densely in memory, pixels behind one another."""
    return is_contiguous(select(operand, 0, 0))


def _powers(sizes: re.Match[str]) -> tuple[int, int]:
    return 1 << int(sizes[1]), 1 << int(sizes[2])


def _to_pixels(
    window: Window, launch: MeasuredLaunch, inputs: Sequence[Operand], target: Operand, sizes: tuple[int, int]
) -> Kernel | None:
    """Return the launch that adds to pixels of the input's gradient."""
    gradient, weight = inputs
    images, _, *plane = gradient.shape
    columns, pixels = int(np.prod(weight.shape[1:])), int(np.prod(plane))
    sketch = Sketch(-(-columns // sizes[0]), -(-pixels // sizes[1]), images)
    if launch.grid != sketch.grid:
        return None
    x, y, image = grid_blocks(sketch.grid).astype(np.int64).T
    tile = np.arange(sketch.tiles)
    column, column_end = x * sizes[0], np.minimum((x + 1) * sizes[0], columns)
    pixel, pixel_end = y * sizes[1], np.minimum((y + 1) * sizes[1], pixels)
    own_image = Span((0,), image, image + 1)
    sketch.span(gradient, READ, tile, own_image, Span((2, 3), pixel, pixel_end))
    sketch.span(weight, READ, tile, Span((1, 2, 3), column, column_end))
    run, begin, end = cut(pixel, pixel_end, plane[1])
    row, first = np.divmod(begin, plane[1])
    rows = _touched(window.axes[0], row, row + 1, target.shape[2])
    places = _touched(window.axes[1], first, first + end - begin, target.shape[3])
    taps = columns // target.shape[1]
    channels = column[run] // taps, (column_end[run] - 1) // taps + 1
    some = (rows[1] > rows[0]) & (places[1] > places[0])
    spans = enumerate(((image[run], image[run] + 1), channels, rows, places))
    sketch.span(target, ATOMIC, tile[run][some], *(Span((dim,), lo[some], hi[some]) for dim, (lo, hi) in spans))
    flops = 2 * window.multiply_adds
    return sketch.kernel(launch.name, threads=launch.block, flops=flops, coverage="inferred")


def _to_weights(
    shape: WeightGradient, launch: MeasuredLaunch, inputs: Sequence[Operand], target: Operand, sizes: tuple[int, int]
) -> Kernel | None:
    """Return the launch that adds to the weight's gradient; of the input, whole rows of pixels count."""
    small, large = inputs
    images, filters, *plane = small.shape
    columns, pixels = int(np.prod(target.shape[1:])), int(np.prod(plane))
    runs = -(-pixels // _PIXELS)
    sketch = Sketch(-(-columns // sizes[0]), -(-filters // sizes[1]), runs * images)
    if launch.grid != sketch.grid:
        return None
    x, y, z = grid_blocks(sketch.grid).astype(np.int64).T
    tile = np.arange(sketch.tiles)
    image, run = np.divmod(z, runs)
    column, column_end = x * sizes[0], np.minimum((x + 1) * sizes[0], columns)
    own_filters = Span((0,), y * sizes[1], np.minimum((y + 1) * sizes[1], filters))
    pixel, pixel_end = run * _PIXELS, np.minimum((run + 1) * _PIXELS, pixels)
    own_image = Span((0,), image, image + 1)
    sketch.span(
        small, READ, tile, own_image, Span((1,), own_filters.lo, own_filters.hi), Span((2, 3), pixel, pixel_end)
    )
    taps = columns // target.shape[1]
    lo, hi = _touched(shape.axes[0], pixel // plane[1], (pixel_end - 1) // plane[1] + 1, large.shape[2])
    some = hi > lo
    channels = Span((1,), (column // taps)[some], ((column_end - 1) // taps + 1)[some])
    sketch.span(
        large, READ, tile[some], Span((0,), image[some], image[some] + 1), channels, Span((2,), lo[some], hi[some])
    )
    sketch.span(target, ATOMIC, tile, own_filters, Span((1, 2, 3), column, column_end))
    flops = 2 * target.numel * images * pixels
    return sketch.kernel(launch.name, threads=launch.block, flops=flops, coverage="inferred")


def _touched(axis: Axis, lo: I64, hi: I64, size: int) -> tuple[I64, I64]:
    """Return the inputs along one dimension between the first and the last tap of results ``lo`` to ``hi``."""
    begin = lo * axis.stride - axis.padding
    end = (hi - 1) * axis.stride - axis.padding + (axis.taps - 1) * axis.dilation + 1
    return np.clip(begin, 0, size), np.clip(end, 0, size)
