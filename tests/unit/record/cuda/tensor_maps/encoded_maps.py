"""Tensor maps in im2col mode, encoded by hand."""

import numpy as np

BASE = 0x7F0000100000


def words_of(sizes, strides, lower, upper, channels, pixels, steps):
    """Encode a map of bytes in im2col mode; corners are (w, h, d), strides those of dimensions 1 and up."""
    bits = {3: 16, 4: 8, 5: 5}[len(sizes)]
    w = np.zeros(16, np.uint32)
    w[0], w[1], w[2] = BASE & 0xFFFFFFFF, BASE >> 32, 1 | len(sizes) - 1 << 4
    for d, stride in enumerate(strides):
        w[3 + d] = stride >> 4
    w[8 : 8 + len(sizes)] = np.array(sizes) - 1
    w[13] = channels - 1 << 24 | sum(s - 1 << 3 * d for d, s in enumerate(steps))
    packed = [sum((v & (1 << bits) - 1) << bits * d for d, v in enumerate(corner)) for corner in (lower, upper)]
    w[14], w[15] = packed[1] << 16 | packed[0], pixels - 1
    return w
