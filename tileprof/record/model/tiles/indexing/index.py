"""Indexing with tensors: index, index_select, embedding, index_add and their kin.

Source: PyTorch's IndexKernel.cu, Indexing.cu, IndexKernelUtils.cu and Embedding.cu (from memory, not checked against a
version). The indices decide which bytes a tile touches; they are taken from the run. On fake tensors the indexed
operand is taken whole by every tile and the launch is marked conservative.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tileprof.arrays import I64
from tileprof.devices import Device
from tileprof.record.model.tile_model import Call, Kernel, Operand, models
from tileprof.record.model.tiles.elementwise.pointwise import elementwise, short
from tileprof.record.model.tiles.foundations.index_values import positions, recorded_values, without_values, wrapped
from tileprof.record.model.tiles.foundations.regions import coalesce
from tileprof.record.model.tiles.foundations.sketch import (
    ATOMIC,
    READ,
    WRITE,
    Sketch,
    Span,
    blocks,
    cut,
    is_contiguous,
    part,
    ranges,
    scratch,
)  # fmt: skip
from tileprof.record.model.tiles.indexing.compact import mask_positions

INDEX_CHUNK = 512
"""Elements of a block of the element-wise index kernels: 128 threads, 4 each."""
GATHER_CHUNK = 1024
"""Elements of a block of ``gather`` and its kin: 128 threads, 8 each."""
SMALL_INDEX = 16
"""Up to this many indices a block takes 128 elements of the slices and goes through all indices."""
ROW_CHUNK = 128
"""Elements of a block and turn of ``index_add`` and its kin: 128 threads; at most 8 blocks per SM, which loop."""
VECTOR_BYTES = 16
_COPIES = 80
"""First scratch slot of copied indices."""
_FAR = 1 << 40
"""Extent of the dimension that stands for an index's offset; larger than any tensor."""


@dataclass(frozen=True, slots=True)
class Target:
    """The indexed tensor, seen from the result's shape ``(before, indices, after)``.

    ``offset`` is, for each index position, where the indexed operand's slice begins (elements; None: unknown);
    ``before`` and ``after`` are the operand's dimensions that the indices leave alone.
    """

    operand: Operand
    offset: I64 | None
    before: tuple[int, ...]
    after: tuple[int, ...]

    def size(self, dims: tuple[int, ...]) -> int:
        return int(np.prod([self.operand.shape[d] for d in dims], dtype=np.int64))


@models("aten::index", "aten::_unsafe_index", data_dependent=True)
def index(call: Call, _device: Device) -> list[Kernel]:
    """``self[indices]``: a block takes 512 elements of the result, or a row of it where one index names whole rows of
    16-byte vectors. Masks are turned into positions first.
    """
    out = call.outputs[0]
    kernels, places = masks_to_positions(call)
    if out.numel == 0:
        return kernels
    target, shape, tensors = target_of(call, call["self"], places)
    if len(tensors) == 1 and int(np.prod(shape)) > 1 and of_whole_vectors(call["self"], out, target):
        return kernels + whole_rows("index", target, tensors[0], out)
    copies, tensors = alike(tensors, shape)
    return kernels + copies + moved("index", target, READ, out, WRITE, tensors, shape, INDEX_CHUNK, None)


@models("aten::index_select", data_dependent=True)
def index_select(call: Call, device: Device) -> list[Kernel]:
    """Slices of a dimension by number."""
    return _take(call, call["self"], call["dim"], call["index"], device)


@models("aten::embedding", data_dependent=True)
def embedding(call: Call, device: Device) -> list[Kernel]:
    """Rows of the table by number; numbers that do not lie at one distance are copied first."""
    indices = call["indices"]
    kernels: list[Kernel] = []
    copy = None
    if len(coalesce(indices).shape) > 1:
        copy = replace(scratch(_COPIES, *indices.shape, itemsize=indices.itemsize), dtype=indices.dtype)
        kernels = elementwise("contiguous", [indices], [copy], flops_each=0)
    return kernels + _take(call, call["weight"], 0, indices, device, copy=copy)


def _take(
    call: Call, source: Operand, dim: int, indices: Operand, device: Device, *, copy: Operand | None = None
) -> list[Kernel]:
    """Few indices: blocks take 128 elements of the slices. Dense rows of whole 16-byte vectors: one block per index and
    256 vectors of its row, or as ``gather`` where the indices do not lie side by side. Single elements: as ``gather``.
    Else the looping kernel.
    """
    out = call.outputs[0]
    if out.numel == 0:
        return []
    dim = dim % len(source.shape) if source.shape else 0
    if dim and set(source.shape[:dim]) == {1}:  # dimensions of one element do not count
        source, out = (replace(o, shape=o.shape[dim:], strides=o.strides[dim:]) for o in (source, out))
        dim = 0
    target = along(call, source, dim, indices)
    indices = copy or indices
    count = int(np.prod(indices.shape, dtype=np.int64))
    if count <= SMALL_INDEX and source.shape:
        return _few(call, target, indices, out, device)
    single = source.numel == (source.shape[dim] if source.shape else 1)
    if dim == 0 and of_whole_vectors(source, out, target):
        if is_contiguous(indices):
            return whole_rows(short(call.op), target, indices, out)
        single = True
    chunk, most = (GATHER_CHUNK, None) if single else (ROW_CHUNK, device.sms * 8)
    return moved(short(call.op), target, READ, out, WRITE, [indices], indices.shape, chunk, most)


def of_whole_vectors(source: Operand, out: Operand, target: Target) -> bool:
    """Return whether rows of the first dimension are dense and made of aligned vectors of 16 bytes."""
    row_bytes = target.size(target.after) * source.itemsize
    dense = is_contiguous(source) and is_contiguous(out) and not target.before
    return dense and len(target.after) == len(source.shape) - 1 and row_bytes % VECTOR_BYTES == 0


def whole_rows(name: str, target: Target, indices: Operand, out: Operand) -> list[Kernel]:
    """A block takes the row that an index names, or 256 vectors of it, as ``vectorized_gather_kernel`` does."""
    row_bytes = target.size(target.after) * out.itemsize
    threads = min(256, blocks(row_bytes // VECTOR_BYTES, 32) * 32)
    per_row = 256 * VECTOR_BYTES // out.itemsize
    return moved(name, target, READ, out, WRITE, [indices], indices.shape, per_row, None, row_threads=threads)


def _few(call: Call, target: Target, indices: Operand, out: Operand, device: Device) -> list[Kernel]:
    """A block takes elements ``128 b`` to ``128 b + 128`` of each slice, for all indices."""
    before, after = target.size(target.before), target.size(target.after)
    total, count = before * after, indices.numel
    grid = min(blocks(total, ROW_CHUNK), device.sms * 8)
    sketch = Sketch(grid)
    turn, lo, hi = ranges(total, ROW_CHUNK, grid)
    which, begin, end = cut(lo, hi, after)
    tile = np.repeat(turn[which], count)
    outer = np.repeat(begin // after, count)
    low, high = np.repeat(begin, count) - outer * after, np.repeat(end, count) - outer * after
    position = np.tile(np.arange(count), len(which))
    sketch.whole(indices, READ)
    rank, inner = len(out.shape), len(target.after)
    shape = (*out.shape[: len(target.before)], count, *out.shape[rank - inner :])
    lines = part(out, shape, _flattened(out, len(target.before), rank - inner))
    places = (Span(tuple(range(len(target.before))), outer, outer + 1),) if target.before else ()
    at = len(target.before)
    across = (Span(tuple(range(at + 1, at + 1 + inner)), low, high),) if inner else ()
    sketch.span(lines, WRITE, tile, *places, Span((at,), position, position + 1), *across)
    uncertainty = indexed_accesses(sketch, target, READ, tile, (outer, position), (low, high))
    threads = max(min(total, 128), 1)
    return [sketch.kernel(f"index_small<{short(call.op)}>", threads=threads, **uncertainty)]


def _flattened(out: Operand, first: int, last: int) -> tuple[int, ...]:
    """Return strides with dimensions ``first`` to ``last``, those of the indices, as one; results are new and dense."""
    step = out.strides[last - 1] if last > first else 0
    return (*out.strides[:first], step, *out.strides[last:])


@models(
    "aten::index_add",
    "aten::index_add_",
    "aten::index_copy",
    "aten::index_copy_",
    "aten::index_reduce",
    "aten::index_reduce_",
    data_dependent=True,
)
def index_add(call: Call, device: Device) -> list[Kernel]:
    """Slices added to, or copied over, the slices that the index names; additions are atomic."""
    out, source, indices = call.outputs[0], call["source"], call["index"]
    name = short(call.op)
    kernels = [] if name.endswith("_") else elementwise("clone", [call["self"]], [out], flops_each=0)
    if source.numel == 0:
        return kernels
    target = along(call, out, call["dim"] % max(len(out.shape), 1), indices)
    mode = WRITE if name.startswith("index_copy") else ATOMIC
    return kernels + moved(name, target, mode, source, READ, [indices], indices.shape, ROW_CHUNK, device.sms * 8)


@models("aten::index_fill", "aten::index_fill_", data_dependent=True)
def index_fill(call: Call, device: Device) -> list[Kernel]:
    """Slices that the index names, filled with a number."""
    out, indices = call.outputs[0], call["index"]
    name = short(call.op)
    kernels = [] if name.endswith("_") else elementwise("clone", [call["self"]], [out], flops_each=0)
    if indices.numel == 0 or out.numel == 0:
        return kernels
    target = along(call, out, call["dim"] % max(len(out.shape), 1), indices)
    value = [call["value"]] if isinstance(call["value"], Operand) else []
    return kernels + moved(
        name, target, WRITE, None, READ, [indices], indices.shape, ROW_CHUNK, device.sms * 8, whole=value
    )


def alike(tensors: list[Operand], shape: Sequence[int]) -> tuple[list[Kernel], list[Operand]]:
    """Let several indices have the same strides: where they differ, those that are not contiguous are copied, as
    broadcast ones are.
    """
    views = [_broadcast(one, shape) for one in tensors]
    if len({view.strides for view in views}) <= 1:
        return [], tensors
    kernels, result = [], []
    for number, view in enumerate(views):
        if is_contiguous(view):
            result.append(tensors[number])
            continue
        copy = replace(scratch(_COPIES + number, *shape, itemsize=view.itemsize), dtype=view.dtype)
        kernels += elementwise("contiguous", [view], [copy], flops_each=0)
        result.append(copy)
    return kernels, result


def _broadcast(operand: Operand, shape: Sequence[int]) -> Operand:
    """Return an index as the kernel sees it: of the common shape, with stride 0 where it is broadcast."""
    missing = len(shape) - len(operand.shape)
    strides = (0,) * missing + tuple(0 if n == 1 else s for n, s in zip(operand.shape, operand.strides, strict=True))
    return part(operand, shape, strides)


def is_mask(index: Operand | None) -> bool:
    """Return whether an index is a mask, which takes the positions where it holds."""
    return index is not None and index.dtype in {"bool", "uint8"}


def masks_to_positions(call: Call) -> tuple[list[Kernel], dict[int, list[Operand]]]:
    """Launches that turn the masks among the indices into positions, and where these lie, by the mask's ``ref``."""
    kernels, places = [], {}
    for slot, mask in enumerate(i for i in call["indices"] if is_mask(i)):
        launches, places[mask.ref] = mask_positions(call, mask, slot)
        kernels += launches
    return kernels, places


def target_of(
    call: Call, operand: Operand, places: dict[int, list[Operand]]
) -> tuple[Target, tuple[int, ...], list[Operand]]:
    """Return the indexed operand, the shape of the broadcast indices, and the lists of positions that the index kernel
    reads.
    """
    dims: list[int] = []
    offsets: list[tuple[Any, int, int]] = []
    tensors: list[Operand] = []
    at = 0
    for i in call["indices"]:
        if i is None:
            at += 1
            continue
        if is_mask(i):
            tensors += places[i.ref]
            own = tuple(range(at, at + len(i.shape)))
            mask = recorded_values(call, i)
            coordinates = np.nonzero(mask) if mask is not None else (None,) * len(own)
            offsets += [(f, operand.strides[d], operand.shape[d]) for f, d in zip(coordinates, own, strict=True)]
        else:
            own = (at,)
            offsets.append((recorded_values(call, i), operand.strides[at], operand.shape[at]))
            tensors.append(i)
        dims += own
        at += len(own)
    rest = [d for d in range(len(operand.shape)) if d not in dims]
    together = dims == list(range(dims[0], dims[0] + len(dims)))
    before = tuple(d for d in rest if together and d < dims[0])
    after = tuple(d for d in rest if d not in before)
    if any(values is None for values, _, _ in offsets):
        return Target(operand, None, before, after), _index_shape(call, before, after), tensors
    parts = [wrapped(values, size) * stride for values, stride, size in offsets]
    offset = np.asarray(sum(parts[1:], parts[0]))
    return Target(operand, offset.ravel(), before, after), offset.shape, tensors


def _index_shape(call: Call, before: tuple[int, ...], after: tuple[int, ...]) -> tuple[int, ...]:
    """Return the indices' broadcast shape on fake tensors: from the result, or from the index tensors themselves."""
    if short(call.op).endswith("index"):
        shape = call.outputs[0].shape
        return shape[len(before) : len(shape) - len(after)]
    shapes = [(i.numel,) if is_mask(i) else i.shape for i in call["indices"] if i is not None]
    return tuple(np.broadcast_shapes(*shapes))


def along(call: Call, operand: Operand, dim: int, indices: Operand) -> Target:
    """Return where indices along one dimension point, as ``index_select`` takes them."""
    values = recorded_values(call, indices)
    if not operand.shape:
        return Target(operand, None if values is None else 0 * values.ravel(), (), ())
    offset = None if values is None else wrapped(values.ravel(), operand.shape[dim]) * operand.strides[dim]
    rank = len(operand.shape)
    return Target(operand, offset, tuple(range(dim)), tuple(range(dim + 1, rank)))


def moved(
    name: str,
    target: Target,
    target_mode: int,
    other: Operand | None,
    other_mode: int,
    tensors: Sequence[Operand],
    shape: Sequence[int],
    chunk: int,
    most_tiles: int | None,
    *,
    row_threads: int = 0,
    whole: Sequence[Operand] = (),
) -> list[Kernel]:
    """The launch of all index kernels: tiles walk ``(before, indices, after)``, ``chunk`` elements at a time.

    ``other`` is the tensor of that shape (None: a number), ``tensors`` the indices. ``most_tiles`` limits the grid,
    blocks then loop. With ``row_threads`` blocks do not cross rows: one block per index (grid x) and ``chunk`` elements
    of its row (grid y). ``whole`` is read by every tile.
    """
    before, after = target.size(target.before), target.size(target.after)
    count = int(np.prod(shape, dtype=np.int64))
    total = before * count * after
    if row_threads:
        strips = blocks(after, chunk)
        sketch = Sketch(count, strips)
        tile = np.arange(count * strips)
        line, low = tile % count, tile // count * chunk
        high = np.minimum(low + chunk, after)
    else:
        tiles = blocks(total, chunk)
        sketch = Sketch(tiles if most_tiles is None else min(tiles, most_tiles))
        turn, lo, hi = ranges(total, chunk, sketch.tiles)
        which, begin, end = cut(lo, hi, after)
        tile, line = turn[which], begin // after
        low, high = begin - line * after, end - line * after
    position = line % count
    for operand in tensors:
        sketch.elements(operand, READ, tile, positions(_broadcast(operand, shape))[position])
    for operand in whole:
        sketch.whole(operand, READ)
    if other is not None:
        rank = len(other.shape)
        inner = tuple(range(rank - len(target.after), rank))
        outer = tuple(range(rank - len(target.after)))
        sketch.span(other, other_mode, tile, Span(outer, line, line + 1), Span(inner, low, high))
    uncertainty = indexed_accesses(sketch, target, target_mode, tile, (line // count, position), (low, high))
    flops = total if target_mode == ATOMIC else 0
    return [sketch.kernel(f"index<{name}>", threads=row_threads or 128, flops=flops, **uncertainty)]


def indexed_accesses(
    sketch: Sketch, target: Target, mode: int, tile: I64, place: tuple[I64, I64], columns: tuple[I64, I64]
) -> dict[str, Any]:
    """Add accesses to the indexed operand. Return the coverage and note of the kernel if the indices are unknown."""
    operand = target.operand
    if target.offset is None:
        sketch.whole(operand, mode)
        return without_values("every tile takes the whole indexed operand")
    dims = target.before + target.after
    view = part(operand, (_FAR, *(operand.shape[d] for d in dims)), (1, *(operand.strides[d] for d in dims)))
    before = tuple(range(1, 1 + len(target.before)))
    after = tuple(range(1 + len(target.before), 1 + len(dims)))
    (outer, position), (low, high) = place, columns
    offset = target.offset[position]
    if not target.before and not target.after:
        sketch.elements(operand, mode, tile, offset)
        return {}
    sketch.span(
        view, mode, tile, Span((0,), offset, offset + 1), Span(before, outer, outer + 1), Span(after, low, high)
    )
    return {}
