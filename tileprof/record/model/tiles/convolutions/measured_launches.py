"""The launches of a convolution as a GPU was seen to make them: layout copies, fills, the kernel, reductions.

`convolution_table` says which launches; this module says what each reads and writes::

    source ──copy──▶ scratch 1 ─┐                        ┌─ reduction ─▶ (scratch 3)
                                ├─▶ kernel ─▶ (scratch 0)┘                  │
    weight ──copy──▶ scratch 2 ─┘     ▲                                   copy ──▶ result
              fill, table of offsets ─┴ scratch 4, 5

A kernel whose name tells a tile has the tiles of `conv_kernels` and `conv_weight_kernels`; of persistent ones a cluster
that computes several of them is one tile. One of which only the grid is known is conservative: each of its tiles may
touch everything. So are calls with several kernels (FFT), but for `winograd`, and groups that take turns (`by_group`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from tileprof.record.model.tile_model import Kernel, Operand
from tileprof.record.model.tiles.convolutions import conv_kernels, conv_weight_kernels
from tileprof.record.model.tiles.convolutions.conv_kernels import Window
from tileprof.record.model.tiles.convolutions.conv_weight_kernels import WeightGradient
from tileprof.record.model.tiles.convolutions.launch_grids import shared_tile, shared_tiles
from tileprof.record.model.tiles.convolutions.library_kernels import (
    DIRECT_RUN,
    MAINS,
    TRANSPOSE_SIZE,
    NamedKernel,
    Role,
    adds_bias_itself,
    parse_name,
)
from tileprof.record.model.tiles.convolutions.parts import adding_engines, by_group, winograd
from tileprof.record.model.tiles.convolutions.problem import (
    MeasuredLaunch,
    Placement,
    Problem,
    copy_order,
    operand_sizes,
)
from tileprof.record.model.tiles.foundations import regions
from tileprof.record.model.tiles.foundations.sketch import (
    READ,
    WRITE,
    Part,
    Sketch,
    Span,
    binding,
    cut,
    grid_blocks,
    is_contiguous,
    narrow,
    ranges,
    rate_of,
)
from tileprof.record.model.tiles.products import dispatch, gemm_tile_rule
from tileprof.record.model.tiles.products.split_k import partial_sums, reduce_kernel
from tileprof.trace.footprint import Boxes, Footprint
from tileprof.trace.sources import TimeSource

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tileprof.devices import Device
    from tileprof.record.model.tiles.convolutions.convolution_table import Entry

_COPIES: Final = (Role.TRANSPOSE, Role.COPY)
_RESULT, _COUNTERS = 3, 4
"""Scratch slots; 0 has partial sums, 1 and 2 copies of the two inputs."""
_COUNTER_BYTES: Final = 4
_WEIGHT_RUNS: Final = re.compile(r"wgrad2d_(grouped_direct|shmem_tiling)")
"""Kernels whose blocks compute runs of the weight's gradient (recorded: the grid is their number)."""
_PACKING: Final = re.compile(r"genericTranspose")
_PACKED_RUN: Final = 512
"""Elements of a block of the copies that make the channels of a group dense."""
_UNKNOWN: Final = "of this kernel only the grid is known: every tile may touch everything"
_INFERRED: Final = "which block touches what is inferred from the kernel's name and grid"
_DEPTHWISE: Final = re.compile(
    r"^(conv2d|dgrad2d)_c1_k1|depthwise_convolution_(fprop|dgrad)|(conv2d|dgrad2d)_grouped_direct"
)
"""Depthwise kernels whose blocks take equal runs of results, as far as their grids tell."""
_SHARED: Final = re.compile(r"^(conv2d|dgrad2d)_c1_k1_nchw_shmem_tiling")

_SQUARES: Final = {"conv2d_c1_k1_nhwc": True, "dgrad2d_c1_k1_nhwc": False, "dgrad2d_c1_k1_nhwc_specialized": False}
"""Depthwise kernels of cuDNN whose threads compute 2 x 2 results each, and whether that was recorded byte by byte; of
the others it is what the grids say, which begin again with each image.
"""


@dataclass(slots=True)
class _Call:
    """A convolution, or a group of one, on its way: where its operands lie now, and what it has launched."""

    problem: Problem
    device: Device
    inputs: list[Operand]
    copied: list[bool] = field(default_factory=lambda: [False, False])
    awaited_counters: list[Operand] = field(default_factory=list)
    """Scratch that the kernel reads besides: counters and tables."""
    launched: list[Kernel] = field(default_factory=list)
    channels_first: bool = False
    """Whether the kernel that computes takes pixels behind one another."""


def kernels(problem: Problem, entry: Entry, device: Device) -> list[Kernel]:
    """Return the launches of a call as its entry has them."""
    return _with_sources(entry, _kernels(problem, entry.launches, device))


def _kernels(problem: Problem, launches: Sequence[MeasuredLaunch], device: Device) -> list[Kernel]:
    """Return the launches of a call, or of one group of it, without what `_with_sources` adds."""
    roles = [parse_name(launch.name).role for launch in launches]
    mains = [number for number, role in enumerate(roles) if role in MAINS]
    turn = by_group.turns(launches, problem.key[5])
    if turn:
        groups = by_group.problems(problem)
        each = [_kernels(one, launches[n * turn : (n + 1) * turn], device) for n, one in enumerate(groups)]
        return [by_group.apart(kernel, number) for number, some in enumerate(each) for kernel in some]
    call = _Call(problem, device, list(problem.inputs))
    after = roles[mains[-1] + 1 :] if mains else []
    copies = [sum(role in _COPIES for role in some) for some in (roles[: mains[0]] if mains else roles, after)]
    computing = launches[mains[0] : mains[-1] + 1] if mains else ()
    transformed = winograd.is_winograd(problem, launches, computing)
    strange = len(mains) != 1 and not transformed
    strange |= copies[0] > len(call.inputs) or copies[1] > 1 or after.count(Role.REDUCE) > 1
    if strange or any(role in (Role.FILL, Role.PREPARE) for role in after):
        return [_unknown(call, launch, number) for number, launch in enumerate(launches)]
    call.channels_first = "nchwkcrs_nchw" in computing[0].name
    out = problem.out
    target = _scratch_like(out, _RESULT) if copies[1] else out
    for number, launch in enumerate(launches[: mains[0]]):
        _before(call, launch, roles[number], roles[number + 1], target)
    if transformed:
        call.launched += winograd.kernels(problem.key, computing, call.inputs, target)
    else:
        call.launched += _main(call, computing[0], target, launches[mains[0] + 1 :])
    if copies[1]:
        launch = next(one for one in launches[mains[-1] + 1 :] if parse_name(one.name).role in _COPIES)
        call.launched.append(_copy(call, launch, target, out, len(problem.inputs)))
    return call.launched


def _with_sources(entry: Entry, kernels: list[Kernel]) -> list[Kernel]:
    """Return launches with what is known of each: registers, shared memory, time, and how it is known."""
    sourced = []
    for kernel, launch in zip(kernels, entry.launches, strict=True):
        sourced.append(
            replace(
                kernel,
                name=launch.name,
                block=launch.block if min(launch.block) else (1, 1, 1),
                registers=max(launch.registers, 1),
                shared_bytes=launch.shared_bytes,
                note=kernel.note or (_INFERRED if kernel.coverage == "inferred" else ""),
                shape_source=entry.source,
                time_source=TimeSource.CALIBRATED if entry.timed else TimeSource.INTERPOLATED,
                launch_ns=launch.ns,
            )
        )
    return sourced


def _before(call: _Call, launch: MeasuredLaunch, role: Role, following: Role, target: Operand) -> None:
    if role in _COPIES:
        number = _copied_input(call, launch, role)
        source = call.inputs[number]
        copy = _scratch_like(source, 1 + number)
        call.launched.append(_copy(call, launch, source, copy, number))
        call.inputs[number], call.copied[number] = copy, True
        return
    cleared = adding_engines.clearing(launch, target)
    if cleared is not None:
        call.launched.append(cleared)
        return
    sketch = Sketch(1)
    slot = _COUNTERS + len(call.awaited_counters)
    counters = Part((1,), (1,), "int32", _COUNTER_BYTES, ref=-1 - slot, workspace=_COUNTER_BYTES)
    call.awaited_counters.append(counters)
    sketch.whole(counters, WRITE)
    if role == Role.FILL and following not in _COPIES:  # either counters or the result is zeroed: both stand for it
        sketch.whole(target, WRITE)
    kernel = sketch.kernel(launch.name, threads=1, coverage="inferred")
    call.launched.append(replace(kernel, grid=launch.grid) if min(launch.grid) else kernel)


def _copied_input(call: _Call, launch: MeasuredLaunch, role: Role) -> int:
    """Return which input a copy is of: the one whose blocks the grid counts, else the next one."""
    remaining = [number for number in copy_order(call.problem.key) if not call.copied[number]]
    if role == Role.TRANSPOSE:
        sizes = operand_sizes(call.problem.key)
        fitting = [number for number in remaining if _transpose_grid(sizes[number]) == launch.grid]
        remaining = fitting or remaining
    return remaining[0]


def _transpose_grid(shape: Sequence[int]) -> tuple[int, int, int]:
    pixels = int(np.prod(shape[2:]))
    return -(-pixels // TRANSPOSE_SIZE), -(-shape[1] // TRANSPOSE_SIZE), shape[0]


def _scratch_like(operand: Operand, slot: int) -> Part:
    """Return workspace for an operand with its channels innermost."""
    shape = operand.shape
    order = (0, *range(2, len(shape)), 1)
    strides, run = [0] * len(shape), 1
    for dim in reversed(order):
        strides[dim], run = run, run * shape[dim]
    size = run * operand.itemsize
    return Part(shape, tuple(strides), operand.dtype, operand.itemsize, ref=-1 - slot, workspace=size)


def _copy(call: _Call, launch: MeasuredLaunch, source: Operand, copy: Operand, number: int) -> Kernel:
    """Model a change of layout: by squares where the grid says so, else any block may move anything."""
    counters = call.awaited_counters if number < len(call.problem.inputs) else []
    grid = _transpose_grid(source.shape)
    same_grid = _transpose_grid(operand_sizes(call.problem.key)[number]) == launch.grid
    if _PACKING.search(launch.name) and launch.grid == (source.numel // _PACKED_RUN + 1, 1, 1) and call.channels_first:
        return _packing(launch, source, copy, counters)
    if parse_name(launch.name).role != Role.TRANSPOSE or not same_grid:
        return _conservative(launch, call.device, [source, *counters], [copy])
    sketch = Sketch(*grid)
    x, y, z = grid_blocks(grid).astype(np.int64).T
    pixels, channels = int(np.prod(source.shape[2:])), source.shape[1]
    spatial = tuple(range(2, len(source.shape)))
    spans = (
        Span((0,), z, z + 1),
        Span((1,), y * TRANSPOSE_SIZE, np.minimum((y + 1) * TRANSPOSE_SIZE, channels)),
        Span(spatial, x * TRANSPOSE_SIZE, np.minimum((x + 1) * TRANSPOSE_SIZE, pixels)),
    )
    tiles = np.arange(sketch.tiles)
    sketch.span(source, READ, tiles, *spans)
    for operand in counters:
        sketch.whole(operand, READ)
    sketch.span(copy, WRITE, tiles, *spans)
    return sketch.kernel(launch.name, threads=launch.block, loads_first=True)


def _packing(launch: MeasuredLaunch, source: Operand, copy: Operand, counters: Sequence[Operand]) -> Kernel:
    """Model a copy of a group's channels to dense memory, or back: blocks take equal runs, the last one what is left
    (recorded).
    """
    sketch = Sketch(*launch.grid)
    tile, lo, hi = ranges(source.numel, _PACKED_RUN)
    every = Span(tuple(range(len(source.shape))), lo, hi)
    sketch.span(source, READ, tile, every)
    for operand in counters:
        sketch.whole(operand, READ)
    sketch.span(copy, WRITE, tile, every)
    return sketch.kernel(launch.name, threads=launch.block, loads_first=True, coverage="inferred")


def _main(call: _Call, launch: MeasuredLaunch, target: Operand, after: Sequence[MeasuredLaunch]) -> list[Kernel]:
    kernel = parse_name(launch.name)
    adding = adding_engines.kernel(call.problem, launch, call.inputs, target)
    reductions = [one for one in after if parse_name(one.name).role == Role.REDUCE]
    if kernel.role == Role.PRODUCT:
        kernels = _product(call, launch, kernel, target, reductions)
    elif _runs_of_results(launch, kernel, call.problem):
        kernels = [_direct(call, launch, kernel, target)]
    elif adding is not None:
        kernels = [adding]
    elif kernel.role == Role.WEIGHTS and isinstance(call.problem.shape, WeightGradient):
        kernels = _weight_elements(call, launch, target)
    elif _WEIGHT_RUNS.search(launch.name) and isinstance(call.problem.shape, WeightGradient) and is_contiguous(target):
        kernels = [_weight_runs(call, launch, target)]
    else:
        kernels = [_conservative(launch, call.device, call.inputs, [target])]
    if reductions and len(kernels) == 1:
        partial = partial_sums(target, 1)
        kernels = [
            _conservative(launch, call.device, call.inputs, [_as_part(partial)]),
            _conservative(reductions[0], call.device, [_as_part(partial)], [target]),
        ]
    kernels[0] = _awaiting(kernels[0], call.awaited_counters)
    return kernels


def _runs_of_results(launch: MeasuredLaunch, kernel: NamedKernel, problem: Problem) -> bool:
    direct = kernel.role == Role.DIRECT or _DEPTHWISE.search(launch.name) is not None
    return direct and isinstance(problem.shape, Window) and problem.depthwise


def _as_part(partial: Operand) -> Part:
    size = partial.numel * partial.itemsize
    return Part(partial.shape, partial.strides, partial.dtype, partial.itemsize, ref=-1, workspace=size)


def _product(
    call: _Call, launch: MeasuredLaunch, kernel: NamedKernel, target: Operand, reductions: Sequence[MeasuredLaunch]
) -> list[Kernel]:
    """Model a product in tiles, and the reduction of its slices where one was launched."""
    problem = call.problem
    placement = problem.placement(launch, kernel)
    split = placement.split if reductions else placement.segments
    tile = gemm_tile_rule.Tile(placement.rows, placement.columns, kernel.tile[2], split, 1, 1, 32, 0)
    rate = gemm_tile_rule.rate_of(problem.out.dtype, call.device, tf32=problem.tf32)
    if isinstance(problem.shape, Window):
        window = replace(problem.shape, out=target, source=call.inputs[0], weight=call.inputs[1], bias=None)
        tile = replace(tile, split=max(1, min(split, -(-window.channels[1] // tile.k))))
        main = conv_kernels.main_kernel(
            window, tile, launch.name, rate, per_image=placement.per_image, partial=bool(reductions),
            by_residue=placement.by_residue,
        )  # fmt: skip
        if placement.segments == main.grid[2] // window.groups > 1:
            main = replace(main, footprint=replace(main.footprint, block=grid_blocks(launch.grid)))
    else:
        gradient = replace(problem.shape, weight=target, small=call.inputs[0], large=call.inputs[1])
        tile = replace(tile, split=max(1, min(split, gradient.small.shape[0] * gradient.small.shape[2])))
        main = conv_weight_kernels.main_kernel(gradient, tile, launch.name, rate, partial=bool(reductions))
    images = problem.key[6] if placement.per_image else 1
    main = _with_placement(main, placement, launch, images)
    if launch.name.startswith("nvjet"):
        main = _by_gpc(main, kernel, placement, launch, images)
    alone = isinstance(problem.shape, Window) and problem.key[5] == 1 and placement.segments == 1
    work_items = _clustered(main, launch) if alone else None
    main = _by_work_items(
        replace(main, grid=launch.grid, cluster=launch.cluster, coverage="exact" if placement.certain else "inferred"),
        work_items,
    )
    if not reductions:
        return [main]
    blocks = int(np.prod(reductions[0].grid))
    elements = -(-target.numel // max(1, blocks))
    reduced = replace(reduce_kernel(target, tile.split, elements=elements), grid=reductions[0].grid)
    return [main, replace(reduced, coverage="inferred")]


def _with_placement(kernel: Kernel, placement: Placement, launch: MeasuredLaunch, images: int) -> Kernel:
    """Return a kernel with its tiles where they lie in the launch's grid, of which some blocks may have none."""
    across, down, deep = launch.grid
    row, column, slices = kernel.footprint.block.astype(np.int64).T
    count = int(row.max()) + 1
    if not placement.aside or max(launch.cluster) > 1 or count % images or deep != images * (int(slices.max()) + 1):
        return kernel
    image, row = np.divmod(row, count // images)
    first, second = (column, row) if placement.turned else (row, column)
    x, y, z = first * placement.aside + second % placement.aside, second // placement.aside, slices * images + image
    number = x + across * (y + down * z)
    boxes = replace(kernel.footprint.boxes, tile=number[kernel.footprint.boxes.tile].astype(np.int32))
    work = np.zeros(across * down * deep)
    work[number] = kernel.flops / len(number)
    return replace(kernel, footprint=Footprint(grid_blocks(launch.grid), regions.by_tile(boxes)), tile_flops=work)


def _by_gpc(kernel: Kernel, name: NamedKernel, placement: Placement, launch: MeasuredLaunch, images: int) -> Kernel:
    """Return a kernel of nvjet's with its tiles in the order in which clusters take them, image by image: as products
    (`dispatch`), whose rows lie along m and columns along n, or the other way round in images with channels first.
    """
    row, column, part = kernel.footprint.block.astype(np.int64).T
    rows, columns = int(row.max()) + 1, int(column.max()) + 1
    count = rows * columns
    together = max(1, int(np.prod(launch.cluster)))
    if part.any() or rows % images or count != int(np.prod(launch.grid)) // together:
        return kernel
    image, row = np.divmod(row, rows // images)
    m_first = name.cluster[1] == 1 < name.cluster[0]
    rows_first = m_first == (not placement.per_image)
    rows //= images
    number = image * rows * columns + (row + rows * column if rows_first else row * columns + column)
    order = np.empty(count, np.int64)
    order[np.array(dispatch.numbers(count, together))] = np.arange(count)
    tile = order[number]
    boxes = replace(kernel.footprint.boxes, tile=tile[kernel.footprint.boxes.tile].astype(np.int32))
    places = np.zeros((count, 3), np.int32)
    places[:, 1] = np.arange(count)
    return replace(kernel, footprint=Footprint(places, regions.by_tile(boxes)))


def _clustered(kernel: Kernel, launch: MeasuredLaunch) -> NDArray[np.int64] | None:
    """Return ``[tiles]`` the work item of each tile where clusters take neighbouring tiles, x of them across channels
    and y across pixels; None for other kernels (nvjet's tiles are clusters already).

    Work items run first along the axis that clusters do not span, back and forth: so depend 35 recorded launches of
    cuDNN's sm90_xmma kernels that have several clusters along both axes; one does not.
    """
    wide, high, _ = (max(1, size) for size in launch.cluster)
    if not launch.name.startswith("sm90_xmma") or wide * high == 1:
        return None
    row, column, part = kernel.footprint.block.astype(np.int64).T
    row, column = row // high, column // wide
    rows, columns = int(row.max()) + 1, int(column.max()) + 1
    if wide >= high:
        place = column * rows + np.where(column % 2, rows - 1 - row, row)
    else:
        place = row * columns + np.where(row % 2, columns - 1 - column, column)
    items: NDArray[np.int64] = part * rows * columns + place
    return items


def _by_work_items(kernel: Kernel, work_items: NDArray[np.int64] | None) -> Kernel:
    """Return a kernel with at most a tile per cluster: persistent ones, and those whose blocks take several groups, are
    dealt their work items in turn. A tile is a work item unless ``work_items`` has that of each tile.
    """
    together = max(1, int(np.prod(kernel.cluster)))
    clusters = max(1, int(np.prod(kernel.grid)) // together)
    items = kernel.footprint.tiles if work_items is None else int(work_items.max()) + 1
    if items <= clusters and work_items is None:
        return kernel
    boxes = kernel.footprint.boxes
    item = boxes.tile.astype(np.int64) if work_items is None else work_items[boxes.tile]
    turn, cluster = np.divmod(item, clusters)
    turns = -(-items // clusters)
    tile_boxes = Boxes(
        **{name: getattr(boxes, name) for name in Boxes.__slots__}
        | {
            "tile": cluster.astype(np.int32),
            "first": ((turn + boxes.first) / turns).astype(np.float32),
            "last": ((turn + boxes.last) / turns).astype(np.float32),
        }
    )
    places = np.zeros((min(items, clusters), 3), np.int32)
    places[:, 1] = np.arange(len(places))
    return replace(kernel, footprint=Footprint(places, regions.by_tile(tile_boxes)), coverage="inferred")


def _direct(call: _Call, launch: MeasuredLaunch, kernel: NamedKernel, target: Operand) -> Kernel:
    window = call.problem.shape
    assert isinstance(window, Window)
    own_bias = window.bias if adds_bias_itself(launch.name) else None
    window = replace(window, out=target, source=call.inputs[0], weight=call.inputs[1], bias=own_bias)
    blocks = int(np.prod(launch.grid))
    if launch.name in _SQUARES and len(window.axes) == 2:
        forward = _SQUARES[launch.name]
        squares = conv_kernels.squares_kernel(window, call.device, launch.name, by_image=not forward)
        return replace(squares, coverage="exact" if forward else "inferred")
    if _SHARED.search(launch.name) and len(window.axes) == 2 and launch.grid == shared_tiles(call.problem.key):
        tiles = conv_kernels.shared_tiles_kernel(window, call.device, launch.name, *shared_tile(call.problem.key))
        placed = replace(tiles.footprint, block=grid_blocks(launch.grid))
        return replace(tiles, footprint=placed, grid=launch.grid, coverage="inferred")
    run = DIRECT_RUN
    certain = kernel.role == Role.DIRECT
    results = int(np.prod(operand_sizes(call.problem.key)[2]))
    if -(-results // run) != blocks:
        certain = False
        run = max(1, -(-results // blocks))
    direct = conv_kernels.direct_kernel(window, call.device, launch.name, run=run)
    return replace(direct, grid=launch.grid, coverage="exact" if certain else "inferred")


def _weight_elements(call: _Call, launch: MeasuredLaunch, target: Operand) -> list[Kernel]:
    """Model blocks that compute one element of the weight's gradient each; of rows of pixels they are taken to read
    what lies between the first and the last pixel.
    """
    gradient = call.problem.shape
    assert isinstance(gradient, WeightGradient)
    small, large = call.inputs
    filters, taps = target.shape[0], target.shape[2:]
    sketch = Sketch(target.numel)
    tile, lo, hi = ranges(target.numel, 1)
    every = tuple(range(len(target.shape)))
    sketch.span(target, WRITE, tile, Span(every, lo, hi))
    row = tile // (target.numel // filters)
    sketch.span(small, READ, tile, Span((1,), row, row + 1))
    column = row // (filters // gradient.groups) * target.shape[1] + tile // int(np.prod(taps)) % target.shape[1]
    for number, tap in enumerate(np.ndindex(*taps)):
        view, own = large, tile[tile % int(np.prod(taps)) == number]
        for dim, (axis, at) in enumerate(zip(gradient.axes, tap, strict=True), start=2):
            first = at * axis.dilation - axis.padding
            begin = max(0, -(first // axis.stride))
            end = min(small.shape[dim], (axis.size - 1 - first) // axis.stride + 1)
            step = axis.stride if dim < len(taps) + 1 else 1
            length = (end - begin if step > 1 else (end - 1 - begin) * axis.stride + 1) if end > begin else 0
            view = narrow(view, dim, begin * axis.stride + first if length else 0, length, step)
        if view.numel:
            sketch.span(view, READ, own, Span((1,), column[own], column[own] + 1))
    flops = 2 * target.numel * small.numel // small.shape[1]
    return [sketch.kernel(launch.name, threads=launch.block, flops=flops, rate=rate_of(small))]


def _weight_runs(call: _Call, launch: MeasuredLaunch, target: Operand) -> Kernel:
    """Model blocks that compute equal runs of the weight's gradient in memory order: eight elements, or a filter."""
    gradient = call.problem.shape
    assert isinstance(gradient, WeightGradient)
    small, large = call.inputs
    filters, columns = target.shape[:2]
    inner = target.numel // filters
    run = -(-target.numel // int(np.prod(launch.grid)))
    sketch = Sketch(*launch.grid)
    tile, lo, hi = ranges(target.numel, run)
    sketch.span(target, WRITE, tile, Span(tuple(range(len(target.shape))), lo, hi))
    which, begin, end = cut(lo, hi, inner)
    row, taps = begin // inner, inner // columns
    first = row // (filters // gradient.groups) * columns + begin % inner // taps
    last = first - begin % inner // taps + (end - 1) % inner // taps + 1
    sketch.span(small, READ, tile[which], Span((1,), row, row + 1))
    sketch.span(large, READ, tile[which], Span((1,), first, last))
    flops = 2 * target.numel * small.numel // small.shape[1]
    return sketch.kernel(launch.name, threads=launch.block, flops=flops, rate=rate_of(small), coverage="inferred")


def _awaiting(kernel: Kernel, counters: Sequence[Operand]) -> Kernel:
    """Return a kernel whose tiles also read counters and tables."""
    if not counters:
        return kernel
    tiles = np.arange(kernel.footprint.tiles)
    slots, parts = list(kernel.operands), [kernel.footprint.boxes]
    for operand in counters:
        parts.append(regions.whole(operand, len(slots), READ, tiles, first=0, last=1))
        slots.append(binding(operand))
    footprint = Footprint(kernel.footprint.block, regions.by_tile(Boxes.concat(parts)))
    return replace(kernel, footprint=footprint, operands=tuple(slots))


def _unknown(call: _Call, launch: MeasuredLaunch, number: int) -> Kernel:
    """Model one of several kernels: it may read all inputs and what was written before, and write all results."""
    size = sum(one.numel * max(4, one.itemsize) for one in (*call.inputs, call.problem.out))
    shared = Part((size,), (1,), "uint8", 1, ref=-1, workspace=size)
    outputs = [shared, call.problem.out]
    return _conservative(launch, call.device, [*call.inputs, *([shared] if number else [])], outputs)


def _conservative(
    launch: MeasuredLaunch, device: Device, reads: Sequence[Operand], writes: Sequence[Operand]
) -> Kernel:
    """Model a kernel of which only the grid is known; at most a tile per SM, since more would say the same."""
    blocks = max(1, int(np.prod(launch.grid, dtype=np.int64)))
    sketch = Sketch(min(blocks, device.sms))
    for operand in reads:
        sketch.whole(operand, READ)
    for operand in writes:
        sketch.whole(operand, WRITE)
    kernel = sketch.kernel(launch.name, threads=1, coverage="conservative", note=_UNKNOWN)
    return replace(kernel, grid=launch.grid if blocks > 1 else (1, 1, 1))
