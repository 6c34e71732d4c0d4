"""Softmax and log-softmax, forward and backward.

Source: PyTorch's PersistentSoftmax.cuh and SoftMax.cu, from memory; rows of 1000 floats were recorded so on an H200
(PyTorch 2.11). Three kernels:

- last dimension, at most 1024 elements: a warp keeps one or two rows in registers ("persistent"), 128 threads
  per block;
- last dimension, longer: one block per row;
- another dimension: blocks of ``reduced x inner`` threads, a tile is a strip of the inner dimension.

ATen copies non-contiguous inputs first; here the kernel reads them where they lie.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tileprof.devices import Device
from tileprof.record.model.tile_model import Call, Kernel, Operand, models
from tileprof.record.model.tiles.elementwise.pointwise import elementwise, short
from tileprof.record.model.tiles.foundations.lines import inner_size, row_blocks, strips
from tileprof.record.model.tiles.foundations.sketch import blocks, rate_of, scratch
from tileprof.record.model.tiles.reductions.reduce import reduction, without_dims

PERSISTENT_LIMIT = 1024
"""Longest row that a warp holds in registers, in elements (``dim_size <= 1024 && row bytes <= 4096``)."""
_FORWARD_FLOPS, _BACKWARD_FLOPS = 12, 5
"""An element: maximum, subtract, exp (8), sum, divide; and multiply, sum, multiply, subtract, multiply."""


@models("aten::_safe_softmax")
def safe_softmax(call: Call, device: Device) -> list[Kernel]:
    """Softmax, and zeros where a whole line is minus infinity: compared, joined along the line, chosen."""
    source, out = call["self"], call.outputs[0]
    if out.numel == 0 or not out.shape:
        return rowwise("_safe_softmax", [source], out, call["dim"], _FORWARD_FLOPS)
    rank, dim = len(out.shape), call["dim"] % len(out.shape)
    plain, hidden = (scratch(n, *out.shape, itemsize=size) for n, size in enumerate((out.itemsize, 1)))
    plain = replace(plain, dtype=out.dtype)
    line = tuple(1 if d == dim else n for d, n in enumerate(out.shape))
    lines, zero = scratch(2, *line, itemsize=1), replace(scratch(3), dtype=out.dtype)
    kernels = rowwise("_safe_softmax", [source], plain, dim, _FORWARD_FLOPS)
    kernels += elementwise("isneginf", [source], [replace(hidden, dtype="bool")])
    kernels += reduction("all", hidden, [without_dims(lines, rank, [dim])], [dim], device, staging=8)
    kernels += elementwise("fill_", [], [zero], flops_each=0)
    return kernels + elementwise("where", [replace(lines, dtype="bool"), zero, plain], [out])


@models("aten::_softmax", "aten::_log_softmax")
def softmax(call: Call, _device: Device) -> list[Kernel]:
    """Every output row from the input row."""
    return rowwise(short(call.op), [call["self"]], call.outputs[0], call["dim"], _FORWARD_FLOPS)


@models("aten::_softmax_backward_data", "aten::_log_softmax_backward_data")
def softmax_backward(call: Call, _device: Device) -> list[Kernel]:
    """Every row of the gradient from the rows of the output and its gradient. Softmax multiplies these first, by a
    kernel of its own, and its rows are from the product and the output.
    """
    gradient, output, result = call["grad_output"], call["output"], call.outputs[0]
    kernels = []
    if call.op.startswith("aten::_softmax") and result.numel:
        product = replace(scratch(0, *gradient.shape, itemsize=gradient.itemsize), dtype=gradient.dtype)
        kernels, gradient = elementwise("mul", [gradient, output], [product]), product
    return kernels + rowwise(short(call.op), [gradient, output], result, call["dim"], _BACKWARD_FLOPS)


@models("aten::_masked_softmax")
def masked_softmax(call: Call, _device: Device) -> list[Kernel]:
    """Softmax whose mask hides elements; the mask is read like the input where it has its shape, else whole."""
    source, mask, out = call["self"], call["mask"], call.outputs[0]
    dim = -1 if call.arguments.get("dim") is None else call["dim"]
    if mask.shape == source.shape:
        return rowwise("_masked_softmax", [source, mask], out, dim, _FORWARD_FLOPS)
    kernels = rowwise("_masked_softmax", [source], out, dim, _FORWARD_FLOPS, whole=[mask])
    for kernel in kernels:
        kernel.coverage, kernel.note = "conservative", "every tile reads the whole mask"
    return kernels


def rowwise(
    name: str,
    reads: Sequence[Operand],
    out: Operand,
    dim: int,
    flops_each: float,
    *,
    whole: Sequence[Operand] = (),
) -> list[Kernel]:
    """Rows along ``dim`` of ``out``, each from the same rows of ``reads`` (equal shapes)."""
    if out.numel == 0:
        return []
    rank = len(out.shape)
    if rank == 0:
        return elementwise(name, reads, [out])
    dim %= rank
    size, inner = out.shape[dim], inner_size(out, dim)
    fields: dict[str, Any] = {"flops": flops_each * out.numel, "rate": rate_of(*reads)}
    if inner > 1:
        width, depth = _spatial_block(size, inner)
        return [strips(f"softmax_spatial<{name}>", reads, [out], dim, width, (depth, width, 1), whole=whole, **fields)]
    persistent = size <= PERSISTENT_LIMIT and size * out.itemsize <= 4096
    per_block, threads = _persistent_rows(size) if persistent else (1, (_block_threads(size, out.itemsize), 1, 1))
    kind = "softmax_warp" if persistent else "softmax_block"
    return [row_blocks(f"{kind}<{name}>", reads, [out], dim, per_block, threads, whole=whole, **fields)]


def _spatial_block(size: int, inner: int) -> tuple[int, int]:
    """``SpatialSoftMax_getBlockSize``: inner threads first; a long dimension beside few inner elements is shared."""
    inner_threads, dim_threads = min(inner, 1024), 1
    if inner_threads <= 64 and size >= 64:
        while dim_threads * 2 * inner_threads <= 1024 and dim_threads * 2 <= size:
            dim_threads *= 2
    return inner_threads, dim_threads


def _persistent_rows(size: int) -> tuple[int, tuple[int, int, int]]:
    """Return rows per block and its threads: warps (narrower below 32 elements) with two rows each up to 128
    elements.
    """
    power = 1 << max(size - 1, 0).bit_length()
    warp = min(power, 32)
    return 128 // warp * (2 if power <= 128 else 1), (warp, 128 // warp, 1)


def _block_threads(size: int, itemsize: int) -> int:
    """``SoftMaxForward_getBlockSize``: up to 1024 threads, whole warps, one vector of 16 bytes per thread and turn."""
    vectors = size * itemsize // 16
    return int(min(max(32, blocks(max(vectors, 1), 32) * 32), 1024))
