"""Models of operators that find where something is true: nonzero, masked selection, masks among indices.

Source: PyTorch's Nonzero.cu and CUB, launches and grids as harvested on an H200 (PyTorch 2.11,
`tileprof.harvest.operators`): a count (``DeviceReduce``), its copy to the host, then one pass (``DeviceSelect``) whose
blocks take 4224 elements and write behind what the blocks before them have found; with more than one dimension another
launch turns places into coordinates. What was found is taken from the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tileprof.arrays import I64
from tileprof.devices import Device
from tileprof.record.model.tile_model import Call, Kernel, Operand, models
from tileprof.record.model.tiles.elementwise.pointwise import elementwise, number_out
from tileprof.record.model.tiles.foundations.index_values import positions, recorded_values, without_values
from tileprof.record.model.tiles.foundations.sketch import (
    ATOMIC,
    READ,
    WRITE,
    Sketch,
    Span,
    blocks,
    ranges,
    rate_of,
    scratch,
    select,
)
from tileprof.record.model.tiles.reductions.look_back import LOOK_BACK, look_back
from tileprof.record.model.tiles.reductions.reduce import reduction

CHUNK = 2048
COUNTED = 512
"""Elements and threads of a block that counts into bins."""
SELECT_CHUNK, COUNT_CHUNK = 4224, 4096
"""Elements of a block of 384 threads that selects, and of one of 256 that counts."""
_COUNT, _STAGING, _STATES = 21, 22, 25
"""Scratch slots of the count, of its reduction, and of what blocks tell later ones; masks take those from 30 on for
their positions.
"""


@models("aten::nonzero", data_dependent=True)
def nonzero(call: Call, _device: Device) -> list[Kernel]:
    """Coordinates of all true elements, one row per element."""
    source, out = call["self"], call.outputs[0]
    columns = [select(out, 1, d) for d in range(out.shape[1])]
    return positions_of(source, recorded_values(call, source), columns)


@models("aten::masked_select", data_dependent=True)
def masked_select(call: Call, _device: Device) -> list[Kernel]:
    """The elements under the mask, in order: their positions as for `nonzero`, then 512 of them per block."""
    source, mask, out = call["self"], call["mask"], call.outputs[0]
    if source.shape != mask.shape or out.numel == 0:
        shape = np.broadcast_shapes(source.shape, mask.shape)
        whole = Sketch(max(blocks(int(np.prod(shape)), CHUNK), 1))
        for operand, mode in ((source, READ), (mask, READ), (out, WRITE)):
            if operand.numel:
                whole.whole(operand, mode)
        note = "the mask is broadcast: every tile touches everything"
        return [whole.kernel("masked_select", threads=256, coverage="conservative", note=note)]
    kernels, places = mask_positions(call, mask, 0)
    values = recorded_values(call, mask)
    sketch = Sketch(blocks(out.numel, 512))
    tile, lo, hi = ranges(out.numel, 512)
    for place in places:
        sketch.span(place, READ, tile, Span((0,), lo, hi))
    uncertainty: dict[str, Any] = {}
    if values is None:
        sketch.whole(source, READ)
        uncertainty = without_values("every tile takes the whole indexed operand")
    else:
        at = positions(source)[np.flatnonzero(np.asarray(values).ravel())]
        sketch.elements(source, READ, np.repeat(tile, hi - lo), at)
    sketch.span(out, WRITE, tile, Span((0,), lo, hi))
    return [*kernels, sketch.kernel("index<masked_select>", threads=128, **uncertainty)]


def positions_of(mask: Operand, values: Any, columns: Sequence[Operand]) -> list[Kernel]:
    """The count, then the pass that writes a number into each of ``columns`` for every true element.

    ``values`` is the mask's content (None: unknown).
    """
    rank = len(mask.shape)
    count = scratch(_COUNT, 1)
    kernels = [*_count_kernels(mask, count), number_out(count)]
    sketch = Sketch(blocks(mask.numel, SELECT_CHUNK))
    states = scratch(_STATES, sketch.tiles + 32, itemsize=8)
    init = Sketch(max(blocks(sketch.tiles, 128), 1))
    tile, lo, hi = ranges(sketch.tiles + 32, 128, init.tiles)
    init.span(states, WRITE, tile, Span((0,), lo, hi))
    init.whole(count, WRITE, [0])
    kernels.append(init.kernel("compact_init", threads=128))
    if mask.numel == 0:
        return kernels
    tile, lo, hi = ranges(mask.numel, SELECT_CHUNK)
    sketch.span(mask, READ, tile, Span(tuple(range(rank)), lo, hi))
    if sketch.tiles > 1:
        sketch.whole(states, ATOMIC)
    look_back(sketch, [mask], tile, lo)
    sketch.whole(count, WRITE, [sketch.tiles - 1])
    written = [c for c in columns[:1] if c.numel]
    uncertainty: dict[str, Any]
    if values is None:
        for column in written:
            sketch.whole(column, WRITE)
        uncertainty = without_values("every tile writes all positions")
    else:
        begin, end = _output_range(values, lo, hi)
        for column in written:
            sketch.span(column, WRITE, tile, Span((0,), begin, end))
        uncertainty = {"note": LOOK_BACK if sketch.tiles > 1 else ""}
    kernels.append(sketch.kernel("select", threads=384, flops=mask.numel, rate=rate_of(mask), **uncertainty))
    if written and len(columns) > 1:
        kernels.append(_coordinates(columns))
    return kernels


def _count_kernels(mask: Operand, count: Operand) -> list[Kernel]:
    """CUB's sum: a block up to 4096 elements; else one per 4096, and one that adds up what they have."""
    every = tuple(range(len(mask.shape)))
    if not mask.numel:
        empty_sum = Sketch(1)
        empty_sum.whole(count, WRITE)
        return [empty_sum.kernel("reduce<count_nonzero>", threads=256)]
    parts = blocks(mask.numel, COUNT_CHUNK)
    tile, lo, hi = ranges(mask.numel, COUNT_CHUNK)
    target = count if parts == 1 else scratch(_STAGING, parts)
    sums = Sketch(parts)
    sums.span(mask, READ, tile, Span(every, lo, hi))
    sums.span(target, WRITE, tile, Span((0,), tile, tile + 1))
    kernels = [sums.kernel("reduce<count_nonzero>", threads=256, flops=mask.numel)]
    if parts > 1:
        last = Sketch(1)
        last.whole(target, READ)
        last.whole(count, WRITE)
        kernels.append(last.kernel("reduce<count_nonzero>", threads=256, flops=parts))
    return kernels


def _coordinates(columns: Sequence[Operand]) -> Kernel:
    """A thread turns a place into the coordinates of its dimensions."""
    count = columns[0].numel
    sketch = Sketch(blocks(count, 256))
    tile, lo, hi = ranges(count, 256)
    sketch.span(columns[0], READ, tile, Span((0,), lo, hi))
    for column in columns:
        sketch.span(column, WRITE, tile, Span((0,), lo, hi))
    return sketch.kernel("write_indices", threads=256, flops=count * len(columns))


def _output_range(values: Any, lo: I64, hi: I64) -> tuple[I64, I64]:
    before = np.concatenate([[0], np.cumsum(np.asarray(values).ravel() != 0)])
    return before[lo], before[hi]


def mask_positions(call: Call, mask: Operand, slot: int) -> tuple[list[Kernel], list[Operand]]:
    """Launches that turn a mask into positions, and the workspace lists that hold them, one per dimension of
    the mask.
    """
    values = recorded_values(call, mask)
    count = mask.numel if values is None else int(np.count_nonzero(values))
    places = scratch(30 + slot, len(mask.shape), max(count, 1), itemsize=8)
    lists: list[Operand] = [select(places, 0, d) for d in range(len(mask.shape))]
    return positions_of(mask, values, lists if count else []), lists


@models("aten::histc", "aten::bincount")
def histogram(call: Call, device: Device) -> list[Kernel]:
    """Zeros, then blocks that count their elements in shared memory and add all bins to the result.

    ``histc`` without limits looks for the smallest and largest element first.
    """
    source, out = call["self"], call.outputs[0]
    if out.numel == 0 or source.numel == 0:
        return []
    kernels = []
    if call.arguments.get("min") == call.arguments.get("max"):
        limits = [scratch(slot) for slot in (_COUNT, _COUNT + 2)]
        kernels += reduction("aminmax", source, limits, range(len(source.shape)), device, staging=_STAGING)
    sketch = Sketch(blocks(source.numel, COUNTED))
    tile, lo, hi = ranges(source.numel, COUNTED)
    for operand in (source, call.arguments.get("weights")):
        if operand is not None:
            sketch.span(operand, READ, tile, Span(tuple(range(len(operand.shape))), lo, hi))
    for limit in limits if kernels else []:
        sketch.whole(limit, READ)
    sketch.whole(out, ATOMIC)
    name = call.op.removeprefix("aten::").split(".")[0]
    return [
        *elementwise("zero_", [], [out], flops_each=0),
        *kernels,
        sketch.kernel(f"histogram<{name}>", threads=COUNTED, flops=source.numel, shared_bytes=4 * out.numel),
    ]


@models("aten::repeat_interleave", data_dependent=True)
def repeat_interleave(call: Call, _device: Device) -> list[Kernel]:
    """Each number as often as ``repeats`` says: a running sum, then one warp per number; 16 of them per block."""
    repeats, out = call["repeats"], call.outputs[0]
    if out.numel == 0:
        return []
    ends = scratch(_COUNT, repeats.numel, itemsize=8)
    scan = Sketch(blocks(repeats.numel, CHUNK))
    tile, lo, hi = ranges(repeats.numel, CHUNK)
    for operand, mode in ((repeats, READ), (ends, WRITE)):
        scan.span(operand, mode, tile, Span((0,), lo, hi))
    look_back(scan, [repeats], tile, lo)
    kernels = [scan.kernel("scan<cumsum>", threads=128, flops=repeats.numel, note=LOOK_BACK if len(tile) > 1 else "")]
    sketch = Sketch(blocks(repeats.numel, 16))
    tile, lo, hi = ranges(repeats.numel, 16)
    for operand in (repeats, ends):
        sketch.span(operand, READ, tile, Span((0,), lo, hi))
    values = recorded_values(call, repeats)
    if values is None:
        sketch.whole(out, WRITE)
        return [
            *kernels,
            sketch.kernel("repeat_interleave", threads=512, **without_values("every tile writes everything")),
        ]
    before = np.concatenate([[0], np.cumsum(values)])
    sketch.span(out, WRITE, tile, Span((0,), before[lo], before[hi]))
    return [*kernels, sketch.kernel("repeat_interleave", threads=512)]
