"""Convolutions whose windows do not overlap, as products: the patches of a vision transformer.

Such a convolution reads each pixel once. cuDNN has no good kernel for it where the image has three channels: of
ViT-B/16 on an H200 it took 76 us, in which the product of 196 x 768 and 768 x 768 runs ten times. Inductor leaves it to
cuDNN; in the graph that our program is made of it becomes a copy of the image, patch by patch, and that product.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

import torch
from torch import fx

from tileprof.runtime.compile import aten
from tileprof.runtime.compile.aten import ATEN

_MOST_CHANNELS: Final = 4
"""Of images; with more of them cuDNN's kernels are as good as a product."""

_CONVOLUTION: Final = ([0, 0], [1, 1], False, [0, 0], 1)
"""Padding, dilation, transposed, output padding and groups of a plain one."""


def patches_as_products(graph: fx.Graph, taken: Collection[fx.Node]) -> int:
    """Replace such convolutions except those in ``taken``; returns their number. Results keep their strides."""
    found = 0
    for node in list(graph.nodes):
        if aten.calls(node, ATEN.convolution.default) and node not in taken and _in_patches(node):
            with graph.inserting_before(node):
                node.replace_all_uses_with(_product(graph, node))
            graph.erase_node(node)
            found += 1
    return found


def _in_patches(node: fx.Node) -> bool:
    image, weight, _, stride, *rest = node.args
    values = [aten.tensor(n) for n in (image, weight, node)]
    if any(value is None or value.dim() != 4 for value in values) or tuple(map(_plain, rest)) != tuple(
        map(_plain, _CONVOLUTION)
    ):
        return False
    pixels, kernel = aten.shape(image), aten.shape(weight)
    assert pixels is not None
    assert kernel is not None
    return (
        kernel[1] <= _MOST_CHANNELS
        and list(stride) == list(kernel[2:])
        and pixels[2] % kernel[2] == pixels[3] % kernel[3] == 0
        and aten.dtype(image) in (torch.float16, torch.bfloat16)
        and aten.dtype(image) == aten.dtype(weight) == aten.dtype(node)
    )


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, list | tuple) else value


def _product(graph: fx.Graph, node: fx.Node) -> fx.Node:
    image, weight, bias = node.args[:3]
    (images, channels, height, width), (out, _, down, across) = image.meta["val"].shape, weight.meta["val"].shape
    rows, columns = height // down, width // across

    def call(target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        made = graph.call_function(target, args, kwargs)
        values = fx.node.map_arg((args, kwargs), lambda n: n.meta["val"])
        with node.meta["val"].fake_mode:
            made.meta["val"] = target(*values[0], **values[1])
        return made

    pixels = call(ATEN.permute.default, image, [0, 2, 3, 1])  # one pixel's channels side by side, as most images lie
    cut = call(ATEN.reshape.default, pixels, [images, rows, down, columns, across, channels])
    patches = call(ATEN.permute.default, cut, [0, 1, 3, 2, 4, 5])
    flat = call(ATEN.reshape.default, patches, [images * rows * columns, down * across * channels])
    factors = call(ATEN.reshape.default, call(ATEN.permute.default, weight, [0, 2, 3, 1]), [out, -1])
    turned = call(ATEN.t.default, factors)
    product = call(ATEN.mm.default, flat, turned) if bias is None else call(ATEN.addmm.default, bias, flat, turned)
    result = call(ATEN.permute.default, call(ATEN.reshape.default, product, [images, rows, columns, out]), [0, 3, 1, 2])
    if result.meta["val"].stride() != node.meta["val"].stride():
        result = call(ATEN.clone.default, result, memory_format=torch.contiguous_format)
    assert result.meta["val"].stride() == node.meta["val"].stride()
    return result
