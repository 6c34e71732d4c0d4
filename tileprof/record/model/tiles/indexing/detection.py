"""torchvision's kernels for detectors: non-maximum suppression and regions of interest.

Source: torchvision's ``nms_kernel.cu`` and ``roi_align_kernel.cu``; launches as recorded on an H200 (Faster R-CNN,
torchvision 0.26).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from tileprof.record.model.tile_model import Call, Kernel, Operand, models
from tileprof.record.model.tiles.elementwise.pointwise import elementwise
from tileprof.record.model.tiles.foundations.index_values import recorded_values, without_values
from tileprof.record.model.tiles.foundations.sketch import (
    READ,
    WRITE,
    Sketch,
    Span,
    blocks,
    is_contiguous,
    ranges,
    scratch,
)
from tileprof.record.model.tiles.indexing.compact import masked_select
from tileprof.record.model.tiles.indexing.index import index_select
from tileprof.record.model.tiles.reductions.scan import sort

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from tileprof.arrays import I64
    from tileprof.devices import Device

_GROUP: Final = 64
"""Boxes that a block compares with as many others: a bit of a mask for each."""
_ORDER, _SCORES, _SORTED, _MASK, _KEPT, _INPUT = 70, 71, 72, 73, 74, 75
_ROI_THREADS, _ROI_BLOCKS = 512, 4096


@models("torchvision::nms", data_dependent=True)
def nms(call: Call, device: Device) -> list[Kernel]:
    """Scores sorted, boxes in that order, a mask of overlaps per pair of groups, one block that walks it, and the
    numbers of the boxes that are kept.
    """
    boxes, scores, out = call["dets"], call["scores"], call.outputs[0]
    count = boxes.shape[0]
    if count == 0:
        return []
    order = replace(scratch(_ORDER, count, itemsize=8), dtype="int64")
    best = replace(scratch(_SCORES, count, itemsize=scores.itemsize), dtype=scores.dtype)
    ordered = replace(scratch(_SORTED, *boxes.shape, itemsize=boxes.itemsize), dtype=boxes.dtype)
    kept_boxes = replace(scratch(_KEPT, count, itemsize=1), dtype="bool")
    mask = scratch(_MASK, count, blocks(count, _GROUP), itemsize=8)
    values = _values(call, order, kept_boxes)

    def part_of(op: str, arguments: dict[str, Any], *outputs: Operand) -> Call:
        return replace(call, op=op, arguments=arguments, outputs=outputs, value=values)

    return [
        *sort(part_of("aten::sort", {"self": scores, "dim": 0}, best, order), device),
        *index_select(part_of("aten::index_select", {"self": boxes, "dim": 0, "index": order}, ordered), device),
        _overlaps(ordered, mask),
        *elementwise("zero_", [], [kept_boxes], flops_each=0),
        _walk(mask, kept_boxes, values(kept_boxes)),
        *masked_select(part_of("aten::masked_select", {"self": order, "mask": kept_boxes}, out), device),
    ]


def _values(call: Call, order: Operand, kept_boxes: Operand) -> Callable[[Operand], torch.Tensor | None]:
    """Return what the pieces of `nms` may ask for: the order of the scores, which of these are kept, and the call's."""
    scores = recorded_values(call, call["scores"])
    result = recorded_values(call, call.outputs[0])
    places = None if scores is None else torch.from_numpy(np.argsort(-scores, kind="stable"))
    is_kept = None if places is None or result is None else torch.isin(places, torch.from_numpy(result))

    def value(operand: Operand) -> torch.Tensor | None:
        if operand.ref == order.ref:
            return places
        return is_kept if operand.ref == kept_boxes.ref else call.value(operand)

    return value


def _overlaps(boxes: Operand, mask: Operand) -> Kernel:
    """Block (x, y): bits of group x for each box of group y; nothing where x < y."""
    count, groups = mask.shape
    sketch = Sketch(groups, groups)
    row, column = (i.ravel() for i in np.indices((groups, groups)))
    active = row <= column
    tile = (row * groups + column)[active]
    for group in (row[active], column[active]):
        lo, hi = group * _GROUP, np.minimum((group + 1) * _GROUP, count)
        sketch.span(boxes, READ, tile, Span((0,), lo, hi))
    lo, hi = row[active] * _GROUP, np.minimum((row[active] + 1) * _GROUP, count)
    sketch.span(mask, WRITE, tile, Span((0,), lo, hi), Span((1,), column[active], column[active] + 1))
    return sketch.kernel("nms", threads=_GROUP, flops=10 * count * count // 2)


def _walk(mask: Operand, kept_boxes: Operand, is_kept: torch.Tensor | None) -> Kernel:
    """One block, which reads the rows of the boxes that it keeps, here all of them, and writes a byte for each; the
    others stay zero.
    """
    sketch = Sketch(1)
    sketch.whole(mask, READ)
    note = "the rows of boxes that are not kept are not read"
    if is_kept is None:
        note = "which boxes are kept is not known: the bytes of all are read and written"
        for mode in (READ, WRITE):
            sketch.whole(kept_boxes, mode)
    else:
        edges = np.flatnonzero(np.diff(is_kept.numpy().astype(np.int8), prepend=0, append=0))
        sketch.span(kept_boxes, WRITE, np.zeros(len(edges) // 2, np.int64), Span((0,), edges[::2], edges[1::2]))
    return sketch.kernel("gather_keep_from_mask", threads=min(mask.shape[1], 1024), note=note)


@models("torchvision::roi_align", data_dependent=True)
def roi_align(call: Call, _device: Device) -> list[Kernel]:
    """Zeros, then 512 outputs per block and turn, each an average of points of its bin: four elements per point.

    A block reads, per region and channel, the rectangle around the bins that it computes.
    """
    source, rois, out = call["input"], call["rois"], call.outputs[0]
    if out.numel == 0:
        return []
    kernels = elementwise("zero_", [], [out], flops_each=0)
    operands = []
    for slot, operand in enumerate((source, rois)):
        dense = operand
        if not is_contiguous(operand):
            dense = replace(scratch(_INPUT + slot, *operand.shape, itemsize=operand.itemsize), dtype=operand.dtype)
            kernels += elementwise("clone", [operand], [dense], flops_each=0)
        operands.append(dense)
    count = blocks(out.numel, _ROI_THREADS)
    sketch = Sketch(min(count, _ROI_BLOCKS))
    chunk, lo, hi = ranges(out.numel, _ROI_THREADS, count)
    tile = chunk % sketch.tiles
    sketch.span(out, WRITE, tile, Span(tuple(range(4)), lo, hi))
    per_region = int(np.prod(out.shape[1:]))
    sketch.span(operands[1], READ, tile, Span((0,), lo // per_region, -(-hi // per_region)))
    values = recorded_values(call, rois)
    fields: dict[str, Any] = {}
    if values is None:
        sketch.whole(operands[0], READ)
        fields = without_values("every tile reads the whole input")
    else:
        _read_rectangles(sketch, call, operands[0], out, values.astype(np.float32))
    samples = max(int(call["sampling_ratio"]), 1) ** 2
    kernels.append(sketch.kernel("roi_align", threads=_ROI_THREADS, flops=8 * samples * out.numel, **fields))
    return kernels


def _read_rectangles(sketch: Sketch, call: Call, source: Operand, out: Operand, rois: NDArray[np.float32]) -> None:
    """Add what each tile reads of ``source`` ``[batch, channel, y, x]``: a rectangle per region, channel and turn."""
    _, channels, rows, columns = out.shape
    size, total = rows * columns, out.numel
    begin = np.union1d(np.arange(0, total, size), np.arange(0, total, _ROI_THREADS))
    end = np.append(begin[1:], total)
    plane = begin // size
    region, channel = plane // channels, plane % channels
    first, last = begin % size // columns, (end - 1 - plane * size) // columns
    ys, xs = (_elements_of_bins(call, rois, axis, source.shape[2 + axis], out.shape[2 + axis]) for axis in (0, 1))
    low = np.column_stack([rois[region, 0].astype(np.int64), channel, ys[0][region, first], xs[0][region].min(1)])
    high = np.column_stack([low[:, 0] + 1, channel + 1, ys[1][region, last], xs[1][region].max(1)])
    some = (high > low).all(1)
    tile = begin // _ROI_THREADS % sketch.tiles
    sketch.region(source, READ, tile[some], low[some], high[some])


def _elements_of_bins(call: Call, rois: NDArray[np.float32], axis: int, size: int, bins: int) -> tuple[I64, I64]:
    """Return which elements ``low <= i < high`` of an axis (0: y) lie under each bin; both are ``[regions, bins]`` and
    rise.
    """
    scale, half = np.float32(call["spatial_scale"]), np.float32(0.5 if call["aligned"] else 0.0)
    start, stop = (rois[:, n] * scale - half for n in (2 - axis, 4 - axis))
    length = stop - start if call["aligned"] else np.maximum(stop - start, np.float32(1))
    edge = start[:, None] + np.arange(bins + 1, dtype=np.float32) * (length / bins)[:, None]
    low = np.minimum(edge[:, :-1], edge[:, 1:])
    high = np.maximum(edge[:, :-1], edge[:, 1:])
    first = np.clip(np.floor(low) - 1, 0, size - 1).astype(np.int64)  # one more on either side: other roundings
    after = np.clip(np.floor(high) + 3, 1, size).astype(np.int64)
    return np.minimum.accumulate(first[:, ::-1], 1)[:, ::-1], np.maximum.accumulate(after, 1)
