"""Layer norm and RMS norm, forward and backward.

Source: PyTorch's layer_norm_kernel.cu, from memory; recorded so on an H200 (PyTorch 2.11). Forward and input gradient:
one block per row. Where rows cannot be loaded as vectors of four elements, the forward pass is two launches: moments of
each row, then the rows. Weight and bias gradients: a block owns 32 columns and walks all rows; with few columns and
more than 64 Ki rows ATen splits the rows as well, which is not modelled.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tileprof.devices import Device
from tileprof.record.model.tile_model import Call, Kernel, Operand, models
from tileprof.record.model.tiles.elementwise.pointwise import contiguous, short
from tileprof.record.model.tiles.foundations.sketch import READ, WRITE, Sketch, Span, blocks, ranges, rate_of, scratch

FORWARD_THREADS = (32, 4, 1)
VECTOR = 4
"""Elements that a thread of the forward kernel loads at once."""
LONGEST = 1 << 24
"""Elements of a row that the vectorised kernel can count in float32."""
_STATISTICS = 1
"""The first workspace of statistics in float32, behind that of a copy."""
MOMENT_THREADS, SCALE_THREADS = 512, 256
"""Threads per block of the two kernels that load single elements."""
COLUMNS = 32
"""Columns of a block of the weight-gradient kernel: one warp wide."""
_WARPS, _MOST_WARPS = ((64, 1), (128, 8), (256, 16)), 32
"""Warps of such a block for fewer rows than a number, and for more."""


@models("aten::native_layer_norm", "aten::_fused_rms_norm")
def layer_norm(call: Call, _device: Device) -> list[Kernel]:
    """Rows in, rows out, with mean and reciprocal deviation where the caller gets them."""
    source = call["input"]
    inner = len(call["normalized_shape"])
    vectors = [o for o in (call.arguments.get("weight"), call.arguments.get("bias")) if o is not None]
    out, *statistics = call.outputs
    copies, source = contiguous(source)
    name = short(call.op)
    if _vectorised([source, out, *vectors], inner):
        return copies + _rows(name, [source], vectors, [out], statistics, inner, flops_each=8)
    # A CPU keeps them in the type of the rows, a GPU in float32.
    wide = [scratch(n, o.numel) if o.itemsize < 4 else o for n, o in enumerate(statistics, _STATISTICS)]
    both = statistics + [w for w, o in zip(wide, statistics, strict=True) if w is not o]
    moments = _rows(name, [source], [], [], both, inner, flops_each=3, kind="row_moments", threads=MOMENT_THREADS)
    scaled = _rows(
        name, [source], vectors, [out], [], inner, flops_each=5, row_statistics=wide, kind="scaled_rows",
        threads=SCALE_THREADS,
    )  # fmt: skip
    return copies + moments + scaled


def _vectorised(operands: Sequence[Operand], inner: int) -> bool:
    """Return whether rows and vectors are loaded as vectors; the first operand has the rows."""
    source = operands[0]
    length = int(np.prod(source.shape[len(source.shape) - inner :], dtype=np.int64))
    aligned = all(o.alignment >= min(VECTOR * o.itemsize, 16) for o in operands)
    return aligned and length % VECTOR == 0 and length <= LONGEST and source.dtype != "float64"


@models("aten::native_layer_norm_backward", "aten::_fused_rms_norm_backward")
def layer_norm_backward(call: Call, _device: Device) -> list[Kernel]:
    """The input's gradient row by row, then the weight's and bias's column by column; ``output_mask`` says which."""
    name = short(call.op)
    inner = len(call["normalized_shape"])
    statistics = [o for o in (call.arguments.get("mean"), call.arguments.get("rstd")) if o is not None]
    weight = call.arguments.get("weight")
    copies, inputs = [], []
    for slot, operand in enumerate((call["grad_out"], call["input"])):
        copy, dense = contiguous(operand, slot)
        copies += copy
        inputs.append(dense)
    mask = call["output_mask"]
    outputs = iter(call.outputs)
    # Gradients that are not asked for are not returned at all.
    gradient_of = [next(outputs, None) if on else None for on in mask]
    kernels: list[Kernel] = copies
    if gradient_of[0] is not None:
        vectors = [weight] if weight is not None else []
        kernels += _rows(name, inputs, vectors, [gradient_of[0]], [], inner, flops_each=12, row_statistics=statistics)
    gradients = [g for g in gradient_of[1:] if g is not None]
    if gradients and gradients[0].numel:
        kernels.append(_columns(name, inputs, statistics, gradients, inner))
    return kernels


def _rows(
    name: str,
    reads: Sequence[Operand],
    vectors: Sequence[Operand],
    writes: Sequence[Operand],
    statistics: Sequence[Operand],
    inner: int,
    *,
    flops_each: float,
    row_statistics: Sequence[Operand] = (),
    kind: str = "rows",
    threads: int | tuple[int, int, int] = FORWARD_THREADS,
) -> list[Kernel]:
    """Model one block per row of ``reads`` and ``writes``; ``vectors`` as long as a row; statistics one number
    per row.
    """
    source = reads[0]
    if source.numel == 0:
        return []
    outer = tuple(range(len(source.shape) - inner))
    rows = int(np.prod([source.shape[d] for d in outer], dtype=np.int64))
    sketch = Sketch(rows)
    tile, lo, hi = ranges(rows, 1)
    for operand, mode in [(r, READ) for r in reads] + [(w, WRITE) for w in writes]:
        sketch.span(operand, mode, tile, Span(outer, lo, hi))
    for operand in vectors:
        sketch.whole(operand, READ)
    for operand, mode in [(s, READ) for s in row_statistics] + [(s, WRITE) for s in statistics]:
        if operand.numel:
            sketch.span(operand, mode, tile, Span(tuple(range(len(operand.shape))), lo, hi))
    flops = flops_each * source.numel
    return [sketch.kernel(f"{kind}<{name}>", threads=threads, flops=flops, rate=rate_of(source))]


def _columns(
    name: str, reads: Sequence[Operand], statistics: Sequence[Operand], gradients: Sequence[Operand], inner: int
) -> Kernel:
    """A block of 32 columns sums all rows of the output's gradient and of the normalised input."""
    columns = gradients[0].numel
    sketch = Sketch(blocks(columns, COLUMNS))
    tile, lo, hi = ranges(columns, COLUMNS)
    rank = len(reads[0].shape)
    for operand in reads:
        sketch.span(operand, READ, tile, Span(tuple(range(rank - inner, rank)), lo, hi))
    for operand in statistics:
        sketch.whole(operand, READ)
    for operand in gradients:
        sketch.span(operand, WRITE, tile, Span(tuple(range(inner)), lo, hi))
    flops = 5 * reads[0].numel
    rows = reads[0].numel // columns
    high = next((warps for most, warps in _WARPS if rows < most), _MOST_WARPS)
    return sketch.kernel(f"columns<{name}>", threads=(COLUMNS, high, 1), flops=flops, rate=rate_of(*reads))
