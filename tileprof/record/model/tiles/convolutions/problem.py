"""A convolution as the tables know it: its key, its operands, and how a product's tiles lie over its results."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from tileprof.record.model.tiles.convolutions.conv_kernels import Window, residues
from tileprof.record.model.tiles.convolutions.convolution_key import Dtype, Layout, Pass

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tileprof.record.model.tile_model import Operand
    from tileprof.record.model.tiles.convolutions.conv_weight_kernels import WeightGradient
    from tileprof.record.model.tiles.convolutions.library_kernels import NamedKernel

_DTYPES: Final = {"float32": Dtype.TF32, "float16": Dtype.FP16, "bfloat16": Dtype.BF16}
_RANKS: Final = (1, 2, 3)
_SWIZZLES: Final = (1, 2, 4, 8)
_SEGMENTED: Final = re.compile(r"_segment_k_on_")
"""cuDNN's kernels that share a tile's depth among blocks of one launch (recorded: blocks a whole round apart)."""
_STRIDED_GRADIENT: Final = re.compile(r"xmma_dgrad\w*_strided_")
"""cuDNN's gradients of strided convolutions, and transposed ones (recorded: pixels of a tile have equal remainders)."""


class MeasuredLaunch(NamedTuple):
    """A launch of a call, as it was measured or as near ones tell."""

    name: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int]
    registers: int
    shared_bytes: int
    ns: float


@dataclass(frozen=True, slots=True)
class Placement:
    """The placing of tiles: pixels (rows of a weight) and channels (columns) of one, slices, and whether each image has
    tiles of its own. ``certain``: the launch's grid is that of these tiles.

    ``segments``: the number of blocks that add up the depth of each tile within the launch. ``by_residue``: rows are
    pixels with the same remainders by the strides. ``aside``: along x of the grid, the number of tiles of the other
    axis beside each of the axis that comes first, rows, or columns if ``turned``; 0 where the grid does not tell.
    """

    rows: int
    columns: int
    split: int
    per_image: bool
    certain: bool
    aside: int = 0
    turned: bool = False
    segments: int = 1
    by_residue: bool = False


def _tiles_along(rows: int, columns: int, high: int, wide: int) -> tuple[int, int]:
    return -(-rows // high), -(-columns // wide)


@dataclass(frozen=True, slots=True)
class Problem:
    """A call. ``shape`` has operands as PyTorch gave them; ``inputs`` are its two, in the order of the key's sizes."""

    key: tuple[int, ...]
    shape: Window | WeightGradient
    inputs: tuple[Operand, Operand]
    out: Operand

    @property
    def depthwise(self) -> bool:
        groups, inside = self.key[5], self.key[7]
        return groups > 1 and groups == inside

    @property
    def tf32(self) -> bool:
        return self.key[1] == Dtype.TF32

    def placement(self, launch: MeasuredLaunch, kernel: NamedKernel) -> Placement:
        """Return how the tiles of a launch lie, judged by its grid."""
        key = self.key
        first, second, _ = kernel.tile
        library = (
            "cublas" in launch.name or "nvjet" in launch.name or "Kernel2<" in launch.name or "Kernel2I" in launch.name
        )
        images, rows, columns = product_of_group(key)
        weight = key[0] == Pass.WEIGHT_GRADIENT
        last = key[2] == Layout.CHANNELS_LAST or (not weight and rows == images)  # images of a pixel lie as rows, too
        alone = library and not last and not weight and images > 1
        along_a, along_b = kernel.cluster
        ways = [(first * along_a, second * along_b), (second * along_b, first * along_a)]
        if library and last:
            ways.reverse()
        split = _slices(launch, images, alone=alone)
        by_residue = _STRIDED_GRADIENT.search(launch.name) is not None and isinstance(self.shape, Window)
        for high, wide in ways:
            tile_counts = _tiles_along(rows // images if alone else rows, columns, high, wide)
            if by_residue:
                tile_counts = self._residue_tiles(high), tile_counts[1]
            blocks, tiles = int(np.prod(launch.grid)), tile_counts[0] * tile_counts[1] * key[5]
            if _SEGMENTED.search(launch.name) and blocks > tiles and blocks % tiles == 0:
                return Placement(high, wide, split, alone, certain=False, segments=blocks // tiles)
            if launch.name.startswith("nvjet"):
                total = int(np.prod(launch.grid)) // max(1, int(np.prod(launch.cluster)))
                if total in (tile_counts[0] * tile_counts[1], tile_counts[0] * tile_counts[1] * images):
                    return Placement(high, wide, split, alone, certain=True)
                continue
            columns_first = not weight and (not last if "Kernel2" in launch.name else "xmma" in launch.name)
            for turned in (columns_first, not columns_first):
                aside = _aside(launch.grid, tile_counts[::-1] if turned else tile_counts)
                if aside:
                    return Placement(
                        high, wide, split, alone, not by_residue, aside=aside, turned=turned, by_residue=by_residue
                    )
        return Placement(*ways[0], split, alone, certain=False, by_residue=by_residue)

    def _residue_tiles(self, rows: int) -> int:
        """Return tiles of this many pixels each, where tiles have pixels of one residue."""
        assert isinstance(self.shape, Window)
        strides = [axis.stride for axis in self.shape.axes]
        return sum(-(-int(np.prod(some)) // rows) for _, some in residues(self.shape.pixels, strides))


def product_sizes(shape: Window | WeightGradient) -> tuple[int, int, int]:
    """Return rows, columns and depth of a group's product, as tiles are dictated for it."""
    if isinstance(shape, Window):
        return int(np.prod(shape.pixels)), shape.channels[0], shape.channels[1] * shape.taps
    lines, line = shape.small.shape[0] * shape.small.shape[2], int(np.prod(shape.small.shape[3:]))
    return shape.rows, int(np.prod(shape.columns)), lines * line


def _slices(launch: MeasuredLaunch, images: int, *, alone: bool) -> int:
    return max(1, launch.grid[2] // (images if alone else 1))


def _aside(grid: tuple[int, int, int], tiles: tuple[int, int]) -> int:
    """Return how many tiles of the second axis a grid has beside each of the first; 0 where it does not count them."""
    one, other = tiles
    return next((some for some in _SWIZZLES if grid[:2] == (one * some, -(-other // some))), 0)


def product_of_group(key: tuple[int, ...]) -> tuple[int, int, int]:
    """Return images, and rows and columns of a group's product: pixels by channels, or channels by channels and
    taps.
    """
    out = operand_sizes(key)[-1]
    groups = key[5]
    if key[0] == Pass.WEIGHT_GRADIENT:
        return out[0], max(1, out[0] // groups), int(np.prod(out[1:]))
    return out[0], out[0] * int(np.prod(out[2:])), max(1, out[1] // groups)


def operand_sizes(key: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Return shapes of the two inputs and the result of a key's call, each with three spatial sizes.

    Forward: input, weight, result. Gradient of the input: gradient, weight, input. Gradient of the weight: gradient and
    input (the other way round if transposed), weight.
    """
    what, _, _, _, transposed, groups, images, inside, outside = key[:9]
    size, taps, stride, padding, dilation, extra = (key[i : i + 3] for i in range(9, 27, 3))
    results = tuple(
        (n - 1) * s - 2 * p + d * (t - 1) + e + 1 if transposed else (n + 2 * p - d * (t - 1) - 1) // s + 1
        for n, t, s, p, d, e in zip(size, taps, stride, padding, dilation, extra, strict=True)
    )
    source, result = (images, inside, *size), (images, outside, *results)
    weight = (inside, outside // groups, *taps) if transposed else (outside, inside // groups, *taps)
    if what == Pass.FORWARD:
        return source, weight, result
    if what == Pass.INPUT_GRADIENT:
        return result, weight, source
    return (source, result, weight) if transposed else (result, source, weight)


def copy_order(key: tuple[int, ...]) -> tuple[int, int]:
    """Return in which order a library copies the inputs (`operand_sizes`) to another layout (recorded)."""
    what, transposed = key[0], bool(key[4])
    if what == Pass.WEIGHT_GRADIENT:
        return 1, 0
    return (0, 1) if (what == Pass.INPUT_GRADIENT) == transposed else (1, 0)


def key_of(
    what: Pass, source: Operand, weight: Operand, window: Sequence[Sequence[int]], groups: int, *, transposed: bool
) -> tuple[int, ...] | None:
    """Return the key of a call; None for types and ranks that no table has.

    ``source`` is the call's input, ``window`` its stride, padding, dilation and output padding along each dimension.
    """
    rank = len(weight.shape) - 2
    if source.dtype not in _DTYPES or rank not in _RANKS:
        return None
    stride, padding, dilation, extra = window

    def three(values: Sequence[int], fill: int) -> tuple[int, ...]:
        return (*(fill,) * (3 - rank), *(int(v) for v in values))

    layout = Layout.CHANNELS_LAST if channels_last(source) or channels_last(weight) else Layout.CONTIGUOUS
    outside = weight.shape[1] * groups if transposed else weight.shape[0]
    return (
        int(what), int(_DTYPES[source.dtype]), int(layout), max(2, rank), int(transposed), groups, source.shape[0],
        source.shape[1], outside, *three(source.shape[2:], 1), *three(weight.shape[2:], 1), *three(stride, 1),
        *three(padding, 0), *three(dilation, 1), *three(extra, 0),
    )  # fmt: skip


def channels_last(operand: Operand) -> bool:
    """Return whether PyTorch takes a tensor to be in channels last: strides rise from channels to the last dimension,
    then outwards, and nothing is ambiguous (c10/core/MemoryFormat.h).
    """
    if len(operand.shape) not in (4, 5) or operand.strides[1] == 0:
        return False
    least = 0
    for dim in (1, *range(len(operand.shape) - 1, 1, -1), 0):
        stride, size = operand.strides[dim], operand.shape[dim]
        if size == 0 or stride < least or (dim == 0 and least == operand.strides[1]):
            return False
        least = stride * size if size > 1 else stride
    return True
