"""Kernels that move data: concatenation, repetition, padding, shuffles, flips, rolls, triangles.

Source: PyTorch's aten/src/ATen/native/cuda/Shape.cu (cat) and the composite definitions of the others, which
copy between views through TensorIterator (see `pointwise`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from tileprof.arrays import I64
from tileprof.devices import Device
from tileprof.record.model.tile_model import Call, Kernel, Operand, models
from tileprof.record.model.tiles.elementwise.pointwise import THREADS, contiguous, elementwise, short
from tileprof.record.model.tiles.foundations import regions
from tileprof.record.model.tiles.foundations.regions import permute
from tileprof.record.model.tiles.foundations.sketch import (
    READ,
    WRITE,
    Sketch,
    Span,
    blocks,
    cut,
    is_contiguous,
    memory_order,
    narrow,
    part,
    ranges,
    scratch,
    select,
)  # fmt: skip

CAT_BATCH = 128
"""Inputs of one concatenation kernel; more take more launches."""
_ROLL_THREADS = 512
_TRIANGLE_BYTES = 8
CAT_DIMENSIONS = 4
"""``CAT_ARRAY_MAX_INPUT_DIMS``"""
_WIDEST_LOAD = 16
"""Bytes that a thread of a concatenation copies at once where it can."""
_CHANNELS_LAST = (0, 2, 3, 1)
"""Dimensions of images from the outermost in memory, where channels are last."""


@models("aten::cat", "aten::concat", "aten::concatenate", "aten::_cat")
def cat(call: Call, device: Device) -> list[Kernel]:
    """Inputs one behind the other along ``dim``."""
    return concatenate("cat", list(call["tensors"]), call.outputs[0], call["dim"], device)


@models("aten::stack", "aten::_stack")
def stack(call: Call, device: Device) -> list[Kernel]:
    """``cat`` along the dimension that the new one splits; of the inputs with a new dimension if that is the last."""
    out, sources = call.outputs[0], list(call["tensors"])
    dim = call["dim"] % len(out.shape)
    if dim < len(sources[0].shape) and is_contiguous(out):
        shape = (*out.shape[:dim], out.shape[dim] * out.shape[dim + 1], *out.shape[dim + 2 :])
        whole = part(out, shape, (*out.strides[:dim], *out.strides[dim + 1 :]))
        return concatenate("stack", sources, whole, dim, device)
    sources = [
        replace(t, shape=(*t.shape[:dim], 1, *t.shape[dim:]), strides=(*t.strides[:dim], 0, *t.strides[dim:]))
        for t in sources
    ]
    return concatenate("stack", sources, out, dim, device)


def concatenate(name: str, sources: Sequence[Operand], out: Operand, dim: int, device: Device) -> list[Kernel]:
    """Launches that fill ``out`` from ``sources``; grid y is the input, grid x shares it by a grid-stride loop.

    Dense and aligned inputs: 128 threads with a vector each and as many blocks as the largest input needs. Others: 512
    threads and two blocks per SM. Inputs of another type, of more dimensions than the kernel takes, or not dense with
    channels last, are copied one by one.
    """
    dim %= len(out.shape)
    placed: list[tuple[Operand, Operand]] = []
    rows, at = [], 0
    for row, source in enumerate(sources):
        # The legacy empty tensor of shape (0,) takes no room whatever the others' rank, but blocks like the others.
        if source.numel:
            placed.append((source, narrow(out, dim, at, source.shape[dim])))
            rows.append(row)
            at += source.shape[dim]
    order = tuple(range(len(out.shape)))
    if len(order) == len(_CHANNELS_LAST) and not is_contiguous(out) and is_contiguous(permute(out, _CHANNELS_LAST)):
        order = _CHANNELS_LAST
    dense = all(is_contiguous(permute(o, order)) for o in (out, *(s for s, _ in placed)))
    one_by_one = len(out.shape) > CAT_DIMENSIONS or (order == _CHANNELS_LAST and not dense)
    if one_by_one or any(s.dtype != out.dtype for s, _ in placed):
        names = ("copy_" if source.dtype == out.dtype else name for source, _ in placed)
        return [k for one, (s, t) in zip(names, placed, strict=True) for k in elementwise(one, [s], [t], flops_each=0)]
    if len(sources) == 1 and placed:
        return elementwise("copy_", [placed[0][0]], [placed[0][1]], flops_each=0)
    load = _bytes_per_load([s for s, _ in placed], dim) if dense and order != _CHANNELS_LAST else _WIDEST_LOAD
    kernels = []
    for first in range(0, len(sources), CAT_BATCH):
        height = min(len(sources) - first, CAT_BATCH)
        batch = [(r - first, *p) for r, p in zip(rows, placed, strict=True) if first <= r < first + CAT_BATCH]
        if not batch:
            continue
        largest = max(s.numel for _, s, _ in batch)
        vectors = dense and load
        chunk = 128 * max(load // out.itemsize, 1) if vectors else 512
        width = min(blocks(largest, chunk), device.sms * 32) if vectors else 2 * device.sms
        sketch = Sketch(width, height)
        for y, source, target in batch:
            tile, lo, hi = ranges(source.numel, chunk, width)
            span = Span(order, lo, hi)
            sketch.span(source, READ, tile + y * width, span)
            sketch.span(target, WRITE, tile + y * width, span)
        kernels.append(sketch.kernel(f"cat_batched_copy<{name}>", threads=128 if vectors else 512))
    return kernels


def _bytes_per_load(sources: Sequence[Operand], dim: int) -> int:
    """Return how many bytes a thread copies at once, 0 if single elements.

    Pieces of whole vectors in the output are copied as vectors. Others are only loaded as such, from aligned inputs.
    """
    pieces = [int(np.prod(s.shape[dim:], dtype=np.int64)) * s.itemsize for s in sources]
    if any(s.alignment < _WIDEST_LOAD for s in sources):
        return 0
    if all(piece % _WIDEST_LOAD == 0 for piece in pieces):
        return _WIDEST_LOAD
    return {1: 0, 2: 8}.get(sources[0].itemsize, _WIDEST_LOAD)


@models("aten::split_with_sizes_copy", "aten::split_copy", "aten::unbind_copy")
def split_copy(call: Call, _device: Device) -> list[Kernel]:
    """A copy for each piece."""
    source, kernels, at = call["self"], [], 0
    dim = call.arguments.get("dim", 0) % len(source.shape)
    for out in call.outputs:
        drops_dim = len(out.shape) < len(source.shape)
        length = 1 if drops_dim else out.shape[dim]
        view = select(source, dim, at) if drops_dim else narrow(source, dim, at, length)
        kernels += elementwise(short(call.op), [view], [out], flops_each=0)
        at += length
    return kernels


@models("aten::repeat", "aten::tile")
def repeat(call: Call, _device: Device) -> list[Kernel]:
    """A copy from the input, broadcast along new dimensions, into the output seen as (repeat, size) pairs."""
    source, out = call["self"], call.outputs[0]
    if out.numel == 0:
        return []
    missing = len(out.shape) - len(source.shape)
    sizes, steps = (1,) * missing + source.shape, (0,) * missing + source.strides
    shape, source_strides, out_strides = [], [], []
    for whole, size, step, stride in zip(out.shape, sizes, steps, out.strides, strict=True):
        shape += [whole // size, size]
        source_strides += [0, step]
        out_strides += [size * stride, stride]
    return elementwise("repeat", [part(source, shape, source_strides)], [part(out, shape, out_strides)], flops_each=0)


@models("aten::constant_pad_nd")
def constant_pad(call: Call, _device: Device) -> list[Kernel]:
    """Fill the output, then copy the input into its middle; padding that only cuts is a copy alone."""
    source, out, pad = call["self"], call.outputs[0], list(call["pad"])
    target = part(out, out.shape, out.strides)
    source_part = part(source, source.shape, source.strides)
    for i in range(len(pad) // 2):
        dim = len(out.shape) - 1 - i
        before, after = pad[2 * i], pad[2 * i + 1]
        inside = source.shape[dim] + min(before, 0) + min(after, 0)
        source_part = narrow(source_part, dim, max(-before, 0), inside)
        target = narrow(target, dim, max(before, 0), inside)
    filled = elementwise("fill_", [], [out], flops_each=0) if max(pad, default=0) > 0 else []
    return filled + elementwise("copy_", [source_part], [target], flops_each=0)


@models("aten::slice_backward", "aten::select_backward", "aten::diagonal_backward")
def view_backward(call: Call, _device: Device) -> list[Kernel]:
    """Zeros, then the gradient copied into the part that the view had shown."""
    out = call.outputs[0]
    target = _view(call, out)
    gradient = call["grad_output"]
    return elementwise("zero_", [], [out], flops_each=0) + elementwise("copy_", [gradient], [target], flops_each=0)


@models("aten::slice_scatter", "aten::select_scatter", "aten::diagonal_scatter")
def view_scatter(call: Call, _device: Device) -> list[Kernel]:
    """A copy of the input, then the source copied into the part of it."""
    out = call.outputs[0]
    filled = elementwise("clone", [call["self"]], [out], flops_each=0)
    return filled + elementwise("copy_", [call["src"]], [_view(call, out)], flops_each=0)


def _view(call: Call, whole: Operand) -> Operand:
    name = short(call.op)
    if name.startswith("diagonal"):
        return diagonal(whole, call["offset"], call["dim1"], call["dim2"])
    dim = call["dim"] % len(whole.shape)
    size = whole.shape[dim]
    if name.startswith("select"):
        return select(whole, dim, call["index"] % size)
    start, end, step = slice(call["start"], call["end"], call["step"]).indices(size)
    return narrow(whole, dim, start, len(range(start, end, step)), step)


def diagonal(operand: Operand, offset: int, dim1: int, dim2: int) -> Operand:
    """Return the operand's diagonals, their elements along a last dimension, as ``torch.diagonal``."""
    rank = len(operand.shape)
    rows, columns = dim1 % rank, dim2 % rank
    length = min(operand.shape[rows] + min(offset, 0), operand.shape[columns] - max(offset, 0))
    begin = max(-offset, 0) * operand.strides[rows] + max(offset, 0) * operand.strides[columns]
    rest = [d for d in range(rank) if d not in (rows, columns)]
    shape = (*(operand.shape[d] for d in rest), max(length, 0))
    strides = (*(operand.strides[d] for d in rest), operand.strides[rows] + operand.strides[columns])
    return part(operand, shape, strides, begin)


@models("aten::diag_embed")
def diag_embed(call: Call, _device: Device) -> list[Kernel]:
    """Zeros, then the input copied onto the diagonals."""
    out = call.outputs[0]
    target = diagonal(out, call["offset"], call["dim1"], call["dim2"])
    return elementwise("zero_", [], [out], flops_each=0) + elementwise("copy_", [call["self"]], [target], flops_each=0)


@models("aten::pixel_shuffle", "aten::pixel_unshuffle")
def pixel_shuffle(call: Call, _device: Device) -> list[Kernel]:
    """A copy between (channels, r, r, height, width) and (channels, height, r, width, r)."""
    source, out = call["self"], call.outputs[0]
    shuffled, deep = (out, source) if short(call.op) == "pixel_shuffle" else (source, out)
    factor = call["upscale_factor"] if shuffled is out else call["downscale_factor"]
    *batch, channels, height, width = deep.shape
    *batch_steps, channel, row, column = deep.strides
    shape = (*batch, channels // factor**2, height, factor, width, factor)
    deep_steps = (*batch_steps, channel * factor**2, row, channel * factor, column, channel)
    *batch_steps, channel, row, column = shuffled.strides
    flat_steps = (*batch_steps, channel, row * factor, row, column * factor, column)
    views = {deep.ref: part(deep, shape, deep_steps), shuffled.ref: part(shuffled, shape, flat_steps)}
    return elementwise(short(call.op), [views[source.ref]], [views[out.ref]], flops_each=0)


@models("aten::channel_shuffle", "aten::native_channel_shuffle")
def channel_shuffle(call: Call, _device: Device) -> list[Kernel]:
    """A copy that swaps the group and the position of a channel."""
    source, out, groups = call["self"], call.outputs[0], call["groups"]
    each = source.shape[1] // groups
    shape = (source.shape[0], each, groups, *source.shape[2:])
    strides = (source.strides[0], source.strides[1], source.strides[1] * each, *source.strides[2:])
    out_strides = (out.strides[0], out.strides[1] * groups, out.strides[1], *out.strides[2:])
    return elementwise("channel_shuffle", [part(source, shape, strides)], [part(out, shape, out_strides)], flops_each=0)


@models("aten::flip", "aten::fliplr", "aten::flipud")
def flip(call: Call, _device: Device) -> list[Kernel]:
    """A copy that reads the flipped dimensions backwards."""
    source, out = call["self"], call.outputs[0]
    flipped = [d % max(len(out.shape), 1) for d in call["dims"]]

    def mirror(start: I64, stop: I64) -> list[tuple[I64, I64]]:
        low, high = start.copy(), stop.copy()
        for d in flipped:
            low[:, d], high[:, d] = source.shape[d] - stop[:, d], source.shape[d] - start[:, d]
        return [(low, high)]

    return rearranged("flip", source, out, mirror)


@models("aten::roll")
def roll(call: Call, _device: Device) -> list[Kernel]:
    """A copy per dimension that reads with a cyclic shift; no dimensions means shifting the flattened tensor."""
    source, out = call["self"], call.outputs[0]
    shifts = call["shifts"] if isinstance(call["shifts"], list | tuple) else [call["shifts"]]
    kernels, source = contiguous(source)
    if not call["dims"]:
        return kernels + _rolled(source, out, 0, shifts[0], flat=True)
    for number, (dim, shift) in enumerate(zip(call["dims"], shifts, strict=True), 1):
        middle = replace(scratch(number, *out.shape, itemsize=out.itemsize), dtype=out.dtype)
        target = out if number == len(shifts) else middle
        kernels += _rolled(source, target, dim % len(out.shape), shift)
        source = target
    return kernels


def _rolled(source: Operand, out: Operand, dim: int, shift: int, *, flat: bool = False) -> list[Kernel]:
    """``roll_cuda_kernel``: a thread per element, of one dimension or of all as one."""
    if out.numel == 0:
        return []
    sketch = Sketch(blocks(out.numel, _ROLL_THREADS))
    tile, lo, hi = ranges(out.numel, _ROLL_THREADS)
    every = tuple(range(len(out.shape)))
    sketch.span(out, WRITE, tile, Span(every, lo, hi))
    which, start, stop = regions.linear([out.numel] if flat else list(out.shape), lo, hi)
    for low, high in _wrap(start, stop, dim, shift, out.numel if flat else out.shape[dim]):
        if flat:
            sketch.span(source, READ, tile[which], Span(every, low[:, 0], np.maximum(high, low)[:, 0]))
        else:
            sketch.region(source, READ, tile[which], low, high)
    return [sketch.kernel("elementwise<roll>", threads=_ROLL_THREADS)]


def _wrap(start: I64, stop: I64, dim: int, shift: int, size: int) -> list[tuple[I64, I64]]:
    """Return the rectangles that land on ``[start, stop)`` when ``dim`` is rolled by ``shift``: before and behind the
    seam.
    """
    seam = shift % size
    pieces = []
    for low, high, move in ((0, seam, size - seam), (seam, size, -seam)):
        a, b = start.copy(), stop.copy()
        a[:, dim] = np.maximum(start[:, dim], low) + move
        b[:, dim] = np.minimum(stop[:, dim], high) + move
        pieces.append((a, b))
    return pieces


def rearranged(
    name: str, source: Operand, out: Operand, origin: Callable[[I64, I64], list[tuple[I64, I64]]]
) -> list[Kernel]:
    """A copy whose output rectangle ``start, stop`` (``[rectangles, dims]``) comes from the input rectangles ``origin``
    gives.
    """
    if out.numel == 0:
        return []
    if not out.shape:
        return elementwise(name, [source], [out], flops_each=0)
    order = memory_order([out])
    back = np.argsort(order)
    sketch = Sketch(blocks(out.numel, THREADS * 4))
    tile, lo, hi = ranges(out.numel, THREADS * 4)
    which, start, stop = regions.linear([out.shape[d] for d in order], lo, hi)
    for low, high in origin(start[:, back], stop[:, back]):
        sketch.region(source, READ, tile[which], low, high)
    sketch.span(out, WRITE, tile, Span(order, lo, hi))
    return [sketch.kernel(f"elementwise<{name}>", threads=THREADS)]


@models("aten::tril", "aten::triu", "aten::tril_", "aten::triu_")
def triangle(call: Call, _device: Device) -> list[Kernel]:
    """Writes every element, reads those that are kept; blocks of 128 threads walk the matrix row by row, each thread
    eight bytes of a row (``triu_tril_kernel``).
    """
    source, out = call["self"], call.outputs[0]
    if out.numel == 0:
        return []
    rows, columns = out.shape[-2:]
    each = max(_TRIANGLE_BYTES // out.itemsize, 1)
    padded = blocks(columns, each) * each
    walked = out.numel // columns * padded
    sketch = Sketch(blocks(walked, THREADS * each))
    tile, lo, hi = ranges(walked, THREADS * each)
    lo, hi = (n // padded * columns + np.minimum(n % padded, columns) for n in (lo, hi))
    rank = len(out.shape)
    which, start, stop = cut(lo, hi, columns)
    limit = start // columns % rows + call["diagonal"]
    low, high = start % columns, stop - start // columns * columns
    if short(call.op).startswith("tril"):
        high = np.minimum(high, limit + 1)
    else:
        low = np.maximum(low, limit)
    row = start // columns
    is_inside = low < high
    row, low, high, which = row[is_inside], low[is_inside], high[is_inside], which[is_inside]
    sketch.span(source, READ, tile[which], Span(tuple(range(rank - 1)), row, row + 1), Span((rank - 1,), low, high))
    sketch.span(out, WRITE, tile, Span(tuple(range(rank)), lo, hi))
    return [sketch.kernel(f"triangle<{short(call.op)}>", threads=THREADS)]
