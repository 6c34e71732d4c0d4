"""Convolutions of ATen, forward and backward, in one to three dimensions, transposed and grouped.

Two kernels serve all: `conv_kernels` gathers source pixels for results (the forward pass and the input's gradient, each
for both directions), `conv_weight_kernels` reduces over pixels (the weight's gradient). Where a GPU was measured
(`measured_launches`), a call has the launches that were seen there, and the bias is added by one of its own; elsewhere,
and for tiles that the user dictates, there is one kernel by rules, which adds the bias as stages of policies do. The
bias's gradient is ATen's sum.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from tileprof.record.model.tile_model import Call, Kernel, Operand, Scratch, models
from tileprof.record.model.tiles.convolutions import (
    conv_kernels,
    conv_weight_kernels,
    convolution_table,
    measured_launches,
)
from tileprof.record.model.tiles.convolutions.conv_kernels import Window
from tileprof.record.model.tiles.convolutions.conv_weight_kernels import WeightGradient
from tileprof.record.model.tiles.convolutions.convolution_key import Layout, Pass
from tileprof.record.model.tiles.convolutions.library_kernels import adds_bias_itself
from tileprof.record.model.tiles.convolutions.problem import Problem, key_of, product_sizes
from tileprof.record.model.tiles.convolutions.windows import Axis
from tileprof.record.model.tiles.elementwise.pointwise import elementwise
from tileprof.record.model.tiles.foundations.overrides import dictated
from tileprof.record.model.tiles.foundations.regions import permute
from tileprof.record.model.tiles.foundations.sketch import is_contiguous, scratch
from tileprof.record.model.tiles.reductions.reduce import reduction

if TYPE_CHECKING:
    from tileprof.devices import Device

_DENSE: Final = 6
"""Scratch slots from here on hold dense copies of operands that are not dense."""
_SLOTS: Final = 16
"""More slots than one gradient has."""
_DEPTHWISE_WEIGHT: Final = "conv_depthwise2d_grad_weight"
"""``conv_depthwise2d_backward_cuda_out`` launches it before the gradient of the input."""


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
    settings = _Settings.of(call, source, call["weight"], transposed=transposed)
    dense = _DenseCopies()
    launched = _measured_launches(Pass.FORWARD, settings, window, device, dense)
    if launched is None:
        return conv_kernels.kernels(window, device, "deconv" if transposed else "fprop")
    return [*dense.launches(), *launched, *_bias_added(window, launched)]


@models("aten::convolution_backward", "aten::convolution_backward_overrideable")
def convolution_backward(call: Call, device: Device) -> list[Kernel]:
    """The gradients that ``output_mask`` asks for: of input, weight and bias. What both of the first need densely is
    copied once, before them; PyTorch's depthwise kernels begin with the weight.
    """
    gradient, source, weight, groups = call["grad_output"], call["input"], call["weight"], call["groups"]
    transposed = call["transposed"]
    returned = iter(call.outputs)
    settings = _Settings.of(call, source, weight, transposed=transposed)
    launched: list[Kernel] = []
    dense = _DenseCopies()
    of_input, of_weight, of_bias = call["output_mask"]
    if of_input:
        axes = _axes(call, gradient, weight, transposed=not transposed)
        window = Window(next(returned), gradient, weight, axes, groups, transposed=not transposed)
        measured = _measured_launches(Pass.INPUT_GRADIENT, settings, window, device, dense)
        launched = conv_kernels.kernels(window, device, "dgrad") if measured is None else measured
    if of_weight:
        small, large = (source, gradient) if transposed else (gradient, source)
        axes = _axes(call, large, weight, transposed=False)
        problem = WeightGradient(next(returned), small, large, axes, groups)
        measured = _measured_launches(Pass.WEIGHT_GRADIENT, settings, problem, device, dense)
        kernels = _apart(conv_weight_kernels.kernels(problem, device) if measured is None else measured, 1)
        weight_first = any(_DEPTHWISE_WEIGHT in kernel.name for kernel in kernels)
        launched = [*kernels, *launched] if weight_first else [*launched, *kernels]
    launched = [*dense.launches(source.ref, gradient.ref, weight.ref), *launched]
    if of_bias:
        dims = [d for d in range(len(gradient.shape)) if d != 1]
        launched += _apart(reduction("sum", gradient, [next(returned)], dims, device), 2)
    return launched


def _apart(kernels: list[Kernel], number: int) -> list[Kernel]:
    """Return a gradient's launches with a workspace of their own, the ``number``-th: PyTorch allocates one for each
    call of cuDNN (``run_conv_plan``).
    """

    def moved(operand: Operand | Scratch) -> Operand | Scratch:
        if isinstance(operand, Scratch) and not operand.library and not _is_dense_copy(operand):
            return replace(operand, slot=operand.slot + number * _SLOTS)
        return operand

    return [replace(kernel, operands=tuple(map(moved, kernel.operands))) for kernel in kernels]


@dataclass(frozen=True, slots=True)
class _Settings:
    """The part of a key beside the pass: the call's own input and weight, its window and groups."""

    source: Operand
    weight: Operand
    window: tuple[tuple[int, ...], ...]
    groups: int
    transposed: bool

    @classmethod
    def of(cls, call: Call, source: Operand, weight: Operand, *, transposed: bool) -> _Settings:
        rank = len(weight.shape) - 2
        names = ("stride", "padding", "dilation", "output_padding")
        values = [[int(v) for v in call.arguments.get(name) or [0]] for name in names]
        window = tuple(tuple(v * rank if len(v) == 1 else v) for v in values)
        return cls(source, weight, window, int(call["groups"]), bool(transposed))


class _DenseCopies:
    """Operands as PyTorch hands them to a library, dense in the layout of the call; each is copied once."""

    def __init__(self) -> None:
        self._copies: dict[int, tuple[list[Kernel], Operand]] = {}

    def of(self, operand: Operand, key: tuple[int, ...]) -> Operand:
        """Return the operand, or a dense copy of it."""
        if operand.ref not in self._copies:
            self._copies[operand.ref] = _laid_out(operand, key, _DENSE + len(self._copies))
        return self._copies[operand.ref][1]

    def launches(self, *first: int) -> list[Kernel]:
        """Return the copies, of the operands ``first`` in this order, then of others."""
        order = [ref for ref in first if ref in self._copies]
        order += [ref for ref in self._copies if ref not in order]
        return [kernel for ref in order for kernel in self._copies[ref][0]]


def _is_dense_copy(workspace: Scratch) -> bool:
    return _DENSE <= workspace.slot < _SLOTS


def _measured_launches(
    what: Pass, settings: _Settings, shape: Window | WeightGradient, device: Device, copies: _DenseCopies
) -> list[Kernel] | None:
    """Return the launches that a GPU was seen to make, without those of ``copies``; None where none was, or where tiles
    are dictated.
    """
    out = shape.out if isinstance(shape, Window) else shape.weight
    key = key_of(
        what, settings.source, settings.weight, settings.window, settings.groups, transposed=settings.transposed
    )
    if key is None or out.numel == 0 or dictated("conv", product_sizes(shape)) is not None:
        return None
    entry = convolution_table.entry(key, device)
    if entry is None:
        return None
    inputs = (shape.source, shape.weight) if isinstance(shape, Window) else (shape.small, shape.large)
    dense = [copies.of(operand, key) for operand in inputs]
    return measured_launches.kernels(Problem(key, shape, (dense[0], dense[1]), out), entry, device)


def _laid_out(operand: Operand, key: tuple[int, ...], slot: int) -> tuple[list[Kernel], Operand]:
    """Return an operand as PyTorch hands it to the library, dense in the layout of the call, and the copy that makes
    it so.
    """
    rank = len(operand.shape)
    last = key[2] == Layout.CHANNELS_LAST and rank > len("NCL")
    order = (0, *range(2, rank), 1) if last else tuple(range(rank))
    if is_contiguous(permute(operand, order)):
        return [], operand
    shape = [operand.shape[d] for d in order]
    back = [order.index(d) for d in range(rank)]
    copied = permute(scratch(slot, *shape, itemsize=operand.itemsize), back)
    copied = replace(copied, dtype=operand.dtype)
    return elementwise("contiguous", [operand], [copied], flops_each=0), copied


def _bias_added(window: Window, launched: list[Kernel]) -> list[Kernel]:
    """Return the launch that adds the bias, unless the kernel did."""
    if window.bias is None or any(adds_bias_itself(kernel.name) for kernel in launched):
        return []
    return elementwise("add_", [window.out, conv_kernels.bias_of(window)], [window.out])


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
