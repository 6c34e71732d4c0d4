"""Models of operators that find where something is true: nonzero, masked selection, masks among indices.

Source: PyTorch's Nonzero.cu (from memory, not checked against a version): a count that the host waits for, then one
pass (cub's ``DeviceSelect``) whose blocks take 2048 elements and write behind what the blocks before them have found.
What they found is taken from the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tileprof.arrays import I64
from tileprof.devices import Device
from tileprof.record.model.tile_model import Call, Kernel, Operand, models
from tileprof.record.model.tiles.elementwise.pointwise import elementwise
from tileprof.record.model.tiles.foundations.index_values import recorded_values, without_values
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
_COUNT, _STAGING = 21, 22
"""Scratch slots of the count and of its reduction; masks take those from 30 on for their positions."""


@models("aten::nonzero", data_dependent=True)
def nonzero(call: Call, device: Device) -> list[Kernel]:
    """Coordinates of all true elements, one row per element."""
    source, out = call["self"], call.outputs[0]
    columns = [select(out, 1, d) for d in range(out.shape[1])]
    return positions_of(source, recorded_values(call, source), columns, device)


@models("aten::masked_select", data_dependent=True)
def masked_select(call: Call, device: Device) -> list[Kernel]:
    """The elements under the mask, in order; one pass as for `nonzero` (ATen goes through positions and an index
    kernel).
    """
    source, mask, out = call["self"], call["mask"], call.outputs[0]
    if source.shape != mask.shape or out.numel == 0:
        shape = np.broadcast_shapes(source.shape, mask.shape)
        whole = Sketch(max(blocks(int(np.prod(shape)), CHUNK), 1))
        for operand, mode in ((source, READ), (mask, READ), (out, WRITE)):
            if operand.numel:
                whole.whole(operand, mode)
        note = "the mask is broadcast: every tile touches everything"
        return [whole.kernel("masked_select", threads=256, coverage="conservative", note=note)]
    return positions_of(mask, recorded_values(call, mask), [out], device, also=[source])


def positions_of(
    mask: Operand, values: Any, columns: Sequence[Operand], device: Device, *, also: Sequence[Operand] = ()
) -> list[Kernel]:
    """The count, then the pass that writes a number into each of ``columns`` for every true element.

    ``values`` is the mask's content (None: unknown); ``also`` is read like the mask.
    """
    if mask.numel == 0:
        return []
    rank = len(mask.shape)
    kernels = reduction("count_nonzero", mask, [scratch(_COUNT)], range(rank), device, staging=_STAGING)
    sketch = Sketch(blocks(mask.numel, CHUNK))
    tile, lo, hi = ranges(mask.numel, CHUNK)
    for operand in (mask, *also):
        sketch.span(operand, READ, tile, Span(tuple(range(rank)), lo, hi))
    look_back(sketch, [mask], tile, lo)
    written = [c for c in columns if c.numel]
    if values is None:
        for column in written:
            sketch.whole(column, WRITE)
        confession = without_values("every tile writes all positions")
    else:
        begin, end = _output_range(values, lo, hi)
        for column in written:
            sketch.span(column, WRITE, tile, Span((0,), begin, end))
        confession = {"note": LOOK_BACK if sketch.tiles > 1 else ""}
    return [*kernels, sketch.kernel("compact", threads=256, flops=mask.numel, rate=rate_of(mask), **confession)]


def _output_range(values: Any, lo: I64, hi: I64) -> tuple[I64, I64]:
    before = np.concatenate([[0], np.cumsum(np.asarray(values).ravel() != 0)])
    return before[lo], before[hi]


def mask_positions(call: Call, mask: Operand, slot: int, device: Device) -> tuple[list[Kernel], list[Operand]]:
    """Launches that turn a mask into positions, and the workspace lists that hold them, one per dimension of
    the mask.
    """
    values = recorded_values(call, mask)
    count = mask.numel if values is None else int(np.count_nonzero(values))
    places = scratch(30 + slot, len(mask.shape), max(count, 1), itemsize=8)
    lists: list[Operand] = [select(places, 0, d) for d in range(len(mask.shape))]
    return positions_of(mask, values, lists if count else [], device), lists


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
    sketch = Sketch(blocks(source.numel, CHUNK))
    tile, lo, hi = ranges(source.numel, CHUNK)
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
        sketch.kernel(f"histogram<{name}>", threads=256, flops=source.numel, shared_bytes=4 * out.numel),
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
