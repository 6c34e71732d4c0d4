"""Losses: negative log likelihood, and element-wise losses with their reduction.

Source: PyTorch's NLLLoss.cu and Loss.cu (from memory, not checked against a version). The reduced negative log
likelihood is one thread block that picks one number per row; its gradient zeroes everything, then
one block writes one number per row.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tileprof.devices import Device
from tileprof.record.model.tile_model import Call, Kernel, Operand, models
from tileprof.record.model.tiles.elementwise.pointwise import elementwise, short
from tileprof.record.model.tiles.foundations.index_values import positions, recorded_values, without_values
from tileprof.record.model.tiles.foundations.sketch import READ, WRITE, Sketch, blocks, rate_of, scratch
from tileprof.record.model.tiles.reductions.reduce import reduce_all

_ROWS_UNREDUCED = 512
"""Rows of a block where every row keeps its loss: one per thread."""


@models(
    "aten::mse_loss", "aten::smooth_l1_loss", "aten::huber_loss", "aten::binary_cross_entropy", "aten::l1_loss",
    "aten::soft_margin_loss",
)  # fmt: skip
def element_loss(call: Call, device: Device) -> list[Kernel]:
    """An element-wise launch and, unless the losses stay apart, a full reduction of it."""
    source, out = call["self"], call.outputs[0]
    reads = [o for o in (source, call["target"], call.arguments.get("weight")) if o is not None]
    if call["reduction"] == 0:
        return elementwise(short(call.op), reads, [out], flops_each=3)
    each = scratch(0, *np.broadcast_shapes(source.shape, call["target"].shape))
    return elementwise(short(call.op), reads, [each], flops_each=3) + reduce_all("sum", each, out, device)


@models("aten::nll_loss_forward", "aten::nll_loss2d_forward", data_dependent=True)
def nll_loss(call: Call, _device: Device) -> list[Kernel]:
    """Picks the target's entry of every row; targets equal to ``ignore_index`` pick none."""
    source, target, weight = call["self"], call["target"], call["weight"]
    out, total = call.outputs
    reduced = call["reduction"] != 0
    rows = target.numel
    if out.numel == 0:
        return []
    chunk = max(rows, 1) if reduced else _ROWS_UNREDUCED
    sketch = Sketch(blocks(max(rows, 1), chunk))
    row = np.arange(rows)
    tile = row // chunk
    sketch.elements(target, READ, tile, positions(target))
    picked = _target_positions(call, source)
    _pick(sketch, source, picked, tile, row)
    if weight is not None:
        _pick(sketch, weight, _classes(call, weight.strides[0]), tile, row)
    kernels: list[Kernel] = []
    if reduced:
        sketch.whole(out, WRITE)
        sketch.whole(total, WRITE)
    else:
        sketch.elements(out, WRITE, tile, positions(out))
        kernels = elementwise("zero_", [], [total], flops_each=0)
    uncertainty = {} if picked is not None else without_values("every tile reads the whole input")
    threads = min(1024, max(32, rows)) if reduced else _ROWS_UNREDUCED
    return [
        *kernels,
        sketch.kernel("nll_loss_forward", threads=threads, flops=2 * rows, rate=rate_of(source), **uncertainty),
    ]


@models("aten::nll_loss_backward", "aten::nll_loss2d_backward", data_dependent=True)
def nll_loss_backward(call: Call, _device: Device) -> list[Kernel]:
    """Zeros, then one number per row at its target."""
    target, weight, out = call["target"], call["weight"], call.outputs[0]
    rows = target.numel
    if out.numel == 0:
        return []
    reduced = call["reduction"] != 0
    chunk = max(rows, 1) if reduced else _ROWS_UNREDUCED
    sketch = Sketch(blocks(max(rows, 1), chunk))
    row = np.arange(rows)
    tile = row // chunk
    gradient = call["grad_output"]
    sketch.whole(gradient, READ) if gradient.numel == 1 else sketch.elements(gradient, READ, tile, positions(gradient))
    sketch.elements(target, READ, tile, positions(target))
    if weight is not None:
        _pick(sketch, weight, _classes(call, weight.strides[0]), tile, row)
    if reduced:
        sketch.whole(call["total_weight"], READ)
    picked = _target_positions(call, out)
    _pick(sketch, out, picked, tile, row, WRITE)
    uncertainty = {} if picked is not None else without_values("every tile writes the whole gradient")
    kernel = sketch.kernel("nll_loss_backward", threads=min(1024, max(32, rows)), flops=2 * rows, **uncertainty)
    return [*elementwise("zero_", [], [out], flops_each=0), kernel]


def _classes(call: Call, stride: int) -> NDArray[np.int64] | None:
    """``stride`` times the class of every row, -1 for ignored rows; None when the targets are unknown."""
    classes = recorded_values(call, call["target"])
    if classes is None:
        return None
    classes = classes.ravel()
    return np.where(classes == call["ignore_index"], -1, classes * stride)


def _target_positions(call: Call, operand: Operand) -> NDArray[np.int64] | None:
    """Return where in ``operand``, laid out as the loss's input, each row's own class stands; -1: nowhere."""
    if len(operand.shape) == 1:  # one row without a batch
        return _classes(call, operand.strides[0])
    classes = _classes(call, 1)
    if classes is None:
        return None
    strides = (operand.strides[0], *operand.strides[2:])
    row = (
        positions(Operand(call["target"].shape, strides, "int64", 8)) if call["target"].shape else np.zeros(1, np.int64)
    )
    return np.where(classes < 0, -1, row + classes * operand.strides[1])


def _pick(
    sketch: Sketch,
    operand: Operand,
    picked: NDArray[np.int64] | None,
    tile: NDArray[np.int64],
    row: NDArray[np.int64],
    mode: int = READ,
) -> None:
    if picked is None:
        sketch.whole(operand, mode)
    else:
        has_target = picked[row] >= 0
        sketch.elements(operand, mode, tile[has_target], picked[has_target])
