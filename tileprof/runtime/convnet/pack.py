"""Weights as the kernel streams them.

For each part of k of each column of tiles: blocks of k in the order of the products, swizzled as shared memory wants,
biases behind the first slot's.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Any, Final

import torch
from torch.nn import functional

from tileprof.runtime.convnet.network import Convolution, Network, folded, windowed
from tileprof.runtime.convnet.tiling import K_BLOCK, WINDOW, Tiling, k_blocks, weight_blocks

_ELEMENTS: Final = 1 << 22
"""Weights of a layer that are packed at a time."""


def column_bytes(network: Network, layer: Convolution, tiling: Tiling) -> int:
    """Bytes that `packed` has for each part of k of a column of tiles."""
    return tiling.width * (2 * K_BLOCK * (k_blocks(network, layer) // tiling.parts) + 4)


def packed(network: Network, layer: Convolution, tiling: Tiling, parameters: Sequence[Any]) -> Any:
    """A layer's weights and biases, [columns of tiles * parts of k, `column_bytes` / 2], of the network's dtype.

    Some columns of tiles are packed at a time, so that what is needed in between is small.
    """
    weight = parameters[layer.weight]
    columns, each = ceil(weight.shape[0] / tiling.width), tiling.width * weight[0].numel()
    size = (columns, tiling.parts, column_bytes(network, layer, tiling) // 2)
    out = torch.empty(size, dtype=getattr(torch, network.dtype), device=weight.device)
    together = max(1, _ELEMENTS // each)
    for first in range(0, columns, together):
        channels = slice(first * tiling.width, (first + together) * tiling.width)
        part = _packed(network, layer, tiling, _of_channels(layer, parameters, channels))
        out[first : first + together] = part.view(-1, *size[1:])
    return out.flatten(0, 1)


def _of_channels(layer: Convolution, parameters: Sequence[Any], channels: slice) -> dict[int, Any]:
    """The layer's parameters, of some of its channels alone: all have channels first."""
    norm = layer.norm
    read = [layer.weight, layer.bias, *([] if norm is None else [norm.weight, norm.bias, norm.mean, norm.variance])]
    return {number: parameters[number][channels] for number in read if number is not None}


def _packed(network: Network, layer: Convolution, tiling: Tiling, parameters: dict[int, Any]) -> Any:
    weight, bias = folded(layer, parameters)
    channels, width, blocks = weight.shape[0], tiling.width, k_blocks(network, layer)
    dtype = getattr(torch, network.dtype)
    if windowed(network, layer):
        window = network.layers[layer.source].shape[3]
        pad = (0, window - weight.shape[3], 0, WINDOW // window - weight.shape[2], 0, 2 * blocks - weight.shape[1])
        weight = functional.pad(weight, pad)
        rows = weight.to(dtype).reshape(channels, blocks, K_BLOCK)
    else:
        taps = layer.size[0] * layer.size[1]
        rows = weight.to(dtype).reshape(channels, taps, -1, K_BLOCK).transpose(1, 2).reshape(channels, blocks, K_BLOCK)
    columns = ceil(channels / width)
    rows = functional.pad(rows, (0, 0, 0, 0, 0, columns * width - channels))
    chunks = rows.reshape(columns, width, blocks, 8, K_BLOCK // 8).transpose(1, 2)
    row, chunk = torch.arange(width, device=rows.device)[:, None], torch.arange(8, device=rows.device)
    swizzled = chunks[:, :, row, chunk ^ (row % 8)].reshape(columns * tiling.parts, -1, width * K_BLOCK)
    biases = torch.zeros(columns, tiling.parts, width, device=bias.device)  # the first part's products begin with them
    biases[:, 0] = functional.pad(bias, (0, columns * width - channels)).reshape(columns, width)
    biases = biases.flatten(0, 1).view(dtype)
    first = min(blocks // tiling.parts, weight_blocks(tiling))
    return torch.cat([swizzled[:, :first].flatten(1), biases, swizzled[:, first:].flatten(1)], 1).contiguous()
