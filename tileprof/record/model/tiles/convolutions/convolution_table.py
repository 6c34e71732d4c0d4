"""Finds the launches of a convolution on a GPU that was measured: the entry of the table, or the nearest one.

A key is a case of `convolution_key`; an entry is the launches of the call in order, without the
addition of a bias. The table's columns are ::

    sequence        [entries]            which list of kernels an entry launches
    first           [sequences + 1]      where a list begins in ``kernel``
    kernel          [kernels of lists]   rows of the columns below
    grid            [launches, 3]        of all entries' launches, entry by entry
    time            [launches]           100 * ln(ns), 0 of entries that were not timed
    slices          [entries]            of k, of the kernel that computes
    engine          [entries]            place in ``engines``: what `cudnn_engines` says of the call
    engines         [engines] text
    name            [kernels] text
    shape           [kernels, 8]         block x, y, z, cluster x, y, z, registers, bytes of shared memory

The nearest entry is one of the same pass, layout, class of type and kind of layer; among those logarithms of sizes
count, and what the libraries' choices hang on: alignment of channels, taps, stride, padding, dilation. The weights are
those with which most entries of the table predict one another (``tests/gpu/harvest/convolution_table.py``).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from tileprof.record.model import tables
from tileprof.record.model.tiles.convolutions import (
    convolution_trees,
    cudnn_engines,
    fitting_entries,
    launch_grids,
    measured_times,
)
from tileprof.record.model.tiles.convolutions.convolution_key import Dtype, Layout, Pass, result_sizes
from tileprof.record.model.tiles.convolutions.library_kernels import MAINS, parse_name
from tileprof.record.model.tiles.convolutions.measured_times import TRAITS, scaled_ns, traits
from tileprof.record.model.tiles.convolutions.parts import by_group
from tileprof.record.model.tiles.convolutions.problem import MeasuredLaunch
from tileprof.record.model.tiles.products import gemm_kernel_choice
from tileprof.record.model.tiles.products import problem as products
from tileprof.trace.sources import ShapeSource

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tileprof.devices import Device
    from tileprof.record.model.tables import Table

FAMILY: Final = "convolutions"
RANKER: Final = "convolution-ranker"
_PRODUCT_TYPES: Final[dict[int, int]] = {
    Dtype.TF32: products.TF32, Dtype.FP32: products.FP32, Dtype.FP16: products.FP16, Dtype.BF16: products.BF16
}  # fmt: skip
TIME_SCALE: Final = 100.0
_GROUPS: Final = 5
"""The column of a key."""
_HALVES: Final = 2
"""Types from here on have 16 bits (`Dtype` of the cases)."""
_SIZE_WEIGHTS: Final = np.array([1.0, 1.0, 1.5, 0.18, 0.27, 0.12, 1.25, 0.11, 0.3])
"""Results in all, channels in and out of a group, images, groups, results of an image, taps; how far channels of a
group, in and out, are divisible by 64."""
_SAME_WEIGHTS: Final = np.array([1.28, 2.0, 0.45, 0.7, 2.0, 1.92, 0.5, 0.5, 1.12, 4.38, 1.0, 0.32])
"""The cost of each difference between entries: alignment of channels in and out, height and width of window and stride,
padding or none, dilation, one dimension or two, type.
"""
_POWERS: Final = (16, 32, 64)
_FARTHEST: Final = 16.0
_TIMED, _NEAR = 4, 0.2
"""How many entries give a time, and what keeps their weights finite."""
_MOST_TIMED: Final = 256
_SIDE_SHARE, _LEAST_NS = 0.2, 900.0
"""The time of a copy or fill, where nothing tells it, in parts of that of the kernel that computes; of any launch."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A table's answer for a call: its launches, how it knows them, and whether their times are of this very call."""

    launches: tuple[MeasuredLaunch, ...]
    source: ShapeSource
    timed: bool = False


def entry(key: tuple[int, ...], device: Device) -> Entry | None:
    """Return the launches of a call; None where this GPU was not measured, or nothing is like the call."""
    table = tables.table(FAMILY, device)
    if table is None:
        return None
    entries: dict[tuple[int, ...], Entry | None] = table.derived.setdefault("entries", {})
    if key not in entries:
        entries[key] = entry_of(table, key, device, trees=tables.table(RANKER, device))
    return entries[key]


def entry_of(
    table: Table,
    key: tuple[int, ...],
    device: Device,
    *,
    trees: Table | None = None,
    without: NDArray[np.bool_] | None = None,
) -> Entry | None:
    """Return the same from a table; ``without`` says which entries are left out, as leave-one-out tests ask for.
    Without ``trees`` the nearest entry counts.
    """
    row = table.row(key)
    if row is not None and without is None:
        if _is_timed(table)[row]:
            return Entry(launches_of(table, row), ShapeSource.TABLE, timed=True)
        near, apart = nearest(key, table, convolution_trees.COMPARED)
        return _like(table, near, convolution_trees.alike(table, near, row), key, ShapeSource.TABLE, None)
    fitting = fitting_entries.fitting(table, key)
    if fitting.any():
        without = ~fitting if without is None else ~fitting | without
    if trees is None:
        near, apart = nearest(key, table, convolution_trees.COMPARED, without=without)
        if not len(near) or apart[0] > _FARTHEST:
            return None
        same, source = convolution_trees.alike(table, near, near[0]), ShapeSource.NEIGHBOUR
        return _like(table, near, same, key, source, without)
    engine = engine_of(table, key)
    near_entries = candidates(table, key, device, engine, without=without)
    if near_entries is None or near_entries.apart[0] > _FARTHEST:
        return None
    best = convolution_trees.best(near_entries, trees, convolution_trees.group_of(key, engine=engine is not None))
    same = convolution_trees.alike(table, near_entries.near, near_entries.entries[best])
    source = ShapeSource.LEARNED if engine is None else ShapeSource.HEURISTIC
    return _like(table, near_entries.near, same, key, source, without)


def candidates(
    table: Table,
    key: tuple[int, ...],
    device: Device,
    engine: int | None,
    *,
    without: NDArray[np.bool_] | None = None,
) -> convolution_trees.Candidates | None:
    """Return what near entries offer, with those of cuDNN's engine and of the product that cuBLAS would launch; None
    where nothing is like the call.
    """
    near, apart = nearest(key, table, convolution_trees.COMPARED, without=without)
    if not len(near):
        return None
    product = product_choice(key, device)
    if product is not None:
        near, apart = _with(key, table, convolution_trees.of_product(table, product), near, apart, without)
    if engine is not None:
        near, apart = _with(key, table, table.columns["engine"] == engine, near, apart, without)
    return convolution_trees.candidates(key, table, near, apart, product, engine)


def product_choice(key: tuple[int, ...], device: Device) -> convolution_trees.Product | None:
    """Return what the table of products has for a call that is a product; None for other calls."""
    problem = as_product(key)
    table = tables.table("products", device) if problem is not None else None
    choice = gemm_kernel_choice.measured(problem, table, device) if problem is not None and table is not None else None
    if choice is None:
        return None
    tile = choice.tile
    certain = {ShapeSource.TABLE: 2, ShapeSource.HEURISTIC: 1}.get(choice.source, 0)
    return convolution_trees.Product(tile.n, tile.m, tile.cluster[1], tile.cluster[0], tile.split, certain)


def as_product(key: tuple[int, ...]) -> products.Problem | None:
    """Return the product that a window of one tap is, as PyTorch would be asked for it; None for other calls."""
    if not convolution_trees.is_plain(np.array([key], np.int64))[0]:
        return None
    what, dtype, layout = key[:3]
    images, inside, outside = key[6:9]
    pixels = int(np.prod(key[9:12]))
    if layout == Layout.CHANNELS_LAST or pixels == 1:
        images, pixels, last = 1, images * pixels, True
    else:
        last = False
    column_a, column_b, m, n, k = {
        (Pass.FORWARD, False): (0, 0, outside, pixels, inside),
        (Pass.FORWARD, True): (0, 1, pixels, outside, inside),
        (Pass.INPUT_GRADIENT, False): (1, 0, inside, pixels, outside),
        (Pass.INPUT_GRADIENT, True): (0, 0, pixels, inside, outside),
        (Pass.WEIGHT_GRADIENT, False): (0, 1, outside, inside, pixels),
        (Pass.WEIGHT_GRADIENT, True): (1, 0, outside, inside, pixels),
    }[Pass(what), last]
    op = products.PLAIN if images == 1 else products.BATCHES
    return products.Problem(op, _PRODUCT_TYPES[dtype], column_a, column_b, images, m, n, k)


def engine_of(table: Table, key: tuple[int, ...]) -> int | None:
    """Return the place in ``engines`` of the engine that cuDNN chooses, -1 if no entry has it; None where cuDNN is not
    installed.
    """
    if "engines" not in table.columns or not (name := cudnn_engines.engine(key, table.about)):
        return None
    if "engines" not in table.derived:
        table.derived["engines"] = {engine: place for place, engine in enumerate(table.columns["engines"].tolist())}
    place: int = table.derived["engines"].get(name, -1)
    return place


def _with(
    key: tuple[int, ...],
    table: Table,
    required: NDArray[np.bool_],
    near: NDArray[np.int64],
    apart: NDArray[np.float64],
    without: NDArray[np.bool_] | None,
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return near entries, and the nearest ones of those that are required besides."""
    others = ~required if without is None else ~required | without
    same, so_far = nearest(key, table, convolution_trees.COMPARED, without=others)
    more = ~np.isin(same, near)
    near, apart = np.concatenate([near, same[more]]), np.concatenate([apart, so_far[more]])
    order = np.argsort(apart, kind="stable")
    return near[order], apart[order]


def nearest(
    key: tuple[int, ...], table: Table, count: int, *, without: NDArray[np.bool_] | None = None
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the nearest entries and how far they are, nearest first, except for those that ``without`` leaves out."""
    sizes, same, group = (part[0] for part in _features(np.array([key], np.int64)))
    columns = _columns(table)
    rows = columns.groups.get(tuple(group.tolist()), np.empty(0, np.int64))
    if without is not None:
        rows = rows[~without[rows]]
    apart = np.abs(columns.sizes[rows] - sizes) @ _SIZE_WEIGHTS + (columns.same[rows] != same) @ _SAME_WEIGHTS
    order = np.argsort(apart, kind="stable")[:count]
    return rows[order], apart[order]


def _like(
    table: Table,
    near: NDArray[np.int64],
    same: NDArray[np.int64],
    key: tuple[int, ...],
    source: ShapeSource,
    without: NDArray[np.bool_] | None,
) -> Entry:
    """Return the launches of the entries ``near[same]``, which have the same kernels, as a call makes them: grids of
    one entry, the first of the call's type if there is one, and times of the nearest timed ones, weighed by how near
    they are.
    """
    rows = near[same]
    typed = rows[table.keys[rows, 1] == key[1]]
    row = int(typed[0] if len(typed) else rows[0])
    own, measured = launches_of(table, row), tuple(table.keys[row].tolist())
    turn = by_group.turns(own, measured[_GROUPS])
    if turn:
        group, measured_group = by_group.key_of_group(key), by_group.key_of_group(measured)
        grids = launch_grids.carried(own[:turn], measured_group, group) * measured[_GROUPS]
    else:
        grids = launch_grids.carried(own, measured, key)
    times = _times(table, near, row, grids, key, without)
    if turn:
        groups = key[_GROUPS]
        own, grids, times = own[:turn] * groups, grids[:turn] * groups, times[:turn] * groups
    launches = (
        launch._replace(name=_name_for_type(table, launch.name, key[1]), grid=grid, ns=ns)
        for launch, grid, ns in zip(own, grids, times, strict=True)
    )
    return Entry(tuple(launches), source)


def _times(
    table: Table,
    near: NDArray[np.int64],
    row: int,
    grids: Sequence[tuple[int, int, int]],
    key: tuple[int, ...],
    without: NDArray[np.bool_] | None,
) -> list[float]:
    """Return times for the launches of the entry ``row`` in a call with these grids: from timed entries of the same
    kernels, or else the near calls' time, most of it for what computes.
    """
    own = launches_of(table, row)
    computes = [parse_name(one.name).role in MAINS for one in own]
    main = max((number for number, one in enumerate(computes) if one), default=len(own) - 1)
    rows, entry_traits = _timed_alike(table, row, main)
    if without is not None:
        rows, entry_traits = rows[~without[rows]], entry_traits[~without[rows]]
    if len(rows):
        far = measured_times.apart(entry_traits, traits(key, own[main], grids[main]))
        chosen = np.argsort(far, kind="stable")[:_TIMED]
        weight = (far[chosen] + _NEAR) ** -2.0
        logarithms = [
            [
                np.log(scaled_ns(one, grid, key, tuple(table.keys[some].tolist())))
                for one, grid in zip(launches_of(table, some), grids, strict=True)
            ]
            for some in rows[chosen].tolist()
        ]
        times: list[float] = np.exp(weight @ np.array(logarithms) / weight.sum()).tolist()
        return times
    total = np.median([_carried_ns(table, some, key) for some in near[_is_timed(table)[near]][:_TIMED].tolist()] or [0])
    shares = np.where(computes, 1.0, _SIDE_SHARE)
    spread: list[float] = np.maximum(shares / shares.sum() * total, _LEAST_NS).tolist()
    return spread


def _carried_ns(table: Table, row: int, key: tuple[int, ...]) -> float:
    """Return the time of all launches of an entry, carried over to a call."""
    launches, measured = launches_of(table, row), tuple(table.keys[row].tolist())
    grids = launch_grids.carried(launches, measured, key)
    return sum(scaled_ns(one, grid, key, measured) for one, grid in zip(launches, grids, strict=True))


def _timed_alike(table: Table, row: int, main: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return timed entries of the same kernels, a few hundred at most, and the traits of their launch ``main``."""
    alike, sequence = convolution_trees.lists(table).alike, table.columns["sequence"]
    what = ("timed alike", int(alike[sequence[row]]))
    if what not in table.derived:
        rows = np.flatnonzero(_is_timed(table) & (alike[sequence] == what[1]))
        if len(rows) > _MOST_TIMED:
            rows = np.sort(np.random.default_rng(0).choice(rows, _MOST_TIMED, replace=False))
        far = np.empty((len(rows), TRAITS))
        for number, some in enumerate(rows.tolist()):
            one = launches_of(table, some)[main]
            far[number] = traits(tuple(table.keys[some].tolist()), one, one.grid)
        table.derived[what] = rows, far
    rows_and_traits: tuple[NDArray[np.int64], NDArray[np.float64]] = table.derived[what]
    return rows_and_traits


def _is_timed(table: Table) -> NDArray[np.bool_]:
    """Return which entries were timed."""
    if "timed" not in table.derived:
        begin = _columns(table).begin
        table.derived["timed"] = np.maximum.reduceat(table.columns["time"], begin[:-1]) > 0
    timed: NDArray[np.bool_] = table.derived["timed"]
    return timed


def _name_for_type(table: Table, name: str, dtype: int) -> str:
    """Return the name of the same kernel for another type of 16 bits, where the table has one."""
    if "typed" not in table.derived:
        names = table.columns["name"].tolist()
        table.derived["typed"] = {(convolution_trees.kind(one), _is_bfloat(one)): one for one in names}
    if dtype < _HALVES or convolution_trees.kind(name) == name:
        return name
    typed: str = table.derived["typed"].get((convolution_trees.kind(name), dtype == Dtype.BF16), name)
    return typed


def _is_bfloat(name: str) -> bool:
    return re.search(r"bf16|bfloat16|BFloat16|nvjet_sm\d+_tst", name) is not None


@dataclass(frozen=True, slots=True)
class _Columns:
    """The columns that the distance looks at, of all entries, and where an entry's launches begin."""

    sizes: NDArray[np.float64]
    same: NDArray[np.int64]
    groups: dict[tuple[int, ...], NDArray[np.int64]]
    begin: NDArray[np.int64]


_COLUMNS_OF: dict[int, tuple[Table, _Columns]] = {}
"""Columns by identity of the table, which is kept alive here."""


def _columns(table: Table) -> _Columns:
    if id(table) not in _COLUMNS_OF:
        sizes, same, group = _features(table.keys)
        order = np.lexsort(group.T)
        ends = np.flatnonzero(np.r_[(group[order][1:] != group[order][:-1]).any(axis=1), True]) + 1
        groups = {
            tuple(group[order[low]].tolist()): np.sort(order[low:high])
            for low, high in zip(np.r_[0, ends[:-1]].tolist(), ends.tolist(), strict=True)
        }
        first = table.columns["first"].astype(np.int64)
        launches = np.diff(first)[table.columns["sequence"]]
        _COLUMNS_OF[id(table)] = table, _Columns(sizes, same, groups, np.r_[0, np.cumsum(launches)])
    return _COLUMNS_OF[id(table)][1]


def launches_of(table: Table, row: int) -> tuple[MeasuredLaunch, ...]:
    """Return the launches of an entry; ``ns`` is 0 where they were not timed."""
    begin = _columns(table).begin
    first, sequence = table.columns["first"], int(table.columns["sequence"][row])
    kernels = table.columns["kernel"][int(first[sequence]) : int(first[sequence + 1])].tolist()
    names, shapes = table.columns["name"], table.columns["shape"]
    some = slice(int(begin[row]), int(begin[row + 1]))
    grids, times = table.columns["grid"][some].tolist(), table.columns["time"][some].tolist()
    launches = []
    for kernel, grid, time in zip(kernels, grids, times, strict=True):
        x, y, z, *cluster, registers, shared = shapes[kernel].tolist()
        launches.append(
            MeasuredLaunch(
                str(names[kernel]), tuple(grid), (x, y, z), tuple(cluster), registers, shared,
                float(np.exp(time / TIME_SCALE)) if time else 0.0,
            )
        )  # fmt: skip
    return tuple(launches)


def _features(keys: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
    """Return logarithms of sizes, what is alike or not, and what must be the same, each ``[keys, ...]``."""
    what, dtype, layout, rank, transposed, groups, images, inside, outside = keys[:, :9].T
    size, taps, stride, padding, dilation = (keys[:, i : i + 3] for i in range(9, 24, 3))
    results = result_sizes(keys[:, 3:]).prod(1)
    each_in, each_out = inside // groups, outside // groups
    sizes = np.column_stack([images * results, each_in, each_out, images, groups, results, taps.prod(1)])
    same = np.column_stack(
        [
            convolution_trees.aligned(keys), taps[:, 1:], stride[:, 1:], padding[:, 1:] > 0, dilation[:, 1:],
            size[:, 1] == 1, dtype,
        ]
    )  # fmt: skip
    kind = np.where(groups == 1, 0, np.where(each_in == 1, 1, 2))
    plain = (taps.prod(1) == 1) & (stride.prod(1) == 1) & (padding.sum(1) == 0)
    group = np.column_stack([what, np.minimum(dtype, _HALVES), layout, rank, transposed, kind, plain])
    wide = [sum((channels % power == 0).astype(float) for power in _POWERS) for channels in (each_in, each_out)]
    logarithms = np.column_stack([np.log2(np.maximum(sizes, 1).astype(float)), *wide])
    return logarithms, same.astype(np.int64), group.astype(np.int64)
