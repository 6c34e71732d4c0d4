"""Convolutions that cut an image into patches, in front of transformer blocks: a product of patches and weights.

Where stride and kernel are the same, each pixel is read once, and the convolution is a copy and one matrix product.
cuDNN takes 76 us on an H200 for the one of ViT-B/16 (one image, float16, channels last).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx

from tileprof.runtime.compile.regions import aten
from tileprof.runtime.compile.regions.aten import ATEN
from tileprof.runtime.compile.regions.region import Region, Runner


@dataclass
class Patches:
    """Multiplies patches in PyTorch. ``channels_last``: channels are innermost in weights, so in patches too;
    ``out_last``: in the result.
    """

    side: tuple[int, int]
    channels_last: bool
    out_last: bool
    frozen: bool = False

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Compute (batch, channels, rows, columns) from image, weights and perhaps a bias."""
        image, weight, *bias = inputs
        (batch, channels, height, width), (down, across) = image.shape, self.side
        rows, columns = height // down, width // across
        cut = image.view(batch, channels, rows, down, columns, across)
        if self.channels_last:
            patches, weight = cut.permute(0, 2, 4, 3, 5, 1), weight.permute(0, 2, 3, 1)
        else:
            patches = cut.permute(0, 2, 4, 1, 3, 5)
        flat, turned = patches.reshape(batch * rows * columns, -1), weight.flatten(1).t()
        out = torch.addmm(bias[0], flat, turned) if bias else torch.mm(flat, turned)
        result = out.view(batch, rows, columns, -1).permute(0, 3, 1, 2)
        return (result if self.out_last else result.contiguous(),)

    def check(self) -> None:
        """Do nothing: nothing waits."""


def patches(graph: fx.Graph) -> Iterator[Region]:
    """Yield each such convolution as a region."""
    for node in graph.nodes:
        if (convolution := _patches_of(node)) is None:
            continue
        inputs = tuple(dict.fromkeys(arg for arg in node.args[:3] if isinstance(arg, fx.Node)))
        if len(inputs) == 2 + (node.args[2] is not None):
            yield Region(
                "a convolution of patches",
                (node,),
                inputs,
                (node,),
                (),
                partial(_runner, convolution),
                what=convolution,
            )


def _runner(convolution: Patches, _device: torch.device) -> Runner:
    return convolution


def _patches_of(node: Any) -> Patches | None:
    if not aten.calls(node, ATEN.convolution.default) or node.kwargs:
        return None
    image, weight, _, stride, padding, dilation, transposed, _, groups = node.args
    sizes, kernel, out = aten.shape(image), aten.shape(weight), aten.shape(node)
    if sizes is None or kernel is None or out is None or len(sizes) != 4 or transposed or groups != 1:
        return None
    side = kernel[2], kernel[3]
    if tuple(stride) != side or any(padding) or set(dilation) != {1} or min(side) < 2:
        return None
    if sizes[2] % side[0] or sizes[3] % side[1]:
        return None
    orders = (0, 2, 3, 1), (0, 1, 2, 3)
    if not all(any(_dense_in(tensor, order) for order in orders) for tensor in (weight, node)):
        return None
    return Patches(side, _dense_in(weight, orders[0]), _dense_in(node, orders[0]))


def _dense_in(node: Any, order: tuple[int, ...]) -> bool:
    """Return whether a tensor is dense with its dimensions in an order, the innermost last."""
    sizes, strides = aten.shape(node), aten.strides(node)
    if sizes is None or strides is None:
        return False
    step = 1
    for axis in reversed(order):
        if strides[axis] != step:
            return False
        step *= sizes[axis]
    return True
