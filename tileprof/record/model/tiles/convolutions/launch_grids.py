"""Carries the grid of a measured launch over to another problem.

A grid counts something of its problem: tiles of a product, squares of a layout copy, runs of elements. Several ways to
count are known for each kind of kernel, most of them for all kernels of a library. The first way that explains the grid
that was measured is taken for the other problem; slices (split-k) stay as many as they were. A grid that no way
explains grows with the results.
"""

from __future__ import annotations

import re
from enum import Enum, auto
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from tileprof.record.model.tiles.convolutions.conv_kernels import SHARED_CHANNELS
from tileprof.record.model.tiles.convolutions.convolution_key import Layout, Pass, result_sizes
from tileprof.record.model.tiles.convolutions.library_kernels import MAINS, TRANSPOSE_SIZE, Role, parse_name
from tileprof.record.model.tiles.convolutions.problem import copy_order, operand_sizes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tileprof.record.model.tiles.convolutions.library_kernels import NamedKernel
    from tileprof.record.model.tiles.convolutions.problem import MeasuredLaunch

    Grid = tuple[int, int, int]
    Key = tuple[int, ...]

CLUSTERS_AT_ONCE: Final = {
    1: 132, 2: 66, 3: 39, 4: 30, 5: 22, 6: 17, 7: 15, 8: 15, 12: 7, 13: 7, 14: 7, 15: 7, 16: 7
}  # fmt: skip
"""How many clusters of each size an H200 runs at once: the most that persistent kernels were seen to launch."""
_SWIZZLES: Final = ((8, 6), (4, 3), (2, 2))
"""Tiles that CUTLASS puts side by side, and the least number of tiles along that axis."""
_MOST_SLICES: Final = 128
_MOST_GROUPS: Final = 16
"""Groups that one tile computes at most."""
_CONSTANT: Final = re.compile("nhwcAddPadding|tensorTransformGeneric|convertTensor|init_device_workspace")
"""Kernels of as many blocks for every size."""
WINOGRAD_SQUARE, WINOGRAD_POINTS = 4, 36
"""Results along each side of a square that Winograd's algorithm transforms, and points of the transformed square."""
WINOGRAD_BLOCK: Final = (8, 16)
"""Rows and columns of results of a block that transforms squares."""
WINOGRAD_CHANNELS, WINOGRAD_FILTERS = 32, 8
"""Channels of a block that transforms, and filters of one that transforms back."""
_SQUARE_RUN, _NARROW, _LANES, _WHOLE_IMAGE = 256, 8, 32, 20


class Product(NamedTuple):
    """A product as tiles lie over it: rows and columns of one, and how many there are."""

    rows: int
    columns: int
    number: int


class _Groups(Enum):
    """How a launch treats the groups of a call: all of them one by one, one alone, or all side by side."""

    EACH = auto()
    ALONE = auto()
    TOGETHER = auto()


class _Way(NamedTuple):
    """A way of counting tiles. ``turned``: the name's first size is along the columns. ``order``: ``rows`` or
    ``columns`` come first in the grid, or ``turns``: persistent clusters count all tiles along x. ``phases``: the
    pixels of each phase of a stride have tiles of their own. ``fills``: each tap has tiles of its own, and there are as
    many slices as the GPU takes at once.
    """

    each_image: bool
    turned: bool
    order: str
    swizzle: int = 1
    groups: _Groups = _Groups.EACH
    phases: bool = False
    fills: bool = False


def carried(launches: Sequence[MeasuredLaunch], measured: Key, key: Key) -> list[Grid]:
    """Return the grids for ``key`` of a call's launches, which were measured for ``measured_launches``."""
    copied: set[int] = set()
    mains = [number for number, launch in enumerate(launches) if parse_name(launch.name).role in MAINS]
    after = mains[-1] if mains else len(launches)
    grids = [
        _grid_of_launch(launch, measured, key, copied, behind=number > after) for number, launch in enumerate(launches)
    ]
    if any("winogradWgradData4x4" in launch.name for launch in launches):
        for number in mains:
            if parse_name(launches[number].name).role == Role.PRODUCT:
                grids[number] = _winograd_product(launches[number], key)
    return grids


def _grid_of_launch(launch: MeasuredLaunch, measured: Key, key: Key, copied: set[int], *, behind: bool) -> Grid:
    """Return the grid of one launch, ``behind`` those that compute or not; ``copied`` are the inputs that launches
    before it copied, and is added to.
    """
    if measured == key or not min(launch.grid) or _CONSTANT.search(launch.name):
        return launch.grid
    kernel = parse_name(launch.name)
    if kernel.role == Role.PRODUCT:
        grid = _product_grid(launch, kernel, measured, key)
    else:
        grid = _other_grid(launch, kernel.role, measured, key, copied, behind=behind)
    return grid or _scaled(launch.grid, measured, key)


def slices(launch: MeasuredLaunch, measured: Key) -> int:
    """Return the slices of k of a product's launch; 1 where its grid does not tell."""
    kernel = parse_name(launch.name)
    if kernel.role != Role.PRODUCT or not min(launch.grid):
        return 1
    explained = _counting_of_grid(launch, kernel, measured)
    return explained[1] if explained else 1


def _scaled(grid: Grid, measured: Key, key: Key) -> Grid:
    """Return a grid whose blocks grow as the results do; grids of the same results stay."""
    ratio = float(np.prod(operand_sizes(key)[2], dtype=float) / np.prod(operand_sizes(measured)[2], dtype=float))
    return grid if ratio == 1 or max(grid) == 1 else (max(1, round(grid[0] * ratio)), grid[1], grid[2])


def product_of(key: Key, *, each_image: bool) -> Product:
    """Return the products of a call: of each group and, with ``each_image``, of each image."""
    return _product_of(key, _Way(each_image, turned=False, order=""))


def _product_of(key: Key, way: _Way) -> Product:
    out, groups, images = operand_sizes(key)[2], key[5], key[6]
    count = (groups if way.groups == _Groups.EACH else 1) * (images if way.each_image else 1)
    if key[0] == Pass.WEIGHT_GRADIENT:
        return Product(max(1, out[0] // groups), int(np.prod(out[1:])), count)
    sizes = out[2:]
    if way.phases:
        sizes = tuple(-(-size // step) for size, step in zip(sizes, key[15:18], strict=True))
    pixels = int(np.prod(sizes))
    return Product(pixels if way.each_image else images * pixels, max(1, out[1] // groups), count)


def _ways(name: str, key: Key) -> Iterator[_Way]:
    """Yield ways of counting tiles, the usual one of a kernel's library first."""
    plain = ("gemm" in name and "implicit" not in name) or "Kernel2" in name or name.startswith("nvjet")
    last = key[2] == Layout.CHANNELS_LAST or max(key[9:12]) == 1
    weights = key[0] == Pass.WEIGHT_GRADIENT
    images = plain and not last
    turned = plain and (weights or last) and "xmma" not in name
    if name.startswith("nvjet") or "sm90_xmma" in name:
        orders: tuple[str, ...] = ("turns",)
    elif "Kernel2" in name:
        orders = ("rows", "columns") if last or weights else ("columns", "rows")
    elif "xmma" in name and not (plain and (last or weights)):
        orders = ("columns", "rows")
    else:
        orders = ("rows", "columns")
    swizzle = 8 if "Kernel2" in name else 4 if "cutlass" in name else 1
    first = _Way(images, turned, orders[0], swizzle)
    if weights and "sm90_xmma_wgrad" in name:
        yield first._replace(fills=True)
    if not weights and (key[0] == Pass.FORWARD) == bool(key[4]) and max(key[15:18]) > 1:
        yield first._replace(phases=True)
    alone = [first._replace(groups=groups) for groups in (_Groups.TOGETHER, _Groups.ALONE) if key[5] > 1]
    if "xmma" in name:
        yield from alone
    for each_image in (images, not images):
        for order in orders:
            for is_turned in (turned, not turned):
                yield _Way(each_image, is_turned, order, swizzle)
    if "xmma" not in name:
        yield from alone


def _count(launch: MeasuredLaunch, kernel: NamedKernel, key: Key, way: _Way, parts: int) -> Grid:
    """Return the grid of a product for a way of counting, with this many slices."""
    product = _product_of(key, way)
    high, wide = kernel.tile[:2][:: -1 if way.turned else 1]
    down, across = -(-product.rows // high), -(-product.columns // wide)
    if way.groups == _Groups.TOGETHER:
        across *= -(-key[5] // max(1, min(_MOST_GROUPS, wide // product.columns)))
    if way.phases:
        down *= int(np.prod(key[15:18]))
    images = key[6] if way.each_image else 1
    if way.order == "turns":
        x, y, _ = (max(1, size) for size in launch.cluster)
        if launch.name.startswith("nvjet"):
            along, over = kernel.cluster[:: -1 if way.turned else 1]
            together = x * y
            clusters = -(-down // along) * -(-across // over) * product.number * parts
            return together, min(clusters, CLUSTERS_AT_ONCE.get(together, 132 // together)), 1
        most = CLUSTERS_AT_ONCE.get(x * y, max(1, 132 // (x * y)))
        if way.fills:
            taps = int(np.prod(key[12:15]))
            across = -(-product.columns // taps // wide) * taps
            parts = max(1, most // (-(-down // y) * -(-across // x) * product.number))
        clusters = -(-down // y) * -(-across // x) * product.number * parts
        return x * min(clusters, most), y, launch.grid[2]
    one, other = (down, across) if way.order == "rows" else (across, down)
    aside = next((size for size, least in _SWIZZLES if other >= least and size <= way.swizzle), 1)
    return one * aside, -(-other // aside), parts * images


def _counting_of_grid(launch: MeasuredLaunch, kernel: NamedKernel, key: Key) -> tuple[_Way, int] | None:
    """Return the way and the slices with which a product's grid is counted for its own problem."""
    ways = list(_ways(launch.name, key))
    for way in ways:
        if way.order == "turns":
            parts = [1]
        else:
            alone = _count(launch, kernel, key, way, 1)[2]
            parts = [launch.grid[2] // alone] if launch.grid[2] % alone == 0 else []
        for some in parts:
            if _count(launch, kernel, key, way, some) == launch.grid:
                return way, some
    blocks = int(np.prod(launch.grid))
    for way in ways[:2]:
        if way.order == "turns":
            one = int(np.prod(_count(launch, kernel, key, way, 1)))
            some = blocks // one
            if 1 < some <= _MOST_SLICES and _count(launch, kernel, key, way, some) == launch.grid:
                return way, some
    return None


def _product_grid(launch: MeasuredLaunch, kernel: NamedKernel, measured: Key, key: Key) -> Grid | None:
    explained = _counting_of_grid(launch, kernel, measured)
    return None if explained is None else _count(launch, kernel, key, *explained)


def _other_grid(
    launch: MeasuredLaunch, role: Role, measured: Key, key: Key, copied: set[int], *, behind: bool
) -> Grid | None:
    if role in (Role.PREPARE, Role.WEIGHTS) and max(launch.grid) == 1:
        return launch.grid
    inputs = copy_order(measured)
    operands: tuple[int, ...] = (2, *inputs) if behind or role == Role.FILL or "ToNchw" in launch.name else (*inputs, 2)
    if role == Role.TRANSPOSE and len(copied) == 1:
        operands = tuple(sorted(operands, key=lambda operand: operand in copied))
    for count in _counts(launch.name, role):
        for operand in operands:
            own = count(operand_sizes(measured)[operand], measured)
            if _with_kept_axes(own, launch.grid) == launch.grid:
                if role == Role.TRANSPOSE:
                    copied.add(operand)
                return _with_kept_axes(count(operand_sizes(key)[operand], key), launch.grid)
    return None


def _with_kept_axes(counted: Grid, grid: Grid) -> Grid:
    """Return a grid in which axes that are not counted (0) are as they were."""
    x, y, z = (size or old for size, old in zip(counted, grid, strict=True))
    return x, y, z


def _counts(name: str, role: Role) -> Sequence[Callable[[tuple[int, ...], Key], Grid]]:
    """Return the ways in which a kernel's grid may count an operand's elements."""
    for pattern, ways in _COUNTS:
        if re.search(pattern, name):
            return ways
    return _SQUARES if role == Role.TRANSPOSE else _RUNS


def _squares(shape: tuple[int, ...], _: Key) -> Grid:
    pixels = int(np.prod(shape[2:]))
    return -(-pixels // TRANSPOSE_SIZE), -(-shape[1] // TRANSPOSE_SIZE), shape[0]


def _squares_of_group(shape: tuple[int, ...], key: Key) -> Grid:
    """Count the squares of one group: its channels, or of a weight its filters."""
    if shape in (operand_sizes(key)[1], operand_sizes(key)[2]) and shape[1] * key[5] in (key[7], key[8]):
        return _squares((max(1, shape[0] // key[5]), *shape[1:]), key)
    return _squares((shape[0], max(1, shape[1] // key[5]), *shape[2:]), key)


def _padded_squares(channels: int) -> Callable[[tuple[int, ...], Key], Grid]:
    """Return what counts squares where each group's channels are filled up to a multiple."""

    def count(shape: tuple[int, ...], key: Key) -> Grid:
        each = max(1, shape[1] // key[5])
        return _squares((shape[0], key[5] * -(-each // channels) * channels, *shape[2:]), key)

    return count


def _runs(length: int, most: int = 1 << 40) -> Callable[[tuple[int, ...], Key], Grid]:
    """Return what counts runs of elements, at most this many."""
    return lambda shape, _: (min(most, -(-int(np.prod(shape)) // length)), 1, 1)


def _runs_of_group(length: int, most: int, more: int) -> Callable[[tuple[int, ...], Key], Grid]:
    """Return what counts runs of a group's elements; with ``more`` one beyond the whole ones."""
    return lambda shape, key: (
        min(most, (int(np.prod(shape)) // key[5] + (1 - more) * (length - 1)) // length + more),
        1,
        1,
    )


def _matrix(high: int, wide: int, *, pixels_first: bool) -> Callable[[tuple[int, ...], Key], Grid]:
    """Return what counts pieces of the result as a matrix."""

    def count(_: tuple[int, ...], key: Key) -> Grid:
        product = product_of(key, each_image=key[2] == Layout.CONTIGUOUS and key[0] != Pass.WEIGHT_GRADIENT)
        if key[0] == Pass.WEIGHT_GRADIENT:
            first, second = (product.columns, product.rows) if pixels_first else (product.rows, product.columns)
        else:
            first, second = (product.rows, product.columns) if pixels_first else (product.columns, product.rows)
        return -(-first // high), -(-second // wide), 1

    return count


def _squares_of_results(shape: tuple[int, ...], _: Key) -> Grid:
    """Count runs of threads that compute 2 x 2 results each."""
    high, wide = (-(-size // 2) for size in shape[-2:])
    return -(-shape[0] * shape[1] * high * wide // _SQUARE_RUN), 1, 1


def _squares_of_images(shape: tuple[int, ...], key: Key) -> Grid:
    """Count the same for each image."""
    return _squares_of_results((1, *shape[1:]), key)[0], shape[0], 1


def _taps_by_channels(shape: tuple[int, ...], key: Key) -> Grid:
    return int(np.prod(key[12:15])), -(-shape[1] // _LANES), 1


def _channels_by_images(shape: tuple[int, ...], _: Key) -> Grid:
    return -(-shape[1] // _LANES), shape[0], 0


def _filters_by_groups(_: tuple[int, ...], key: Key) -> Grid:
    return key[8] // key[5], key[5], 1


def _eight_weights(_: tuple[int, ...], key: Key) -> Grid:
    return -(-(key[8] * (key[7] // key[5]) * int(np.prod(key[12:15]))) // 8), 1, 1


def _columns_by(wide: int, other: str) -> Callable[[tuple[int, ...], Key], Grid]:
    """Return what counts columns of a group's weight, and pixels of images or filters."""

    def count(_: tuple[int, ...], key: Key) -> Grid:
        pixels = int(np.prod(result_sizes(np.array(key[3:], np.int64))))
        columns = -(-(key[7] // key[5]) * int(np.prod(key[12:15])) // wide)
        if other == "pixels":
            return columns, -(-pixels // _LANES), key[6]
        return columns, -(-(key[8] // key[5]) // _LANES), -(-pixels // 512) * key[6] if other == "runs" else 0

    return count


def _strips(_: tuple[int, ...], key: Key) -> Grid:
    """Count runs of threads that compute 3 rows (2 with a stride) of 8 results each; 2 rows of 4 for a single tap."""
    shape = operand_sizes(key)[2]
    rows, wide = (2, 4) if int(np.prod(key[12:15])) == 1 else (3 if max(key[16:18]) == 1 else 2, _NARROW)
    runs = -(-shape[3] // rows) * -(-shape[4] // wide)
    return -(-shape[0] * shape[1] * runs // _SQUARE_RUN), 1, 1


def winograd_blocks(key: Key) -> tuple[int, int]:
    """Return how many blocks that transform squares lie down and across the results of an image."""
    results = operand_sizes(key)[0]
    down, across = (-(-size // block) for size, block in zip(results[3:], WINOGRAD_BLOCK, strict=True))
    return down, across


def _sides_of_weight(key: Key) -> tuple[int, int]:
    """Return filters and channels of a group's weight."""
    weight = operand_sizes(key)[2]
    return weight[0] // key[5], weight[1]


def _transforms(side: int) -> Callable[[tuple[int, ...], Key], Grid]:
    """Return what counts blocks that transform a group's results or inputs: filters (0) or channels (1)."""

    def count(_: tuple[int, ...], key: Key) -> Grid:
        down, across = winograd_blocks(key)
        return down * across * -(-_sides_of_weight(key)[side] // WINOGRAD_CHANNELS), key[6], 1

    return count


def _transforms_back(_: tuple[int, ...], key: Key) -> Grid:
    filters, channels = _sides_of_weight(key)
    return -(-channels // WINOGRAD_CHANNELS), -(-filters // WINOGRAD_FILTERS), 1


def winograd_tile(launch: MeasuredLaunch) -> tuple[int, int]:
    """Return filters and channels of a tile of the products of Winograd's algorithm."""
    first, second, _ = parse_name(launch.name).tile
    return (second, first) if "Kernel2" in launch.name else (first, second)


def _winograd_product(launch: MeasuredLaunch, key: Key) -> Grid:
    """Return the grid of the products of all points."""
    high, wide = winograd_tile(launch)
    rows, columns = (-(-side // size) for side, size in zip(_sides_of_weight(key), (high, wide), strict=True))
    most = 8 if "Kernel2" in launch.name else 1
    aside = next((size for size, least in _SWIZZLES if columns >= least and size <= most), 1)
    return rows * aside, -(-columns // aside), WINOGRAD_POINTS


def shared_tile(key: Key) -> tuple[int, int]:
    """Return rows and columns of results of a block whose inputs are in shared memory, for eight channels: 10 x 10 with
    a stride; without, whole images up to 20 x 20, and 10 x 40 of larger ones.
    """
    high, wide = operand_sizes(key)[2][3:]
    if max(key[16:18]) > 1:
        return 10, 10
    return (high, wide) if max(high, wide) <= _WHOLE_IMAGE else (10, 40)


def shared_tiles(key: Key) -> Grid:
    """Return how many such tiles lie across an image, how many down it and for its channels, and how many images."""
    images, channels, _, high, wide = operand_sizes(key)[2]
    rows, columns = shared_tile(key)
    return -(-wide // columns), -(-high // rows) * -(-channels // SHARED_CHANNELS), images


_COUNTS: Final = (
    (r"nhwcSliceC", (_runs_of_group(512, 2048, 0),)),
    (r"genericTranspose", (_runs_of_group(512, 1 << 40, 1),)),
    (r"splitKreduce", (_matrix(32, 16, pixels_first=True), _matrix(32, 16, pixels_first=False))),
    (r"MatrixShape(?:ILi|<)4(?:ELi|, )256", (_matrix(4, 256, pixels_first=False),)),
    (r"MatrixShape(?:ILi|<)4(?:ELi|, )128", (_matrix(4, 128, pixels_first=False),)),
    (r"^(conv2d|dgrad2d)_c1_k1_nhwc$", (_squares_of_results, _squares_of_images)),
    (r"^(conv2d|dgrad2d)_c1_k1_nhwc_specialized", (_strips, _squares_of_images)),
    (r"^(conv2d|dgrad2d)_c1_k1_nchw_shmem_tiling", (lambda _, key: shared_tiles(key),)),
    (r"^wgrad2d_c1_k1_nhwc_reduce", (_taps_by_channels,)),
    (r"^wgrad2d_c1_k1_nhwc$", (_channels_by_images,)),
    (r"^wgrad2d_shmem_tiling", (_filters_by_groups,)),
    (r"wgrad2d_grouped_direct", (_eight_weights,)),
    (r"dgrad_engine", (_columns_by(64, "pixels"),)),
    (r"winogradWgradData4x4", (_transforms(1),)),
    (r"winogradWgradDelta4x4", (_transforms(0),)),
    (r"winogradWgradOutput4x4", (_transforms_back,)),
    (r"wgrad_alg0_engine", (_columns_by(32, "runs"),)),
    (r"wgrad_alg1_engine", (_columns_by(32, "filters"),)),
)  # fmt: skip
_SQUARES: Final = (_squares, _squares_of_group, *(_padded_squares(channels) for channels in (4, 8, 16, 32)))
_RUNS: Final = tuple(_runs(1 << power) for power in (10, 8, 7, 3, 9, 11, 12, 2, 5, 0))
