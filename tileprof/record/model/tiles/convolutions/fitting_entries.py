"""Which entries of the table have kernels that a call may get at all, by facts that are known without a measurement.

- PyTorch itself decides between its own depthwise kernels and cuDNN's (`use_cudnn_depthwise` in
  `aten/src/ATen/native/Convolution.cpp`); so decide all 17,000 entries with one channel per group.
- cuDNN's Winograd kernels are for windows of 3 x 3 or 5 x 5 without a stride.
- Kernels for channels first take a group of several images from dense copies, of one image from where it is (so do all
  but 2 of 263 such entries).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import numpy as np

from tileprof.record.model.tiles.convolutions.convolution_key import Dtype, Layout

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tileprof.record.model.tables import Table

_ATEN: Final = re.compile(r"conv_depthwise")
_WINOGRAD: Final = {3: re.compile(r"winograd\w*4x4"), 5: re.compile(r"winograd\w*9x9_5x5")}
"""Names by taps."""
_PACKING, _CHANNELS_FIRST = re.compile(r"genericTranspose"), re.compile(r"nchwkcrs_nchw")
_PLANE: Final = 2
"""Dimensions of a convolution that cuDNN's depthwise kernels are for; lines count as planes of height 1."""
_STRIDE: Final = 2
"""The largest stride along which PyTorch asks cuDNN."""
_FEWEST_CHANNELS, _NARROWEST = 32, 7
_MANY, _MOST, _WIDE, _SEVERAL, _FEW_IMAGES, _NARROW_ALONE = 256, 512, 28, 128, 16, 28
"""Bounds of channels, widths and images with that stride."""


def fitting(table: Table, key: Sequence[int]) -> NDArray[np.bool_]:
    """Return which entries have kernels that may serve a call."""
    sequences = table.columns["sequence"]
    own_kernels = _lists_with(table, "own", _ATEN)
    fits = own_kernels == (is_depthwise(key) and not is_cudnn_depthwise(key))
    for taps, names in _WINOGRAD.items():
        if tuple(key[12:18]) != (1, taps, taps, 1, 1, 1):
            fits &= ~_lists_with(table, f"winograd {taps}", names)
    if key[5] > 1 and key[2] == Layout.CONTIGUOUS:
        packs = _lists_with(table, "copies of groups", _PACKING) == (key[6] > 1)
        fits &= packs | ~_lists_with(table, "channels first", _CHANNELS_FIRST)
    entries: NDArray[np.bool_] = fits[sequences]
    return entries


def _lists_with(table: Table, what: str, names: re.Pattern[str]) -> NDArray[np.bool_]:
    """Return which lists of launches have a kernel of these names; computed once."""
    if ("lists", what) not in table.derived:
        kernels = np.array([names.search(name) is not None for name in table.columns["name"].tolist()])
        first, kernel = table.columns["first"].astype(np.int64), table.columns["kernel"].astype(np.int64)
        counts = np.r_[0, np.cumsum(kernels[kernel])]
        table.derived["lists", what] = counts[first[1:]] > counts[first[:-1]]
    lists: NDArray[np.bool_] = table.derived["lists", what]
    return lists


def is_depthwise(key: Sequence[int]) -> bool:
    """Return whether PyTorch takes a call to be depthwise: a channel per group, not transposed."""
    transposed, groups, inside, outside = key[4], key[5], key[7], key[8]
    return not transposed and 1 < groups == inside and outside % inside == 0


def is_cudnn_depthwise(key: Sequence[int]) -> bool:
    """Return whether PyTorch leaves a depthwise call to cuDNN: all in channels last, of others some in float16."""
    rank, images, channels = key[3], key[6], key[7]
    high, wide = key[10:12]
    down, across = key[16:18]
    if key[2] == Layout.CHANNELS_LAST:
        return True
    square = down == across or high == 1
    if key[1] != Dtype.FP16 or rank != _PLANE or max(key[21:24]) > 1 or not square or channels < _FEWEST_CHANNELS:
        return False
    if high == 1 and across == 1:
        return True
    taps = key[14]
    if key[13] != taps or taps not in (1, 3, 5) or wide < _NARROWEST:
        return False
    if across != _STRIDE:
        return across == 1
    if images == 1:
        return taps > 1 or wide <= _NARROW_ALONE
    if taps == 1:
        return images <= _FEW_IMAGES and channels >= _SEVERAL and wide <= _NARROWEST
    return channels >= _MOST or (channels >= _MANY and wide >= _WIDE)
