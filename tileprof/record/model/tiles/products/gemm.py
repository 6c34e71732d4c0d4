"""Matrix products of ATen: mm, addmm, bmm, baddbmm, addbmm, mv, addmv, addr, dot, int8 and fp8 products.

linear, matmul, einsum and the like decompose into these before or at dispatch. What cuBLAS cannot read, because neither
rows nor columns lie contiguously, is copied first. A bias is read in the epilogue. What is added otherwise is copied to
the results, which the product then adds to; it is not read when beta is 0.

Source: `Blas.cpp` of PyTorch 2.11 (``prepare_matrix_for_cublas``, ``addmm_out_cuda_impl``).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from tileprof.record.model.tile_model import Call, Kernel, Operand, Scratch, models
from tileprof.record.model.tiles.elementwise.pointwise import elementwise
from tileprof.record.model.tiles.foundations import regions
from tileprof.record.model.tiles.foundations.sketch import binding, is_contiguous, scratch
from tileprof.record.model.tiles.products import problem as problems
from tileprof.record.model.tiles.products.gemm_kernels import Product, as_batch, kernels
from tileprof.record.model.tiles.products.main_loop import flops
from tileprof.record.model.tiles.products.split_k import row_of_blocks
from tileprof.trace.footprint import READ, WRITE, Boxes, Footprint

if TYPE_CHECKING:
    from tileprof.devices import Device

_COPIES = 4
"""The first workspace of copies of operands."""
DOT_THREADS, DOT_ELEMENTS, DOT_BLOCKS = 128, 1024, 1024
"""A block of a dot product takes 1024 elements or more, so that at most 1024 partial sums remain for one block."""


@models("aten::mm", "aten::bmm", "aten::_int_mm")
def mm(call: Call, device: Device) -> list[Kernel]:
    """``self @ mat2``, of matrices or of batches."""
    product = Product(_batch(call["self"]), _batch(call["mat2"]), _batch(call.outputs[0]))
    op = problems.PLAIN if len(call.outputs[0].shape) == 2 else problems.BATCHES
    return with_copies(product, device, op, tf32=call.tf32)


@models("aten::addmm", "aten::addmm_", "aten::_addmm_activation")
def addmm(call: Call, device: Device) -> list[Kernel]:
    """``beta * self + alpha * mat1 @ mat2``, self broadcast; an activation costs nothing extra."""
    d = call.outputs[0]
    op = problems.BIAS if _as_bias(call) else problems.MATRIX
    product = Product(as_batch(call["mat1"]), as_batch(call["mat2"]), as_batch(d), _addend(call, d))
    return with_copies(product, device, op, tf32=call.tf32, in_place=call.op == "aten::addmm_")


@models("aten::baddbmm", "aten::baddbmm_")
def baddbmm(call: Call, device: Device) -> list[Kernel]:
    """``beta * self + alpha * batch1 @ batch2``, self broadcast."""
    d = call.outputs[0]
    product = Product(call["batch1"], call["batch2"], d, _addend(call, d))
    return with_copies(
        product, device, problems.BATCHES_AND_MATRIX, tf32=call.tf32, in_place=call.op == "aten::baddbmm_"
    )


@models("aten::addbmm", "aten::addbmm_")
def addbmm(call: Call, device: Device) -> list[Kernel]:
    """The sum over the batch: one product along batch * k, which is how ATen's loop of addmm calls adds up.

    Modelled batch by batch: the first reads self, each later one the result so far.
    """
    d = as_batch(call.outputs[0])
    a, b = call["batch1"], call["batch2"]
    launched = []
    for index in range(a.shape[0]):
        c = _addend(call, call.outputs[0]) if index == 0 else d
        product = Product(replace(a, shape=(1, *a.shape[1:])), replace(b, shape=(1, *b.shape[1:])), d, c)
        shifts = {0: index * a.strides[0] * a.itemsize, 1: index * b.strides[0] * b.itemsize}
        launched += [
            _shifted(kernel, shifts) if i == 0 else kernel for i, kernel in enumerate(kernels(product, device))
        ]
    return launched


@models("aten::mv")
def mv(call: Call, device: Device) -> list[Kernel]:
    """``self @ vec``: a product with one column."""
    product = Product(as_batch(call["self"]), _column(call["vec"]), _column(call.outputs[0]))
    return kernels(product, device, name="gemv")


@models("aten::addmv", "aten::addmv_")
def addmv(call: Call, device: Device) -> list[Kernel]:
    """``beta * self + alpha * mat @ vec``."""
    d = call.outputs[0]
    c = _column(regions.expand(call["self"], d.shape)) if call["beta"] != 0 else None
    return kernels(Product(as_batch(call["mat"]), _column(call["vec"]), _column(d), c), device, name="gemv")


@models("aten::addr", "aten::addr_")
def addr(call: Call, device: Device) -> list[Kernel]:
    """``beta * self + alpha * outer(vec1, vec2)``: a product of depth one."""
    d = call.outputs[0]
    row = replace(call["vec2"], shape=(1, 1, *call["vec2"].shape), strides=(0, 0, *call["vec2"].strides))
    return kernels(Product(_column(call["vec1"]), row, as_batch(d), _addend(call, d)), device, name="ger")


@models("aten::_scaled_mm")
def scaled_mm(call: Call, device: Device) -> list[Kernel]:
    """fp8 product with scales of the whole matrix or of rows and columns; finer scales are read whole."""
    d = call.outputs[0]
    scales = [call[name] for name in ("scale_a", "scale_b", "scale_result") if call[name] is not None]
    spread = [s for s in scales if len(s.shape) == 2 and s.numel > 1 and s.shape in ((d.shape[0], 1), (1, d.shape[1]))]
    c = as_batch(regions.expand(call["bias"], d.shape)) if call["bias"] is not None else None
    product = Product(
        as_batch(call["self"]), as_batch(call["mat2"]), as_batch(d), c,
        scales=tuple(as_batch(regions.expand(s, d.shape)) for s in spread),
        whole=tuple(s for s in scales if s not in spread),
    )  # fmt: skip
    return kernels(product, device, op=problems.SCALED)


@models("aten::dot", "aten::vdot")
def dot(call: Call, _device: Device) -> list[Kernel]:
    """Partial sums of runs by many blocks, then one block adds them; one launch where one block suffices."""
    a, b, d = *call.tensors[:2], call.outputs[0]
    run = max(DOT_ELEMENTS, -(-a.numel // DOT_BLOCKS))
    lo = np.arange(0, max(a.numel, 1), run)
    tiles, hi = np.arange(len(lo)), np.minimum(lo + run, a.numel)
    reads = [regions.linear_boxes(o, slot, READ, tiles, lo, hi, first=0, last=1) for slot, o in enumerate((a, b))]
    work = flops(a.dtype, a.numel)
    if len(lo) == 1:
        return [_dot_kernel("dot", [*reads, regions.whole(d, 2, WRITE, 0, first=1, last=1)], (a, b, d), 1, work)]
    partial = Operand((len(lo),), (1,), d.dtype, d.itemsize)
    workspace = Scratch(0, partial.numel * partial.itemsize)
    sums = [*reads, regions.linear_boxes(partial, 2, WRITE, tiles, tiles, tiles + 1, first=1, last=1)]
    last = [regions.whole(partial, 0, READ, 0, first=0, last=1), regions.whole(d, 1, WRITE, 0, first=1, last=1)]
    return [
        _dot_kernel("dot", sums, (a, b, workspace), len(lo), work),
        _dot_kernel("dot_reduce", last, (workspace, d), 1, len(lo)),
    ]


def _dot_kernel(
    name: str, parts: list[Boxes], operands: tuple[Operand | Scratch, ...], blocks: int, work: int
) -> Kernel:
    footprint = Footprint(row_of_blocks(blocks), Boxes.concat(parts))
    return Kernel(name, footprint, operands, (blocks, 1, 1), (DOT_THREADS, 1, 1), flops=work)


def with_copies(product: Product, device: Device, op: int, *, tf32: bool, in_place: bool = False) -> list[Kernel]:
    """Model a product behind the copies that it needs."""
    launched: list[Kernel] = []
    if product.c is not None and op != problems.BIAS:
        if not in_place:
            launched += elementwise("copy_", [product.c], [product.d], flops_each=0)
        product = replace(product, c=product.d)
    batches = op in {problems.BATCHES, problems.BATCHES_AND_MATRIX}
    copies_of_b, b = _as_read(product.b, 0, batches=batches)  # the first one of results that lie by rows
    copies_of_a, a = _as_read(product.a, 1, batches=batches)
    inner = kernels(replace(product, a=a, b=b), device, op=op, tf32=tf32)
    return (
        launched
        + copies_of_b
        + copies_of_a
        + [replace(k, operands=tuple(binding(o) if isinstance(o, Operand) else o for o in k.operands)) for k in inner]
    )


def _as_read(operand: Operand, number: int, *, batches: bool) -> tuple[list[Kernel], Operand]:
    """Return the launch that copies matrices which cuBLAS cannot read, and what is read then."""
    if _readable(operand, batches=batches):
        return [], operand
    copy = replace(scratch(_COPIES + number, *operand.shape, itemsize=operand.itemsize), dtype=operand.dtype)
    return elementwise("contiguous", [operand], [copy], flops_each=0), copy


def _readable(operand: Operand, *, batches: bool) -> bool:
    """Return whether cuBLAS reads matrices as they are: one side contiguous, and the other one without overlap."""
    _, rows, columns = operand.shape
    _, row, column = operand.strides
    if (column == 1 and row >= max(1, columns)) or (row == 1 and column >= max(1, rows)):
        return True
    if batches:
        return is_contiguous(operand) and 0 not in (row, column)
    by_rows = (columns == 1 or column == 1) and (rows == 1 or row == columns)
    by_columns = (rows == 1 or row == 1) and (columns == 1 or column == rows)
    return operand.numel == 0 or by_rows or by_columns


def _as_bias(call: Call) -> bool:
    """Return whether the epilogue adds ``self``: cuBLASLt takes a vector as it is, and no product with one element per
    row or column of ``mat2``.
    """
    bias, (depth, columns) = call["self"], call["mat2"].shape
    whole = bias.shape == (columns,) and (bias.strides == (1,) or columns == 1) and call["beta"] == 1
    return bool(whole and depth > 1 and columns > 1)


def _batch(operand: Operand) -> Operand:
    return operand if len(operand.shape) == 3 else as_batch(operand)


def _column(vector: Operand) -> Operand:
    return replace(vector, shape=(1, *vector.shape, 1), strides=(0, *vector.strides, 0))


def _addend(call: Call, d: Operand) -> Operand | None:
    return _batch(regions.expand(call["self"], d.shape)) if call["beta"] != 0 else None


def _shifted(kernel: Kernel, shifts: dict[int, int]) -> Kernel:
    for slot, shift in shifts.items():
        kernel.footprint.boxes.offset[kernel.footprint.boxes.operand == slot] += shift
    return kernel
