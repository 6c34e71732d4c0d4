"""Weights as the kernel loads them: parameters where they lie, or copies of those that lie otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, Final

import torch
from torch.nn import functional

from tileprof.runtime.convnet.network import Convolution, Network, ending, windowed
from tileprof.runtime.convnet.tiling import K_BLOCK, WINDOW, Tiling, k_blocks

_ALIGNED: Final = 16
"""Bytes that divide the address of what TMA loads."""


@dataclass(frozen=True, slots=True)
class Weights:
    """A layer's weights [channels out, taps, channels in], of the network's dtype, and ``ends`` [columns of tiles *
    width, 2]: scale and bias of each channel, float32.

    Where the layer reads windows, its weights are [columns of tiles, blocks of k, width, 64], swizzled as in shared
    memory.
    """

    weights: Any
    ends: Any


def laid_out(network: Network, layer: Convolution, tiling: Tiling, parameters: Sequence[Any]) -> Weights:
    """Return what the kernel loads for a layer.

    The weights share memory with their parameter unless `copied` says otherwise or its address suits no TMA.
    """
    weight = parameters[layer.weight].detach()
    if windowed(network, layer):
        rows = _windows(network, layer, tiling, weight)
    elif weight.dim() == 2:
        rows = weight[:, None, :]
    else:
        rows = weight.permute(0, 2, 3, 1).flatten(1, 2)
    rows = rows.to(getattr(torch, network.dtype)).contiguous()
    if rows.data_ptr() % _ALIGNED:
        rows = rows.clone()
    ends = torch.stack(ending(layer, parameters), 1)
    missing = ceil(len(ends) / tiling.width) * tiling.width - len(ends)
    return Weights(rows, functional.pad(ends, (0, 0, 0, missing)).contiguous())


def _windows(network: Network, layer: Convolution, tiling: Tiling, weight: Any) -> Any:
    """Return taps of rows of windows behind each other, zeros where a window has more and where a tile has more
    channels.
    """
    rows, window = weight.permute(0, 2, 3, 1), network.layers[layer.source].shape[3]
    blocks = k_blocks(network, layer)
    columns = ceil(len(rows) / tiling.width)
    pad = (0, window - rows.shape[3], 0, WINDOW // window - rows.shape[2], 0, 2 * blocks - rows.shape[1])
    rows = functional.pad(rows, (*pad, 0, columns * tiling.width - len(rows)))
    chunks = rows.reshape(columns, tiling.width, blocks, 8, K_BLOCK // 8).transpose(1, 2)
    row, chunk = torch.arange(tiling.width, device=rows.device)[:, None], torch.arange(8, device=rows.device)
    return chunks[:, :, row, chunk ^ row % 8].reshape(columns, blocks, tiling.width, K_BLOCK)


def copied(network: Network, layer: Convolution, weight: Any) -> bool:
    """Return whether the kernel needs a copy of a weight: those of windows, of another dtype, and those of convolutions
    of several taps that are not channels last. ``weight`` may be without memory.
    """
    if windowed(network, layer) or weight.dtype != getattr(torch, network.dtype):
        return True
    return not (weight if weight.dim() == 2 else weight.permute(0, 2, 3, 1)).is_contiguous()
