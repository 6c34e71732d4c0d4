"""Values put, or added up, where indices say.

Source: PyTorch's IndexKernel.cu and Indexing.cu (``index_put_with_sort``), from memory; the launches of additions were
recorded on an H200 (PyTorch 2.11). The indices decide which bytes a tile touches; they are taken from the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from tileprof.devices import Device
from tileprof.record.model.tile_model import Call, Kernel, Operand, models
from tileprof.record.model.tiles.elementwise.pointwise import elementwise, short
from tileprof.record.model.tiles.foundations.index_values import without_values
from tileprof.record.model.tiles.foundations.sketch import (
    READ,
    WRITE,
    Part,
    Sketch,
    Span,
    blocks,
    is_contiguous,
    part,
    scratch,
)
from tileprof.record.model.tiles.indexing.index import (
    INDEX_CHUNK,
    Target,
    alike,
    indexed_accesses,
    is_mask,
    masks_to_positions,
    moved,
    target_of,
)
from tileprof.record.model.tiles.indexing.radix_sort import sort_indices, sorted_keys, sorted_places
from tileprof.record.model.tiles.reductions.reduce import reduction

_LINEAR: Final = 60
"""Scratch slot of indices as one number each."""
_VALUES: Final = 61
"""Scratch slot of values that lie side by side."""
_WRAPPED: Final = 62
"""First scratch slot of wrapped indices, and of the products of further ones; two per index."""
_CHECKS: Final = 90
"""First scratch slot of the largest and smallest index and of whether they are inside; four per index."""
_WARP, _WARPS, _EACH = 32, 4, 4
"""Threads of a warp, warps of a block, elements of a slice per thread."""


@models("aten::index_put", "aten::index_put_", "aten::_index_put_impl_", "aten::_unsafe_index_put", data_dependent=True)
def index_put(call: Call, device: Device) -> list[Kernel]:
    """``self[indices] = values``, or ``+=`` with ``accumulate``: then indices are checked and sorted first, and a warp
    adds up all values of an index.
    """
    out, values = call.outputs[0], call["values"]
    kernels = [] if short(call.op).endswith("_") else elementwise("clone", [call["self"]], [out], flops_each=0)
    masks = [i for i in call["indices"] if is_mask(i)]
    number = not isinstance(values, Operand)
    if len(masks) == 1 and len(call["indices"]) == 1 and (number or values.numel == 1) and not call["accumulate"]:
        mask = masks[0]
        more = len(out.shape) - len(mask.shape)
        mask = part(mask, mask.shape + (1,) * more, mask.strides + (0,) * more)
        read = [out, mask] if number else [out, mask, values]
        return [*kernels, *elementwise("masked_fill_", read, [out], flops_each=0)]
    launches, places = masks_to_positions(call)
    kernels += launches
    target, shape, tensors = target_of(call, out, places)
    total = target.size(target.before) * int(np.prod(shape, dtype=np.int64)) * target.size(target.after)
    if total == 0 or values.numel == 0:
        return kernels
    source = _values_as_lines(values, target, shape)
    if call["accumulate"]:
        checked = "unsafe" not in call.op and not call.arguments.get("unsafe")
        return kernels + _added(target, source, tensors, shape, device, checked=checked)
    copies, tensors = alike(tensors, shape)
    kernels += copies
    return kernels + moved("index_put", target, WRITE, source, READ, tensors, shape, INDEX_CHUNK, None)


def _values_as_lines(values: Operand, target: Target, shape: Sequence[int]) -> Operand:
    full = [*(target.operand.shape[d] for d in target.before), *shape, *(target.operand.shape[d] for d in target.after)]
    missing = len(full) - len(values.shape)
    strides = (0,) * missing + tuple(
        0 if size == 1 else s for size, s in zip(values.shape, values.strides, strict=True)
    )
    return part(values, full, strides)


def _added(
    target: Target, source: Operand, tensors: Sequence[Operand], shape: Sequence[int], device: Device, *, checked: bool
) -> list[Kernel]:
    """Return the launches that add ``source`` ``[before, indices, after]`` to the slices of the target."""
    count = int(np.prod(shape, dtype=np.int64))
    linear = _numbers(_LINEAR, *shape)
    kernels: list[Kernel] = []
    for number, indices in enumerate(tensors):
        if checked:
            kernels += _checks(indices, number, device)
        wrapped, product = (_numbers(_WRAPPED + 2 * number + n, *indices.shape) for n in range(2))
        kernels += elementwise("remainder", [indices], [wrapped])
        # The first one becomes the sum of all, broadcast from there on.
        first = number == 0 and indices.numel == count
        kernels += elementwise("mul", [wrapped], [linear if first else product])
        if not first:
            kernels += elementwise("add", [product] if number == 0 else [linear, product], [linear])
    if not is_contiguous(source):
        copy = replace(scratch(_VALUES, *source.shape, itemsize=source.itemsize), dtype=source.dtype)
        kernels += elementwise("contiguous", [source], [copy], flops_each=0)
        source = copy
    rows = target.operand.numel // max(target.size(target.after), 1)
    kernels += elementwise("div_", [linear], [linear])
    kernels += sort_indices(linear, device, bits=max(rows - 1, 1).bit_length())
    return [*kernels, _sums(target, source, count)]


def _checks(indices: Operand, number: int, device: Device) -> list[Kernel]:
    """Return the launches that check the largest and the smallest index."""
    kernels = []
    for n, name in enumerate(("max", "min")):
        slot = _CHECKS + 4 * number + 2 * n
        extreme = _numbers(slot)
        inside = replace(scratch(slot + 1, itemsize=1), dtype="bool")
        kernels += reduction(
            name, indices, [extreme], range(len(indices.shape)), device, staging=2000 + 4 * number + 2 * n
        )
        kernels += elementwise("compare", [extreme], [inside])
        check = Sketch(1)
        check.whole(inside, READ)
        kernels.append(check.kernel("assert_async", threads=1))
    return kernels


def _numbers(slot: int, *shape: int) -> Part:
    return replace(scratch(slot, *shape, itemsize=8), dtype="int64")


def _sums(target: Target, source: Operand, count: int) -> Kernel:
    """Return the launch behind the sort: the warp of the first of equal indices adds all their values to the slice.

    A block has four indices, 128 elements of a slice and one place before it.
    """
    before, after = target.size(target.before), target.size(target.after)
    each = _WARPS
    strips = 1 if after <= _WARP else blocks(after, _WARP * _EACH)
    sketch = Sketch(blocks(count, each), strips, before)
    keys, places = sorted_keys(count), sorted_places(count)
    block_size: dict[str, Any] = {"threads": (_WARP, _WARPS, 1), "flops": before * count * after}
    if target.offset is None:
        for operand, mode in ((keys, READ), (places, READ), (source, READ), (target.operand, READ)):
            sketch.whole(operand, mode)
        sketch.whole(target.operand, WRITE)
        return sketch.kernel(
            "index_put<sums>", **block_size, **without_values("every tile updates the whole indexed operand")
        )
    order = np.argsort(target.offset, kind="stable")
    offset = target.offset[order]
    begins = np.flatnonzero(np.diff(offset, prepend=offset[0] - 1))
    segment = np.cumsum(np.diff(offset, prepend=offset[0] - 1) != 0) - 1
    block = begins[segment] // each
    columns, rows, cells = sketch.grid
    strip, cell = np.arange(rows), np.arange(cells)
    beside = columns * (strip[:, None] + rows * cell[None, :])  # of the first block of each strip and place
    shape = (len(strip), len(cell), count)
    tile = np.broadcast_to(block[None, None, :] + beside[:, :, None], shape).ravel()
    low = np.broadcast_to((strip * _WARP * _EACH)[:, None, None], shape).ravel()
    high = np.minimum(low + _WARP * _EACH, after) if strips > 1 else np.full(len(low), after)
    outer = np.broadcast_to(cell[None, :, None], shape).ravel()
    sorted_place = np.broadcast_to(np.arange(count)[None, None, :], shape).ravel()
    position = order[sorted_place]
    for vector in (keys, places):
        sketch.elements(vector, READ, tile, sorted_place)
    own = np.arange(sketch.tiles) % columns * each  # a warp also looks at its neighbours
    for step in range(-1, each):
        sketch.elements(keys, READ, np.arange(sketch.tiles), np.clip(own + step, 0, count - 1))
    sketch.elements(keys, READ, tile, np.minimum(sorted_place + 1, count - 1))
    inner = tuple(range(len(source.shape) - len(target.after), len(source.shape)))
    lines = tuple(range(len(source.shape) - len(target.after)))
    line = outer * count + position
    sketch.span(source, READ, tile, Span(lines, line, line + 1), Span(inner, low, high))
    first = np.isin(sorted_place, begins)
    for mode in (READ, WRITE):
        indexed_accesses(sketch, target, mode, tile[first], (outer[first], position[first]), (low[first], high[first]))
    return sketch.kernel("index_put<sums>", **block_size)
