"""Layers of recurrent networks as cuDNN launches them, forward: ``aten::_cudnn_rnn``.

| launches of a layer and direction | where |
|---|---|
| a product of all steps with the weights of the input (several layers: of every quarter of the steps) | always |
| per step: a product with the weights of the hidden state, then the cell, a thread per unit | large layers, bfloat16 |
| (GRU: the bias,) one launch of all steps, a block per sequence | float32 and float16, few units |

The input is copied if it does not lie by time. Weights of bfloat16 are copied to a buffer of zeros first. Several
layers of one direction run as a wave, a layer a quarter of the steps behind the one before it, and all of them write
into the output, one over the other. Directions run on streams of their own: here their steps alternate, layer by layer.
Products take the kernels that cuBLAS would.

Source: launches of layers of 64 to 512 units, recorded on an H200 (PyTorch 2.11, cuDNN 9.19); the limits of units are
``use_rnn_persist_small_h`` of PyTorch's `RNN.cpp`. Not modelled: kernels of a whole layer for some layers of float16
with more units.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tileprof.record.model.tile_model import Call, Kernel, Operand, Scratch, models
from tileprof.record.model.tiles.elementwise.pointwise import contiguous, driver_copy, elementwise
from tileprof.record.model.tiles.foundations.regions import permute
from tileprof.record.model.tiles.foundations.sketch import (
    READ,
    WRITE,
    Part,
    Sketch,
    Span,
    binding,
    blocks,
    narrow,
    part,
    ranges,
    rate_of,
    scratch,
    select,
)
from tileprof.record.model.tiles.products import gemm
from tileprof.record.model.tiles.products import problem as problems
from tileprof.record.model.tiles.products.gemm_kernels import Product, as_batch

if TYPE_CHECKING:
    from tileprof.devices import Device

_LSTM, _GRU = 2, 3
_GATES: Final = {0: 1, 1: 1, _LSTM: 4, _GRU: 3}
_MOST_UNITS: Final = {0: 384, 1: 384, _LSTM: 192, _GRU: 192}
"""Units up to which one launch goes through all steps."""
_STEP_NS: Final = {0: 490.0, 1: 490.0, _LSTM: 980.0, _GRU: 890.0}
"""A step of that launch: 16 steps of 64 units took 7.8, 15.7 and 14.2 us."""
_CELL_NS: Final = {0: 250.0, 1: 250.0, _LSTM: 1000.0, _GRU: 750.0}
"""What a cell waits for beside its launch: cells took 1.2, 2.0 and 1.7 us."""
_FLOPS: Final = {0: 12, 1: 12, _LSTM: 60, _GRU: 45}
_THREADS = 256
_CHUNKS = 4
"""Parts of the steps in which a layer follows the one before it."""
_SOURCE, _WEIGHTS, _LAYER, _FROM_INPUT, _PLACE = 100, 101, 102, 104, 106
"""Scratch slots: a dense input, weights, results of layers (two in turn), by direction gates of the input, and by layer
and direction gates of the state and states of cells.
"""


@dataclass(frozen=True, slots=True)
class _Direction:
    """A direction of a layer: ``[steps, batch, features]``, weights as ``[gates * units, features]``."""

    number: int
    place: int
    """Its number among the directions of all layers."""
    mode: int
    source: Operand
    out: Part
    weights: tuple[Operand, Operand]
    biases: tuple[Operand, ...]
    states: tuple[Operand, ...]
    """Of ``[batch, units]``, before the first step: hidden, and that of cells."""
    last: tuple[Operand, ...]
    """The same after the last step."""

    @property
    def gates(self) -> tuple[Operand, Operand]:
        """Workspaces of both products' results."""
        (steps, batch, units), wide = self.out.shape, self.weights[0].shape[0]
        assert wide == units * _GATES[self.mode]
        itemsize = self.source.itemsize
        return (
            scratch(_FROM_INPUT + self.number, steps * batch, wide, itemsize=itemsize),
            scratch(_PLACE + 2 * self.place, batch, wide, itemsize=itemsize),
        )

    def in_order(self) -> Iterator[int]:
        """Yield the steps as they are computed."""
        steps = range(self.out.shape[0])
        return iter(reversed(steps) if self.number else steps)


@models("aten::_cudnn_rnn")
def recurrent_layers(call: Call, device: Device) -> list[Kernel]:
    """All layers, one after another, and both directions of each."""
    source, out, mode = call["input"], call.outputs[0], call["mode"]
    if out.numel == 0:
        return []
    if call["batch_first"]:
        source, out = (permute(o, (1, 0, 2)) for o in (source, out))
    launched, source = contiguous(source, _SOURCE)
    copies, weights = _gathered(call["weight"])
    launched += copies
    directions, per = 1 + bool(call["bidirectional"]), call["weight_stride0"]
    units = call["hidden_size"]
    given = [o for o in (call["hx"], call["cx"]) if o is not None]
    results = call.outputs[1 : 1 + len(given)]
    layers = []
    for layer in range(call["num_layers"]):
        in_place = directions == 1 or layer == call["num_layers"] - 1
        shape = (*out.shape[:2], directions * units)
        target: Operand = out if in_place else _of_type(scratch(_LAYER + layer % 2, *shape, itemsize=out.itemsize), out)
        both = []
        for n in range(directions):
            place = layer * directions + n
            input_weight, state_weight, *biases = weights[per * place : per * (place + 1)]
            both.append(
                _Direction(
                    n, place, mode, source, narrow(target, 2, n * units, units), (input_weight, state_weight),
                    tuple(biases), *(tuple(select(o, 0, place) for o in some) for some in (given, results)),
                )
            )  # fmt: skip
        layers.append(both)
        source = target
    if directions == 1 and len(layers) > 1 and not _is_at_once(layers[0][0]):
        launched += _wave([layer for (layer,) in layers], device)
    else:
        launched += [kernel for layer in layers for kernel in _layer(layer, device)]
    return [
        replace(k, operands=tuple(binding(o) if isinstance(o, Operand) else o for o in k.operands)) for k in launched
    ]


def _of_type(workspace: Part, like: Operand) -> Part:
    return replace(workspace, dtype=like.dtype)


def _gathered(weights: Sequence[Operand]) -> tuple[list[Kernel], Sequence[Operand]]:
    """Return launches that copy weights of bfloat16 to one buffer, and the weights that are read then; others lie in
    one already.
    """
    if weights[0].dtype != "bfloat16":
        return [], weights
    buffer = replace(scratch(_WEIGHTS, sum(w.numel for w in weights), itemsize=weights[0].itemsize), dtype="bfloat16")
    launched, copies, begin = elementwise("zero_", [], [buffer], flops_each=0), [], 0
    for weight in weights:
        strides = (weight.shape[1], 1) if len(weight.shape) == 2 else (1,)
        copies.append(part(buffer, weight.shape, strides, begin))
        launched.append(driver_copy(weight, copies[-1]))
        begin += weight.numel
    return launched, copies


def _is_at_once(direction: _Direction) -> bool:
    units = direction.out.shape[2]
    return direction.source.dtype != "bfloat16" and units <= _MOST_UNITS[direction.mode]


def _layer(both: Sequence[_Direction], device: Device) -> list[Kernel]:
    """Return a layer's launches, all steps of it."""
    steps = both[0].out.shape[0]
    if _is_at_once(both[0]):
        return [kernel for d in both for kernel in (*_of_input(d, 0, steps, device), *_at_once(d))]
    launched = [kernel for d in both for kernel in _of_input(d, 0, steps, device)]
    before = [d.states for d in both]
    for now in zip(*(d.in_order() for d in both), strict=True):
        for n, (direction, step) in enumerate(zip(both, now, strict=True)):
            kernels, before[n] = _step(direction, step, before[n], device)
            launched += kernels
    return launched


def _wave(layers: Sequence[_Direction], device: Device) -> list[Kernel]:
    """Return the launches of several layers of one direction."""
    steps = layers[0].out.shape[0]
    size = blocks(steps, _CHUNKS)
    chunks = blocks(steps, size)
    before = [layer.states for layer in layers]
    launched: list[Kernel] = []
    for wave in range(chunks + len(layers) - 1):
        for n, layer in enumerate(layers):
            if not 0 <= wave - n < chunks:
                continue
            begin, end = (wave - n) * size, min((wave - n + 1) * size, steps)
            launched += _of_input(layer, begin, end, device)
            for step in range(begin, end):
                kernels, before[n] = _step(layer, step, before[n], device)
                launched += kernels
    return launched


def _of_input(direction: _Direction, begin: int, end: int, device: Device) -> list[Kernel]:
    """Return the product of some steps of the input."""
    source, gates = direction.source, direction.gates[0]
    _, batch, features = source.shape
    wide = gates.shape[1]
    rows = part(source, ((end - begin) * batch, features), (features, 1), begin * batch * features)
    target = part(gates, ((end - begin) * batch, wide), (wide, 1), begin * batch * wide)
    return _product(rows, direction.weights[0], target, device)


def _step(
    direction: _Direction, step: int, before: tuple[Operand, ...], device: Device
) -> tuple[list[Kernel], tuple[Operand, ...]]:
    """Return the launches of a step, and the states after it."""
    product = _product(before[0], direction.weights[1], direction.gates[1], device)
    kernel, after = _cell(direction, step, before)
    return [*product, kernel], after


def _product(rows: Operand, weight: Operand, target: Operand, device: Device) -> list[Kernel]:
    """Return the launches of ``target = rows @ weight.T``."""
    operands = (rows, permute(weight, (1, 0)), target)
    begins = {_memory(o): o.begin * o.itemsize if isinstance(o, Part) else 0 for o in operands}
    a, b, d = (as_batch(_from_begin(operand)) for operand in operands)
    launched = []
    for kernel in gemm.with_copies(Product(a, b, d), device, problems.PLAIN, tf32=True):
        by_slot = np.array([begins.get(_memory(o), 0) for o in kernel.operands])
        boxes = kernel.footprint.boxes
        boxes = replace(boxes, offset=boxes.offset + by_slot[boxes.operand])
        launched.append(replace(kernel, footprint=replace(kernel.footprint, boxes=boxes)))
    return launched


def _memory(operand: Operand | Scratch) -> int:
    """Return what identifies the memory of an operand: its ``ref``, negative for a workspace."""
    return -1 - operand.slot if isinstance(operand, Scratch) else operand.ref


def _from_begin(operand: Operand) -> Operand:
    """Return a view as if it began where its memory does: products know no other."""
    if not isinstance(operand, Part):
        return operand
    begin = operand.begin * operand.itemsize
    return replace(operand, begin=0, alignment=min(operand.alignment, begin & -begin) if begin else operand.alignment)


def _cell(direction: _Direction, step: int, before: tuple[Operand, ...]) -> tuple[Kernel, tuple[Operand, ...]]:
    """Return the launch that computes a step's states from both products, and these states."""
    batch, units = direction.out.shape[1:]
    gates = _GATES[direction.mode]
    final = step == (0 if direction.number else direction.out.shape[0] - 1)
    hidden: Operand = select(direction.out, 0, step)
    cells = direction.last[1:] if final else (_cells(direction),)
    after: tuple[Operand, ...] = (hidden, *(cells if direction.mode == _LSTM else ()))
    sketch = Sketch(blocks(batch * units, _THREADS))
    tile, lo, hi = ranges(batch * units, _THREADS)
    from_input, from_state = direction.gates
    of_step = part(from_input, (batch, gates, units), (gates * units, units, 1), step * batch * gates * units)
    for operand in (of_step, part(from_state, (batch, gates, units), (gates * units, units, 1))):
        sketch.span(operand, READ, tile, Span((0, 2), lo, hi))
    for bias in direction.biases:
        sketch.whole(bias, READ)
    read = before[1:] if direction.mode == _LSTM else before if direction.mode == _GRU else ()
    written = (*after, *(direction.last[:1] if final else ()))
    for mode, operands in ((READ, read), (WRITE, written)):
        for state in operands:
            sketch.span(state, mode, tile, Span((0, 1), lo, hi))
    flops, rate = _FLOPS[direction.mode] * batch * units, rate_of(from_input)
    fields: dict[str, Any] = {"flops": flops, "rate": rate, "chain_ns": _CELL_NS[direction.mode]}
    kernel = sketch.kernel("recurrent_cell", threads=_THREADS, loads_first=True, **fields)
    return kernel, after


def _cells(direction: _Direction) -> Operand:
    return scratch(_PLACE + 2 * direction.place + 1, *direction.out.shape[1:], itemsize=direction.source.itemsize)


def _at_once(direction: _Direction) -> list[Kernel]:
    """Return the launch whose blocks go through all steps of a sequence each, behind that of a GRU's bias."""
    steps, batch, units = direction.out.shape
    wide = units * _GATES[direction.mode]
    from_input = direction.gates[0]
    launched: list[Kernel] = []
    if direction.mode == _GRU:
        threads = 3 * _THREADS  # three numbers per thread
        add = Sketch(blocks(from_input.numel, threads))
        tile, lo, hi = ranges(from_input.numel, threads)
        for mode in (READ, WRITE):
            add.span(from_input, mode, tile, Span((0, 1), lo, hi))
        for bias in direction.biases:
            add.whole(bias, READ)
        launched.append(add.kernel("recurrent_bias", threads=_THREADS, flops=from_input.numel))
    sketch = Sketch(batch)
    tile = np.arange(batch)
    own = Span((1,), tile, tile + 1)
    sketch.span(part(from_input, (steps, batch, wide), (batch * wide, wide, 1)), READ, tile, own)
    for operand in (direction.weights[1], *direction.biases):
        sketch.whole(operand, READ)
    for mode, operands in ((READ, direction.states), (WRITE, direction.last)):
        for operand in operands:
            sketch.span(operand, mode, tile, Span((0,), tile, tile + 1))
    sketch.span(direction.out, WRITE, tile, own)
    flops = steps * batch * units * (2 * wide + _FLOPS[direction.mode])
    fields: dict[str, Any] = {"flops": flops, "rate": rate_of(from_input), "chain_ns": steps * _STEP_NS[direction.mode]}
    return [*launched, sketch.kernel("recurrent_layer", threads=min(wide, 1024), **fields)]
