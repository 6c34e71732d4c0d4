"""Gradients of weights by Winograd's algorithm, as cuDNN launches them for windows of 3 x 3 (`winograd_nonfused`).

::

    input ────▶ Data ──▶ scratch 0 ─┐
                                    ├─▶ products ──▶ scratch 5 ──▶ Output ──▶ weight
    gradient ─▶ Delta ─▶ scratch 4 ─┘

`Data` and `Delta` transform squares of results into 36 points each, a block 4 squares across, 2 down and 32 channels of
one image. Each point has a product of filters by channels, whose depth is all squares. A block of `Output` transforms
the products of 8 filters and 32 channels back (recorded: grids, and which launches depend on one another).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import numpy as np

from tileprof.record.model.tiles.convolutions.convolution_key import Pass
from tileprof.record.model.tiles.convolutions.launch_grids import (
    WINOGRAD_BLOCK,
    WINOGRAD_CHANNELS,
    WINOGRAD_FILTERS,
    WINOGRAD_POINTS,
    WINOGRAD_SQUARE,
    winograd_blocks,
    winograd_tile,
)
from tileprof.record.model.tiles.convolutions.library_kernels import Role, parse_name
from tileprof.record.model.tiles.foundations.sketch import (
    READ,
    WRITE,
    Sketch,
    Span,
    grid_blocks,
    scratch,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tileprof.record.model.tile_model import Kernel, Operand
    from tileprof.record.model.tiles.convolutions.problem import MeasuredLaunch, Problem
    from tileprof.record.model.tiles.foundations.sketch import Part

_STAGES: Final = tuple(re.compile(words) for words in ("WgradData4x4", "WgradDelta4x4", "gemm", "WgradOutput4x4"))
_WINDOW: Final = (1, 3, 3, 1, 1, 1)
"""Taps and strides."""
_HALO: Final = 1
"""Pixels of the input around the results of a block."""
_SLOTS: Final = (0, 4, 5)
"""Scratch slots of transformed inputs and gradients, and of products; layout copies have others."""


def is_winograd(problem: Problem, launches: Sequence[MeasuredLaunch], computing: Sequence[MeasuredLaunch]) -> bool:
    """Return whether those of a call's launches that compute are these four, and others are layout copies."""
    key = problem.key
    is_gradient = key[0] == Pass.WEIGHT_GRADIENT and key[5] == 1 and key[12:18] == _WINDOW and key[21:24] == (1, 1, 1)
    return (
        is_gradient
        and len(computing) == len(_STAGES)
        and all(stage.search(one.name) for stage, one in zip(_STAGES, computing, strict=True))
        and all(one in computing or parse_name(one.name).role == Role.TRANSPOSE for one in launches)
    )


def kernels(
    key: tuple[int, ...], launches: Sequence[MeasuredLaunch], inputs: Sequence[Operand], target: Operand
) -> list[Kernel]:
    """Return the launches: ``inputs`` are the gradient of the results and the input."""
    small, large = inputs
    data, delta, product, output = launches
    filters, channels = target.shape[:2]
    blocks = key[6] * int(np.prod(winograd_blocks(key)))
    sizes = [(blocks, _filled(channels)), (blocks, _filled(filters)), (WINOGRAD_POINTS, filters, channels)]
    transformed_inputs, transformed_results, products = (
        scratch(slot, *shape) for slot, shape in zip(_SLOTS, sizes, strict=True)
    )
    return [
        _transform(data, large, transformed_inputs, key, halo=_HALO),
        _transform(delta, small, transformed_results, key, halo=0),
        _products(product, transformed_inputs, transformed_results, products),
        _output(output, products, target),
    ]


def _filled(channels: int) -> int:
    """Return how many channels are transformed."""
    return -(-channels // WINOGRAD_CHANNELS) * WINOGRAD_CHANNELS


def _transform(launch: MeasuredLaunch, source: Operand, result: Part, key: tuple[int, ...], *, halo: int) -> Kernel:
    """Return the launch that transforms channels, with ``halo`` pixels around each block."""
    down, across = winograd_blocks(key)
    channels = source.shape[1]
    sketch = Sketch(down * across * (_filled(channels) // WINOGRAD_CHANNELS), key[6])
    tile = np.arange(sketch.tiles)
    image, block = np.divmod(tile, sketch.grid[0])
    part, place = np.divmod(block, down * across)
    first = part * WINOGRAD_CHANNELS
    spans = [Span((0,), image, image + 1), Span((1,), first, np.minimum(first + WINOGRAD_CHANNELS, channels))]
    for dim, at, size in zip((2, 3), np.divmod(place, across), WINOGRAD_BLOCK, strict=True):
        begin = at * size - halo * key[17 + dim]
        end = np.clip(begin + size + 2 * halo, 0, source.shape[dim])
        spans.append(Span((dim,), np.clip(begin, 0, end), end))
    some = np.logical_and.reduce([span.hi > span.lo for span in spans])
    sketch.span(source, READ, tile[some], *(Span(span.dims, span.lo[some], span.hi[some]) for span in spans))
    row = image * down * across + place
    sketch.span(result, WRITE, tile, Span((0,), row, row + 1), Span((1,), first, first + WINOGRAD_CHANNELS))
    return sketch.kernel(launch.name, threads=launch.block, loads_first=True, coverage="inferred")


def _products(launch: MeasuredLaunch, inputs: Part, results: Part, products: Part) -> Kernel:
    """Return the launch of a product for each point of a transformed square: tiles of filters by channels."""
    points, filters, channels = products.shape
    high, wide = winograd_tile(launch)
    rows = -(-filters // high)
    x, y, z = launch.grid
    is_counted = z == points and x % rows == 0 and x // rows * y * wide >= channels
    sketch = Sketch(*(launch.grid if is_counted else (rows, -(-channels // wide), points)))
    across, down, point = grid_blocks(sketch.grid).astype(np.int64).T
    aside = sketch.grid[0] // rows
    row, column = across // aside * high, (across % aside + down * aside) * wide
    tile = np.flatnonzero(column < channels)
    row, column, point = row[tile], column[tile], point[tile]
    ends = np.minimum(row + high, filters), np.minimum(column + wide, channels)
    sketch.span(inputs, READ, tile, Span((1,), column, ends[1]))
    sketch.span(results, READ, tile, Span((1,), row, ends[0]))
    spans = (Span((0,), point, point + 1), Span((1,), row, ends[0]), Span((2,), column, ends[1]))
    sketch.span(products, WRITE, tile, *spans)
    flops = 2 * products.numel * inputs.shape[0] * int(np.prod(WINOGRAD_BLOCK)) // WINOGRAD_SQUARE**2
    return sketch.kernel(launch.name, threads=launch.block, flops=flops, coverage="inferred")


def _output(launch: MeasuredLaunch, products: Part, weight: Operand) -> Kernel:
    """Return the launch that transforms products back into weights."""
    filters, channels = weight.shape[:2]
    sketch = Sketch(-(-channels // WINOGRAD_CHANNELS), -(-filters // WINOGRAD_FILTERS))
    across, down, _ = grid_blocks(sketch.grid).astype(np.int64).T
    row, column = down * WINOGRAD_FILTERS, across * WINOGRAD_CHANNELS
    ends = np.minimum(row + WINOGRAD_FILTERS, filters), np.minimum(column + WINOGRAD_CHANNELS, channels)
    tile = np.arange(sketch.tiles)
    sketch.span(products, READ, tile, Span((1,), row, ends[0]), Span((2,), column, ends[1]))
    sketch.span(weight, WRITE, tile, Span((0,), row, ends[0]), Span((1,), column, ends[1]))
    return sketch.kernel(launch.name, threads=launch.block, loads_first=True, coverage="inferred")
