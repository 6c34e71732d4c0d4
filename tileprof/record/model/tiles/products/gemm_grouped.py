"""Grouped matrix products: many products of unequal size, as mixtures of experts use them.

The sizes are values (``offs``: where each group ends), so calls are modelled one by one, from the real routing. In
bfloat16 on sm_90 they are one launch. The kernel is persistent; a tile is one work item, and items come group by group.
A block before it writes down what each group is, and two tiles decide among themselves by the mean size of a group
(PyTorch's ``GroupMM.cu``). In other types, and on older GPUs, the ends of groups are copied to the host, and each
group is a product of its own (``_grouped_mm_fallback``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tileprof.arrays import I64
from tileprof.record.model import tables
from tileprof.record.model.fallback import conservative
from tileprof.record.model.tile_model import Call, Kernel, Operand, models
from tileprof.record.model.tiles.elementwise.pointwise import copied_out, elementwise
from tileprof.record.model.tiles.foundations import overrides, regions
from tileprof.record.model.tiles.foundations.index_values import recorded_values
from tileprof.record.model.tiles.foundations.sketch import Sketch, binding, scratch
from tileprof.record.model.tiles.products import gemm, gemm_kernel_choice, gemm_tile_rule
from tileprof.record.model.tiles.products import problem as problems
from tileprof.record.model.tiles.products.gemm_kernels import Product, as_batch, kernels
from tileprof.record.model.tiles.products.main_loop import chunks_for, flops, raster
from tileprof.record.model.tiles.products.problem import Problem
from tileprof.record.model.tiles.products.split_k import row_of_blocks
from tileprof.trace.footprint import READ, WRITE, Boxes, Footprint

if TYPE_CHECKING:
    from tileprof.devices import Device


_SMALL, _LARGE, _SMALL_SIDE, _THREADS = (64, 128, 128), (128, 256, 64), 128, 384
"""Tiles on sm_90: the small one where the mean group has at most this many rows, or columns."""
_PREPARING_NS = 1700.0
"""The median, on an H200, of the launch that prepares groups."""


@dataclass(frozen=True, slots=True)
class _Items:
    """Work items, one entry each: its group, and the ranges of m, n and k it has."""

    group: I64
    m: tuple[I64, I64]
    n: tuple[I64, I64]
    k: tuple[I64, I64]


@models("aten::_grouped_mm", data_dependent=True)
def grouped_mm(call: Call, device: Device) -> list[Kernel]:
    """``self @ mat2`` in groups: of rows (2 and 3 dimensions), of columns (3 and 2), of the depth (2 and 2) or plain
    batches.
    """
    a, b, d, bias = call["self"], call["mat2"], call.outputs[0], call["bias"]
    if d.numel == 0:
        return []
    if call["offs"] is None:
        c = None
        if bias is not None:
            rows = replace(bias, shape=(bias.shape[0], 1, bias.shape[1]), strides=(bias.strides[0], 0, bias.strides[1]))
            c = regions.expand(rows, d.shape)
        return kernels(Product(a, b, d, c), device)
    ends = recorded_values(call, call["offs"])
    if ends is None:
        return conservative(call, device, (), "the sizes of groups are values, and the program runs on fake tensors")
    edges = np.concatenate([[0], ends]).astype(np.int64)
    sizes = np.diff(edges)
    m, n, k = (np.full(len(sizes), size) for size in (a.shape[-2], b.shape[-1], a.shape[-1]))
    ranges = {"m": (0 * m, m), "n": (0 * n, n), "k": (0 * k, k)}
    grouped = {(2, 3): "m", (3, 2): "n", (2, 2): "k"}[len(a.shape), len(b.shape)]
    ranges[grouped] = edges[:-1], edges[1:]
    if bias is None and not _is_one_launch(a, device):
        return [copied_out(call["offs"]), *_one_by_one(call, ranges, grouped, device)]
    rate = gemm_tile_rule.rate_of(a.dtype, device)
    mean = tuple(max(1, int(np.mean(high - low))) for low, high in ranges.values())
    tile = _tile(call, (mean[0], mean[1], mean[2]), len(sizes), rate, device)
    items = _items(ranges, tile)
    # Every work item searches for its group before it loads anything: in what was prepared, or in the ends of groups.
    prepared = scratch(0, _bytes_of_groups(len(sizes))) if _prepares(a, device) else None
    groups = prepared or call["offs"]
    footprint = Footprint(row_of_blocks(len(items.group)), _boxes(call, items, tile, groups))
    depth = items.k[1] - items.k[0]
    work = flops(a.dtype, 1) * (items.m[1] - items.m[0]) * (items.n[1] - items.n[0]) * depth.astype(np.float64)
    operands = (a, b, d, binding(groups), *((bias,) if bias is not None else ()))
    launched = [
        *([_preparation(call["offs"], prepared, len(sizes))] if prepared else []),
        Kernel(
            f"grouped_gemm_{rate}_{tile.m}x{tile.n}x{tile.k}_{tile.stages}", footprint, operands,
            (len(items.group), 1, 1),
            (tile.threads, 1, 1), registers=tile.registers, shared_bytes=tile.shared_bytes, flops=int(work.sum()),
            rate=rate, tile_flops=work,
        ),
    ]  # fmt: skip
    if grouped != "m" or not prepared or overrides.dictated("gemm", mean) is not None:
        return launched
    return _with_times(launched, a, b, int(np.count_nonzero(sizes)), device)


def _with_times(launched: list[Kernel], a: Operand, b: Operand, groups: int, device: Device) -> list[Kernel]:
    """Return the preparation and the product of groups of rows with the times that such products took on the GPU, in
    which groups had equal sizes; as they are where nothing like them was measured.
    """
    table = tables.table("products", device)
    first = replace(a, shape=(groups, *a.shape), strides=(0, *a.strides))
    problem = Problem.of(problems.GROUPED, first, b)
    choice = gemm_kernel_choice.measured(problem, table, device) if problem and table and groups else None
    if choice is None or not choice.main_ns:
        return launched
    total = choice.main_ns + choice.rest_ns
    preparing = choice.rest_ns or min(_PREPARING_NS, total / 2)
    times = preparing, total - preparing
    return [replace(k, launch_ns=ns, time_source=choice.time_source) for k, ns in zip(launched, times, strict=True)]


def _one_by_one(call: Call, ranges: dict[str, tuple[I64, I64]], grouped: str, device: Device) -> list[Kernel]:
    """Return the products of all groups that are not empty. A group of no depth is a product of empty matrices, whose
    results are zeros.
    """
    launched: list[Kernel] = []
    whole = {"self": call["self"], "mat2": call["mat2"], "out": call.outputs[0]}
    axes = {"self": ("m", "k"), "mat2": ("k", "n"), "out": ("m", "n")}
    for group in range(len(ranges["m"][0])):
        low, high = ({axis: int(ends[side][group]) for axis, ends in ranges.items()} for side in (0, 1))
        matrices, shifts = [], {}
        for name, operand in whole.items():
            begin = [low[axis] if axis == grouped else 0 for axis in axes[name]]
            at = [*([group] if len(operand.shape) == 3 else []), *begin]
            shift = int(np.dot(at, operand.strides)) * operand.itemsize
            shifts[operand.ref] = shift
            shape = tuple(high[axis] - low[axis] for axis in axes[name])
            aligned = min(operand.alignment, shift & -shift) if shift else operand.alignment
            matrices.append(replace(operand, shape=shape, strides=operand.strides[-2:], alignment=aligned))
        a, b, d = (as_batch(matrix) for matrix in matrices)
        if d.numel == 0:
            continue
        if a.numel == 0:
            kernels_of_group = elementwise("zero_", [], [matrices[2]], flops_each=0)
        else:
            kernels_of_group = gemm.with_copies(Product(a, b, d), device, problems.PLAIN, tf32=call.tf32)
        launched += [_shifted(kernel, shifts) for kernel in kernels_of_group]
    return launched


def _shifted(kernel: Kernel, shifts: dict[int, int]) -> Kernel:
    """Return the kernel with the boxes of each operand so many bytes further, by the operand's ``ref``."""
    by_slot = [shifts.get(o.ref, 0) if isinstance(o, Operand) else 0 for o in kernel.operands]
    boxes = kernel.footprint.boxes
    boxes = replace(boxes, offset=boxes.offset + np.asarray(by_slot)[boxes.operand])
    return replace(kernel, footprint=replace(kernel.footprint, boxes=boxes))


def _is_one_launch(a: Operand, device: Device) -> bool:
    return a.dtype == "bfloat16" and device.architecture.startswith(("sm_90", "sm_100"))


def _prepares(a: Operand, device: Device) -> bool:
    return a.dtype == "bfloat16" and device.architecture.startswith("sm_90")


def _tile(call: Call, mean: tuple[int, int, int], groups: int, rate: str, device: Device) -> gemm_tile_rule.Tile:
    a, b, d = call["self"], call["mat2"], call.outputs[0]
    if _prepares(a, device) and overrides.dictated("gemm", mean) is None:
        rows = a.shape[-2] // (groups if (len(a.shape), len(b.shape)) == (2, 3) else 1)
        columns = b.shape[-1] // (groups if (len(a.shape), len(b.shape)) == (3, 2) else 1)
        shape = _SMALL if min(rows, columns) <= _SMALL_SIDE else _LARGE
        return gemm_tile_rule.make_tile(*shape, itemsize=a.itemsize, rate=rate, device=device, threads=_THREADS)
    return gemm_tile_rule.choose(
        "gemm", mean, groups, itemsize=a.itemsize, out_itemsize=d.itemsize, rate=rate, device=device
    )


def _bytes_of_groups(groups: int) -> int:
    """Return the bytes of three pointers, three strides and three sizes of each group."""
    return 3 * 8 * (groups + groups % 2) + groups * 3 * (8 + 4)


def _preparation(ends: Operand, prepared: Operand, groups: int) -> Kernel:
    """One thread per group writes where its matrices are and how large."""
    sketch = Sketch(1)
    sketch.whole(ends, READ)
    sketch.whole(prepared, WRITE)
    return sketch.kernel("prepare_grouped_gemm_data", threads=groups)


def _items(ranges: dict[str, tuple[I64, I64]], tile: gemm_tile_rule.Tile) -> _Items:
    """Return the tiles of all groups; an empty group has none, except along k, where its results are zeros."""
    (m0, m1), (n0, n1), (k0, k1) = ranges["m"], ranges["n"], ranges["k"]
    grids = [raster(x, y, 1) for x, y in zip(-(-(m1 - m0) // tile.m), -(-(n1 - n0) // tile.n), strict=True)]
    group = np.repeat(np.arange(len(grids)), [len(g) for g in grids])
    at = np.concatenate(grids).astype(np.int64)
    low_m, low_n = m0[group] + at[:, 0] * tile.m, n0[group] + at[:, 1] * tile.n
    return _Items(
        group,
        (low_m, np.minimum(low_m + tile.m, m1[group])),
        (low_n, np.minimum(low_n + tile.n, n1[group])),
        (k0[group], k1[group]),
    )


def _boxes(call: Call, items: _Items, tile: gemm_tile_rule.Tile, groups: Operand) -> Boxes:
    a, b, d = call["self"], call["mat2"], call.outputs[0]
    items_count = len(items.group)
    depth = items.k[1] - items.k[0]
    iterations = -(-depth // tile.k)
    chunks = chunks_for(max(items_count, 1))
    row, chunk = (i.ravel() for i in np.indices((items_count, chunks)))
    edge = [np.minimum((chunk + i) * iterations[row] // chunks * tile.k, depth[row]) for i in (0, 1)]
    along = items.k[0][row] + edge[0], items.k[0][row] + edge[1]
    loop_bytes = (tile.m + tile.n) * depth * a.itemsize
    share = loop_bytes / (loop_bytes + tile.m * tile.n * d.itemsize)
    life = {f: share[row] * (chunk + i) / chunks for i, f in enumerate(("first", "last"))}
    rows, columns = (tuple(edge[row] for edge in side) for side in (items.m, items.n))
    own = np.arange(items_count)
    parts = [
        _rectangles(a, 0, READ, row, items.group[row], rows, along, **life),
        _rectangles(b, 1, READ, row, items.group[row], along, columns, **life),
        _rectangles(d, 2, WRITE, own, items.group, items.m, items.n, first=share, last=1.0),
        regions.whole(groups, 3, READ, own, first=0.0, last=0.0),
    ]
    if call["bias"] is not None:
        bias = call["bias"]
        start, stop = np.column_stack([items.group, items.n[0]]), np.column_stack([items.group + 1, items.n[1]])
        parts.append(regions.boxes(bias, 4, READ, own, start, stop, first=share, last=1.0))
    return Boxes.concat(parts)


def _rectangles(
    operand: Operand,
    slot: int,
    mode: int,
    tile: I64,
    group: I64,
    rows: tuple[I64, ...],
    columns: tuple[I64, ...],
    **life: Any,
) -> Boxes:
    """Return rectangles of a matrix, or of the group's own matrix where the operand has three dimensions."""
    lead = [(group, group + 1)] if len(operand.shape) == 3 else []
    start, stop = (np.column_stack([side[i] for side in (*lead, rows, columns)]) for i in (0, 1))
    return regions.boxes(operand, slot, mode, tile, start, stop, **life)
