"""The keys that tell convolutions apart in the tables: integers, their meaning, and sizes that follow."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

LAYER_COLUMNS: Final = (
    "rank", "transposed", "groups", "images", "channels_in", "channels_out", "d", "h", "w", "kd", "kh", "kw",
    "sd", "sh", "sw", "pd", "ph", "pw", "dd", "dh", "dw", "od", "oh", "ow",
)  # fmt: skip
"""Sizes of the input, window, stride, padding, dilation and output padding along depth, height and width."""
COLUMNS: Final = ("pass", "dtype", "layout", *LAYER_COLUMNS)


class Pass(IntEnum):
    """The pass that PyTorch is asked for."""

    FORWARD = 0
    INPUT_GRADIENT = 1
    WEIGHT_GRADIENT = 2


class Dtype(IntEnum):
    """Types of all tensors; TF32 is float32 on tensor cores, which PyTorch allows in convolutions unless told."""

    TF32 = 0
    FP32 = 1
    FP16 = 2
    BF16 = 3


class Layout(IntEnum):
    """The layout of input, weight and gradient of the result."""

    CONTIGUOUS = 0
    CHANNELS_LAST = 1


def result_sizes(layer: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return depth, height and width of the results of ``[..., LAYER_COLUMNS]``."""
    size, taps, stride, padding, dilation, extra = (layer[..., i : i + 3] for i in range(6, 24, 3))
    forward = (size + 2 * padding - dilation * (taps - 1) - 1) // stride + 1
    backward = (size - 1) * stride - 2 * padding + dilation * (taps - 1) + extra + 1
    sizes: NDArray[np.int64] = np.where(layer[..., 1:2] == 1, backward, forward)
    return sizes


def costs(layer: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return FLOPs of ``[..., LAYER_COLUMNS]``, and elements of the largest tensor."""
    images, inside, outside = (layer[..., i].astype(float) for i in (3, 4, 5))
    sources = images * layer[..., 6:9].prod(-1)
    results = images * result_sizes(layer).prod(-1)
    taps = layer[..., 9:12].prod(-1)
    pixels = np.where(layer[..., 1] == 1, sources, results)
    flops = 2.0 * pixels * inside * outside / layer[..., 2] * taps
    return flops, np.maximum(np.maximum(sources * inside, results * outside), inside * outside * taps / layer[..., 2])
