"""Durations of PyTorch's own kernels, from launches that were measured on the GPU.

`tests/gpu/harvest/operator_table.py` runs the harvested calls through the model recorder, and pairs the kernels that it
models with those that the GPU launched. An entry says what a modelled kernel does, in `FEATURES`, and how long the GPU
took. A launch gets the time of the four entries that are most like it, of a kernel of the same name, or else of the
same kind (`vectorized_elementwise<exp>` and `vectorized_elementwise<mul>`): in units of a roofline, weighed by
1 / distance squared. Entries of recorded programs count as nearer than harvested ones: other kernels had run in
between, and indices and masks were those of a program. What has no entry of its kind keeps the time of the roofline,
and so has what lies far from all entries. `tests/benchmarks/model_recorder/bench_operator_times.py` tests this with
each entry left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from tileprof.record.model import tables
from tileprof.record.model.tile_model import Scratch
from tileprof.trace.sources import TimeSource

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tileprof.devices import Device
    from tileprof.record.model.tables import Table
    from tileprof.record.model.tile_model import Kernel

FAMILY: Final = "operators"
FEATURES: Final = ("tiles", "threads", "distinct", "touched", "run", "flops", "narrow", "wide")
"""In sixteenths of a power of two: tiles, threads of a block, distinct bytes, bytes that tiles touch, bytes of a run
that a tile touches without a gap, FLOPs, sizes of the smallest and of the largest element.
"""
STEPS: Final = 16
_WEIGHTS: Final = np.array([1.0, 0.5, 1.0, 0.5, 0.5, 0.25, 1.0, 1.0])
TIME_SCALE: Final = 1000.0
"""Units per logarithm of nanoseconds, as entries hold them."""
_NEAREST, _NEAR, _FAR, _OTHER_NAME, _HARVESTED = 4, 0.1, 12.0, 1.0, 0.5
"""How many entries give a time; what keeps weights finite; beyond which distance no entry says anything; how far away a
kernel of another name is, and an entry of the harvest.
"""
_START_NS, _BYTES_PER_NS, _FLOPS_PER_NS, _TILE_BYTES_PER_NS = 1000.0, 3500.0, 300e3, 64.0
"""The unit in which times are compared: a start, and distinct bytes, FLOPs, or the bytes of one tile, at rates that
kernels reach on an H200. Few tiles with much to do each are as slow as one of them.
"""


def features(kernel: Kernel, touched: float, distinct: float) -> tuple[int, ...]:
    """Return the `FEATURES` of a kernel whose tiles touch ``touched`` bytes, ``distinct`` of them different ones."""
    boxes = kernel.footprint.boxes
    seamless = (boxes.count_0 > 1) & (boxes.stride_0 == boxes.length)
    runs = np.where(seamless, 1, boxes.count_0).astype(np.float64) * boxes.count_1
    volume = boxes.length * boxes.count_0.astype(np.float64) * boxes.count_1
    sizes = [o.itemsize for o in kernel.operands if not isinstance(o, Scratch)] or [1]
    numbers = (
        kernel.footprint.tiles, int(np.prod(kernel.block)), distinct, touched,
        volume.sum() / max(runs.sum(), 1.0), kernel.flops, min(sizes), max(sizes),
    )  # fmt: skip
    return tuple(round(STEPS * float(np.log2(max(n, 1.0)))) for n in numbers)


def kind(name: str) -> str:
    """Return what kernels of one kind have in common: the name without what it computes."""
    return name.partition("<")[0]


def time_ns(
    device: Device, name: str, of: tuple[int, ...], *, without: int | None = None
) -> tuple[float, TimeSource] | None:
    """Return the time of a kernel with these `FEATURES`; None where nothing like it was measured on the GPU."""
    table = tables.table(FAMILY, device)
    return None if table is None else looked_up(table, name, of, without=without)


def looked_up(
    table: Table, name: str, of: tuple[int, ...], *, without: int | None = None
) -> tuple[float, TimeSource] | None:
    """Return the same of a table; the entry ``without`` is left out."""
    rows, own = _likes(table, name)
    if without is not None:
        own, rows = own[rows != without], rows[rows != without]
    if not len(rows):
        return None
    keys = table.keys[rows, 1:]
    apart = (np.abs(keys - of) * _WEIGHTS).sum(axis=1) / STEPS + np.where(own, 0.0, _OTHER_NAME)
    if not apart.all():  # several cases may look alike
        logarithm = float(np.median(table.columns["time"][rows[apart == 0.0]])) / TIME_SCALE
        return float(np.exp(logarithm)), TimeSource.CALIBRATED
    apart += np.where(table.columns["in_program"][rows], 0.0, _HARVESTED)
    chosen = np.argpartition(apart, min(_NEAREST, len(rows)) - 1)[:_NEAREST]
    if apart[chosen].min() > _FAR:
        return None
    weight = (apart[chosen] + _NEAR) ** -2.0
    ratio = table.columns["time"][rows[chosen]] / TIME_SCALE - np.log(_unit_ns(keys[chosen]))
    own_unit = _unit_ns(np.array([of]))[0]
    return float(own_unit * np.exp((ratio * weight).sum() / weight.sum())), TimeSource.INTERPOLATED


def _unit_ns(keys: NDArray[np.int64]) -> NDArray[np.float64]:
    tiles, distinct, touched, flops = (
        2.0 ** (keys[:, FEATURES.index(name)] / STEPS) for name in ("tiles", "distinct", "touched", "flops")
    )
    work = distinct / _BYTES_PER_NS, flops / _FLOPS_PER_NS, touched / tiles / _TILE_BYTES_PER_NS
    return np.asarray(_START_NS + np.maximum.reduce(work))


def _likes(table: Table, name: str) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the entries of kernels of this kind, and which of them have this very name."""
    key = ("likes", name)
    if key not in table.derived:
        names = table.columns["name"].tolist()
        alike = [number for number, other in enumerate(names) if kind(other) == kind(name)]
        rows = np.flatnonzero(np.isin(table.keys[:, 0], alike))
        same = names.index(name) if name in names else -1
        table.derived[key] = rows, table.keys[rows, 0] == same
    likes: tuple[NDArray[np.int64], NDArray[np.bool_]] = table.derived[key]
    return likes
