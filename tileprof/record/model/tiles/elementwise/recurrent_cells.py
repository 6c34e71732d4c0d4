"""Fused cells of recurrent networks: what follows the two matrix products of a time step.

Source: PyTorch's `RNN.cu`: one thread per element of the hidden state with all its gates; a reduction per bias follows
the backward kernel.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tileprof.devices import Device
from tileprof.record.model.tile_model import Call, Kernel, Operand, models
from tileprof.record.model.tiles.foundations.sketch import READ, WRITE, Sketch, Span, blocks, part, ranges, rate_of
from tileprof.record.model.tiles.reductions.reduce import reduction

THREADS = 512
_LSTM_FLOPS, _GRU_FLOPS = 60, 45


@models("aten::_thnn_fused_lstm_cell")
def lstm_cell(call: Call, _device: Device) -> list[Kernel]:
    """Hidden and cell state, and the gates kept for the gradient, from both products' gates."""
    hy, cy, workspace = call.outputs
    gated = [(o, READ) for o in _gates(call)] + [(workspace, WRITE)]
    return _cell("lstm_cell", [(call["cx"], READ), (hy, WRITE), (cy, WRITE)], gated, _LSTM_FLOPS)


@models("aten::_thnn_fused_gru_cell")
def gru_cell(call: Call, _device: Device) -> list[Kernel]:
    """The hidden state, and five numbers per unit kept for the gradient."""
    hy, workspace = call.outputs
    gated = [(o, READ) for o in _gates(call)] + [(workspace, WRITE)]
    return _cell("gru_cell", [(call["hx"], READ), (hy, WRITE)], gated, _GRU_FLOPS)


@models("aten::_thnn_fused_lstm_cell_backward_impl")
def lstm_cell_backward(call: Call, device: Device) -> list[Kernel]:
    """Gradients of the gates, of the cell state, and of the biases, which have the same."""
    gates, cell, bias = call.outputs
    states = [(o, READ) for o in (call["grad_hy"], call["grad_cy"], call["cx"], call["cy"]) if o is not None]
    gated = [(call["workspace"], READ), (gates, WRITE)]
    kernels = _cell("lstm_cell_backward", [*states, (cell, WRITE)], gated, _LSTM_FLOPS)
    return kernels + _bias_gradients(call, [(gates, bias)], device)


@models("aten::_thnn_fused_gru_cell_backward")
def gru_cell_backward(call: Call, device: Device) -> list[Kernel]:
    """Gradients of both products' gates, of the hidden state and of both biases."""
    input_gradient, hidden, state = call.outputs[:3]
    gated = [(call["workspace"], READ), (input_gradient, WRITE), (hidden, WRITE)]
    kernels = _cell("gru_cell_backward", [(call["grad_hy"], READ), (state, WRITE)], gated, _GRU_FLOPS)
    return kernels + _bias_gradients(call, zip((input_gradient, hidden), call.outputs[3:], strict=True), device)


def _bias_gradients(call: Call, pairs: Iterable[tuple[Operand, Operand]], device: Device) -> list[Kernel]:
    """Sum the gradients of gates over the batch."""
    if not call["has_bias"]:
        return []
    sums = [reduction("sum", gates, [bias], [0], device, staging=n) for n, (gates, bias) in enumerate(pairs)]
    return [kernel for kernels in sums for kernel in kernels]


def _gates(call: Call) -> list[Operand]:
    biases = (call.arguments.get("input_bias"), call.arguments.get("hidden_bias"))
    return [call["input_gates"], call["hidden_gates"], *(b for b in biases if b is not None)]


def _cell(
    name: str, states: Sequence[tuple[Operand, int]], gated: Sequence[tuple[Operand, int]], flops_each: float
) -> list[Kernel]:
    """``states`` are (batch, hidden); ``gated`` (batch, gates x hidden), or (gates x hidden) for a bias."""
    batch, hidden = states[0][0].shape
    total = batch * hidden
    if total == 0:
        return []
    sketch = Sketch(blocks(total, THREADS))
    tile, lo, hi = ranges(total, THREADS)
    for operand, mode in gated:
        step = operand.strides[-1]
        rows = operand.strides[0] if len(operand.shape) == 2 else 0
        view = part(operand, (batch, operand.shape[-1] // hidden, hidden), (rows, hidden * step, step))
        sketch.span(view, mode, tile, Span((0, 2), lo, hi))
    for operand, mode in states:
        sketch.span(operand, mode, tile, Span((0, 1), lo, hi))
    return [sketch.kernel(name, threads=THREADS, flops=flops_each * total, rate=rate_of(states[0][0]), registers=40)]
