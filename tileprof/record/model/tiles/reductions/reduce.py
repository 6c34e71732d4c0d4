"""Reductions through TensorIterator: sum, mean, norm, max, argmax, any, variance and their kin.

Source: PyTorch's aten/src/ATen/native/cuda/Reduce.cuh, ``setReduceConfig`` (from memory, not checked against a
version). A thread block is ``width x height`` threads, width along the dimension that is fastest in memory:

- reduced dimension fastest (a row sum): the width reduces, the height takes further outputs, or, for long rows, reduces
too;
- kept dimension fastest (a column sum): the width takes outputs, up to 4 per thread, the height reduces long columns.

Where a thread would still get 256 values and the grid leaves SMs idle, several blocks share an output ("split"):
block ``y`` takes every ``grid_y``-th chunk, stages its part in a workspace, and the last one combines. Which
one that is cannot be known, so every block of the group updates the output and the group's staging *atomically* here:
a reader waits for all of them, as it must.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tileprof.arrays import I64
from tileprof.devices import Device
from tileprof.record.model.tile_model import Call, Kernel, Operand, models
from tileprof.record.model.tiles.elementwise.pointwise import elementwise, memset, number_out, short
from tileprof.record.model.tiles.foundations.regions import coalesce, permute
from tileprof.record.model.tiles.foundations.sketch import (
    ATOMIC,
    READ,
    WRITE,
    Sketch,
    Span,
    blocks,
    memory_order,
    ranges,
    rate_of,
    scratch,
)  # fmt: skip

_FAR = np.iinfo(np.int64).max
"""The stride of what has none."""
MAX_THREADS = 512
_HALF_BYTES = 2
_ALIGNED = 16
"""Bytes beyond which alignments are not known."""
_SEMAPHORES = 100
"""From a staging slot to that of its semaphores."""
_VECTORISED = 128
"""Rows of fewer elements are not loaded as vectors."""
MIN_VALUES, MAX_VALUES = 16, 256
"""Values a thread should at least reduce, and above which the work is split further."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The cut of a reduction: a block owns ``outputs_per_block`` outputs; ``splits`` blocks share them, each taking
    every ``splits``-th chunk of ``chunk`` reduced elements; ``vector`` elements of a row are loaded at once.
    """

    threads: tuple[int, int, int]
    outputs_per_block: int
    chunk: int
    splits: int
    vector: int


def plan(
    outputs: int, inputs: int, device: Device, *, row_wise: bool, dense: bool, itemsize: int, vector: int = 4
) -> Plan:
    """Return the configuration for ``outputs`` results of ``inputs`` elements each.

    ``row_wise``: the reduced dimension is the faster one in memory. ``dense``: that dimension has stride 1 (kept or
    reduced), so that threads load vectors: ``vector`` elements along rows, up to 16 bytes of outputs along columns.
    """
    along_input = vector if row_wise and dense and inputs >= _VECTORISED else 1
    along_output = _output_vector(outputs, itemsize) if dense and not row_wise else 1
    fastest = (inputs // along_input) if row_wise else (outputs // along_output)
    other = outputs if row_wise else inputs
    limit = MAX_THREADS // along_output
    width = min(_floor_power(fastest, limit), 32)
    height = min(_floor_power(other, limit), limit // width)
    width = min(_floor_power(fastest, limit), limit // height)
    step_input, step_output = (width, 1) if row_wise else (1, width * along_output)
    if blocks(inputs, step_input) >= min(height * 16, MAX_VALUES):
        step_input *= height
        splittable = True
    else:
        step_output *= height
        splittable = False
    values, grid = blocks(inputs, step_input), blocks(outputs, step_output)
    resident_blocks = device.sms * (device.threads_per_sm // (width * height))
    splits = 1
    if splittable and values >= MAX_VALUES and grid <= resident_blocks:
        splits = max(min(blocks(resident_blocks, grid), blocks(values, MIN_VALUES)), blocks(values, MAX_VALUES))
    return Plan((width, height, 1), step_output, step_input * along_input, splits, along_input)


def reduction(
    name: str,
    source: Operand,
    results: Sequence[Operand],
    dims: Sequence[int],
    device: Device,
    *,
    flops_each: float = 1,
    staging: int = 9,
) -> list[Kernel]:
    """Reduce ``dims`` of ``source``.

    ``results`` have the kept dimensions only (see `without_dims`), in the source's order.

    ``staging`` is the scratch slot of a split reduction; kernels of one call need one each. Where there are no
    elements to reduce, the results are filled.
    """
    rank = len(source.shape)
    reduced = tuple(sorted(d % rank for d in dims)) if rank else ()
    if results[0].numel == 0:
        return []
    if source.numel == 0:
        return elementwise(f"{name} of nothing", [], results, flops_each=0)
    inner = tuple(d for d in memory_order([source]) if d in reduced)
    kept = [d for d in range(rank) if d not in reduced]
    outer = tuple(kept[d] for d in memory_order([results[0], permute(source, kept)]))  # results decide
    inputs = int(np.prod([source.shape[d] for d in inner], dtype=np.int64))
    outputs = source.numel // inputs
    vector = _vector(name, source.itemsize) if len(coalesce(permute(source, inner)).shape) == 1 else 1
    plan = _plan_for(source, inner, outer, inputs, outputs, device, vector)
    sketch = Sketch(blocks(outputs, plan.outputs_per_block), plan.splits)
    tile, lo, hi = ranges(outputs, plan.outputs_per_block)
    _read(sketch, source, (inner, outer), plan, (tile, lo, hi), inputs)
    kept_order = tuple(sorted(range(len(outer)), key=lambda i: outer[i]))
    places = tuple(kept_order.index(i) for i in range(len(outer)))
    every = np.tile(tile, plan.splits) + np.repeat(np.arange(plan.splits), len(tile)) * len(tile)
    own = Span(places, np.tile(lo, plan.splits), np.tile(hi, plan.splits))
    for result in results:
        sketch.span(result, WRITE if plan.splits == 1 else ATOMIC, every, own)
    kernels: list[Kernel] = []
    if plan.splits > 1:
        staged = scratch(staging, len(tile), plan.splits * plan.outputs_per_block * len(results))
        row = every % len(tile)
        sketch.span(staged, ATOMIC, every, Span((0,), row, row + 1))
        semaphores = scratch(staging + _SEMAPHORES, len(tile))
        sketch.span(semaphores, ATOMIC, every, Span((0,), row, row + 1))
        # blocks of an output count themselves, from zero
        kernels = [memset(semaphores)]
    width, height, _ = plan.threads
    shared = 4 * width * height * len(results) if width > 32 or height > 1 else 0
    flops = flops_each * source.numel
    more: dict[str, Any] = {"rate": rate_of(source), "shared_bytes": shared}
    return [*kernels, sketch.kernel(f"reduce<{name}>", threads=plan.threads, flops=flops, **more)]


def without_dims(result: Operand, rank: int, dims: Sequence[int]) -> Operand:
    """Return the result of reducing ``dims`` of ``rank``, without the dimensions of size 1 that ``keepdim`` left in
    it.
    """
    if len(result.shape) < rank or rank == 0:
        return result
    reduced_dims = {d % rank for d in dims}
    return permute(result, [d for d in range(rank) if d not in reduced_dims])


def reduced_dims(call: Call, rank: int) -> list[int]:
    """Return the dimensions of ``dim`` (None or an empty list: all of them)."""
    dim = call.arguments.get("dim")
    if dim is None or dim == []:
        return list(range(rank))
    return [d % rank if rank else 0 for d in (dim if isinstance(dim, list | tuple) else [dim])]


_FLOPS = {"mean": 1, "linalg_vector_norm": 2, "norm": 2, "var": 4, "std": 4, "var_mean": 4, "std_mean": 4}


@models(
    "aten::sum", "aten::mean", "aten::prod", "aten::amax", "aten::amin", "aten::argmax", "aten::argmin", "aten::max",
    "aten::min", "aten::any", "aten::all", "aten::var", "aten::std", "aten::var_mean", "aten::std_mean", "aten::norm",
    "aten::linalg_vector_norm", "aten::nansum", "aten::nanmean", "aten::aminmax", "aten::count_nonzero",
    "aten::hash_tensor",
)  # fmt: skip
def reduce(call: Call, device: Device) -> list[Kernel]:
    """Any reduction over all or some dimensions; several results (values and indices, variance and mean) in one
    launch.
    """
    source = call["self"]
    rank = len(source.shape)
    dims = reduced_dims(call, rank)
    results = [without_dims(o, rank, dims) for o in call.outputs]
    name = short(call.op)
    if name in {"all", "any"} and source.numel == 1:  # recorded as a copy
        one = replace(source, shape=results[0].shape, strides=(1,) * len(results[0].shape))
        return [replace(k, name="memcpy<device to device>") for k in elementwise("copy_", [one], results, threads=1)]
    return reduction(name, source, results, dims if rank else [], device, flops_each=_FLOPS.get(name, 1))


@models("aten::logsumexp", "aten::_logsumexp")
def logsumexp(call: Call, device: Device) -> list[Kernel]:
    """Model what ATen composes (``logsumexp_out_impl``): maxima, of which infinite ones become 0; exponentials less
    the maxima, summed; their logarithm, to which the maxima are added.
    """
    source, out = call["self"], call.outputs[0]
    if source.numel == 0:
        return []
    rank = len(source.shape)
    dims = reduced_dims(call, rank)
    result = without_dims(out, rank, dims)
    full = tuple(1 if d in dims else n for d, n in enumerate(source.shape))

    def room(slot: int, *shape: int) -> Operand:
        return replace(scratch(slot, *shape, itemsize=source.itemsize), dtype=source.dtype)

    peaks, shifted = room(0, *full), room(1, *source.shape)
    flat, sizes, infinite = (
        without_dims(peaks, rank, dims),
        room(2, *result.shape),
        scratch(3, *result.shape, itemsize=1),
    )
    infinite = replace(infinite, dtype="bool")
    kernels = reduction("max", source, [flat], dims, device)
    kernels += elementwise("abs", [flat], [sizes])
    kernels += elementwise("eq", [sizes], [infinite])
    kernels += elementwise("masked_fill_", [flat, infinite], [flat])
    kernels += elementwise("sub", [source, peaks], [shifted])
    kernels += elementwise("exp_", [shifted], [shifted], flops_each=8)
    kernels += reduction("sum", shifted, [result], dims, device, staging=8)
    kernels += elementwise("log_", [result], [result], flops_each=8)
    return kernels + elementwise("add_", [result, flat], [result])


@models("aten::equal")
def equal(call: Call, device: Device) -> list[Kernel]:
    """Model one answer for the host: an element-wise comparison, a reduction of it, and its copy."""
    source, other = call["self"], call["other"]
    if source.shape != other.shape or source.numel == 0:
        return []
    same = scratch(0, *source.shape, itemsize=1)
    answer = scratch(1, itemsize=1)
    return [*elementwise("eq", [source, other], [same]), *reduce_all("all", same, answer, device), number_out(answer)]


def reduce_all(name: str, source: Operand, result: Operand, device: Device) -> list[Kernel]:
    """Model one number from everything; what a loss with ``reduction='mean'`` ends with."""
    return reduction(name, source, [replace(result, shape=(), strides=())], range(len(source.shape)), device)


def _plan_for(
    source: Operand,
    inner: tuple[int, ...],
    outer: tuple[int, ...],
    inputs: int,
    outputs: int,
    device: Device,
    vector: int,
) -> Plan:
    along = min((source.strides[d] for d in inner if source.shape[d] > 1), default=_FAR)
    across = next((source.strides[d] for d in reversed(outer) if source.shape[d] > 1), _FAR)
    row_wise = outputs == 1 or inputs == 1 or along < across
    dense = (along if row_wise else across) == 1
    return plan(outputs, inputs, device, row_wise=row_wise, dense=dense, itemsize=source.itemsize, vector=vector)


def _vector(name: str, itemsize: int) -> int:
    """``input_vec_size``: elements that a thread loads at once along a row."""
    if itemsize != _HALF_BYTES:
        return 4
    return {"sum": 8, "mean": 8, "var": 2, "std": 2, "var_mean": 2, "std_mean": 2}.get(name, 4)


def _read(
    sketch: Sketch,
    operand: Operand,
    dims: tuple[tuple[int, ...], tuple[int, ...]],
    chosen: Plan,
    owned: tuple[I64, I64, I64],
    inputs: int,
) -> None:
    """Every block reads its outputs' elements: all of them, or every ``splits``-th chunk; ``dims`` = (reduced,
    kept).
    """
    (inner, outer), (tile, lo, hi), splits = dims, owned, chosen.splits
    if splits == 1:
        sketch.span(operand, READ, tile, Span(outer, lo, hi))
        return
    unaligned = any(operand.strides[d] % chosen.vector for d in outer if operand.shape[d] > 1)
    if unaligned or operand.alignment < chosen.vector * operand.itemsize <= _ALIGNED:
        every = np.tile(tile, splits) + np.repeat(np.arange(splits), len(tile)) * len(tile)
        sketch.span(operand, READ, every, Span(outer, np.tile(lo, splits), np.tile(hi, splits)))
        return  # rows begin between vectors, and which block takes the elements before the first is not known
    period = chosen.chunk * splits
    flat = coalesce(permute(operand, inner))
    even = inputs // period * period if len(flat.shape) == 1 else 0
    if even:
        # The reduced elements lie at one stride: view them as (turn of the loop, block y, chunk) and cut that.
        own = permute(operand, outer)
        step = flat.strides[0]
        view = replace(
            operand,
            shape=(*own.shape, even // period, splits, chosen.chunk),
            strides=(*own.strides, period * step, chosen.chunk * step, step),
        )
        y = np.repeat(np.arange(splits), len(tile))
        outputs = Span(tuple(range(len(outer))), np.tile(lo, splits), np.tile(hi, splits))
        sketch.span(view, READ, np.tile(tile, splits) + y * len(tile), outputs, Span((len(outer) + 1,), y, y + 1))
    at = np.arange(even, inputs, chosen.chunk)
    y = at // chosen.chunk % splits
    outputs = Span(outer, np.repeat(lo, len(at)), np.repeat(hi, len(at)))
    reduced = Span(inner, np.tile(at, len(tile)), np.tile(np.minimum(at + chosen.chunk, inputs), len(tile)))
    sketch.span(operand, READ, (tile[:, None] + y * len(tile)).ravel(), outputs, reduced)


def _output_vector(outputs: int, itemsize: int) -> int:
    """Return outputs that a thread of a column reduction loads at once: at most 4, and a whole number of vectors in the
    row.
    """
    return next(v for v in (4, 2, 1) if outputs % v == 0 and v * itemsize <= 16)


def _floor_power(n: int, limit: int) -> int:
    return min(1 << max(int(n), 1).bit_length() - 1, limit)
