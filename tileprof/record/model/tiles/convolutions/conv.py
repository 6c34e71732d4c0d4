"""Convolutions of ATen, forward and backward, in one to three dimensions, transposed and grouped.

Two kernels serve all: `conv_kernels` gathers source pixels for results (the forward pass and the input's gradient,
each for both directions), `conv_weight_kernels` reduces over pixels (the weight's gradient). The bias's gradient is
ATen's sum.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tileprof.record.model.tile_model import Call, Kernel, Operand, models
from tileprof.record.model.tiles.convolutions import conv_kernels, conv_weight_kernels
from tileprof.record.model.tiles.convolutions.conv_kernels import Window
from tileprof.record.model.tiles.convolutions.conv_weight_kernels import WeightGradient
from tileprof.record.model.tiles.convolutions.windows import Axis
from tileprof.record.model.tiles.reductions.reduce import reduction

if TYPE_CHECKING:
    from tileprof.devices import Device


@models(
    "aten::convolution",
    "aten::_convolution",
    "aten::convolution_overrideable",
    "aten::mkldnn_convolution",
    "aten::cudnn_convolution",
    "aten::cudnn_convolution_transpose",
)
def convolution(call: Call, device: Device) -> list[Kernel]:
    """The forward pass."""
    transposed = call.arguments.get("transposed", call.op.startswith("aten::cudnn_convolution_transpose"))
    source = call.arguments.get("input", call.arguments.get("self"))
    assert source is not None
    axes = _axes(call, source, call["weight"], transposed=transposed)
    window = Window(
        call.outputs[0], source, call["weight"], axes, call["groups"], call.arguments.get("bias"), transposed=transposed
    )
    return conv_kernels.kernels(window, device, "deconv" if transposed else "fprop")


@models("aten::convolution_backward", "aten::convolution_backward_overrideable")
def convolution_backward(call: Call, device: Device) -> list[Kernel]:
    """The gradients that ``output_mask`` asks for: of input, weight and bias."""
    gradient, source, weight, groups = call["grad_output"], call["input"], call["weight"], call["groups"]
    transposed = call["transposed"]
    returned = iter(call.outputs)
    launched: list[Kernel] = []
    of_input, of_weight, of_bias = call["output_mask"]
    if of_input:
        axes = _axes(call, gradient, weight, transposed=not transposed)
        window = Window(next(returned), gradient, weight, axes, groups, transposed=not transposed)
        launched += conv_kernels.kernels(window, device, "dgrad")
    if of_weight:
        small, large = (source, gradient) if transposed else (gradient, source)
        axes = _axes(call, large, weight, transposed=False)
        launched += conv_weight_kernels.kernels(WeightGradient(next(returned), small, large, axes, groups), device)
    if of_bias:
        dims = [d for d in range(len(gradient.shape)) if d != 1]
        launched += reduction("sum", gradient, [next(returned)], dims, device)
    return launched


def _axes(call: Call, source: Operand, weight: Operand, *, transposed: bool) -> tuple[Axis, ...]:
    """Return the window along each spatial dimension; ``source`` is what is gathered from."""
    rank = len(weight.shape) - 2

    def each(values: Any) -> list[int]:
        return [int(v) for v in (list(values) * rank if len(values) == 1 else values)]

    settings = zip(
        source.shape[2:],
        weight.shape[2:],
        each(call["stride"]),
        each(call["padding"]),
        each(call["dilation"]),
        strict=True,
    )
    return tuple(
        Axis(size, taps, stride, padding, dilation, transposed) for size, taps, stride, padding, dilation in settings
    )
