"""The source positions that the taps of a sliding window touch: the halo of a convolution, exactly.

Along one dimension, result ``p`` and source ``h`` of tap ``r`` are tied by ``h = p * stride - padding + r * dilation``.
A convolution asks which h the results p need; a transposed one, and the gradient of a convolution's input, has results
at h and asks which p. Windows are products over dimensions, and so are the sets of positions they touch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tileprof.arrays import I64

Piece = tuple[I64, I64, int]
"""``start``, ``stop`` (arrays, one entry per question) and the step of positions."""


@dataclass(frozen=True, slots=True)
class Axis:
    """One dimension of a window; ``size`` is the source's, positions outside of it are padding."""

    size: int
    taps: int
    stride: int = 1
    padding: int = 0
    dilation: int = 1
    transposed: bool = False

    def sources(self, lo: I64, hi: I64) -> list[Piece]:
        """Return the positions in the source that results ``lo <= p < hi`` need: their union is exact, pieces may be
        empty.

        One piece when taps lie side by side and leave no holes, else one a tap.
        """
        if self.transposed:
            if self.dilation == 1:
                return [
                    self._clip(
                        _ceil(lo + self.padding - self.taps + 1, self.stride),
                        (hi - 1 + self.padding) // self.stride + 1,
                    )
                ]
            return [self._tied(lo, hi, tap) for tap in range(self.taps)]
        if self.dilation == 1 and self.taps >= self.stride:
            return [self._clip(lo * self.stride - self.padding, (hi - 1) * self.stride - self.padding + self.taps)]
        return [self.tap(lo, hi, tap) for tap in range(self.taps)]

    def tap(self, lo: I64, hi: I64, tap: int) -> Piece:
        """Return the positions that one tap of results ``lo <= p < hi`` touches, of a window that is not transposed."""
        base = tap * self.dilation - self.padding
        low = np.maximum(lo, _ceil(np.int64(-base), self.stride))
        high = np.minimum(hi, (self.size - 1 - base) // self.stride + 1)
        some = low < high
        return (
            np.where(some, low * self.stride + base, 0),
            np.where(some, (high - 1) * self.stride + base + 1, 0),
            self.stride,
        )

    def _tied(self, lo: I64, hi: I64, tap: int) -> Piece:
        shift = self.padding - tap * self.dilation
        return self._clip(_ceil(lo + shift, self.stride), (hi - 1 + shift) // self.stride + 1)

    def _clip(self, start: I64, stop: I64) -> Piece:
        start, stop = np.clip(start, 0, self.size), np.clip(stop, 0, self.size)
        return start, np.maximum(start, stop), 1


def _ceil(value: I64 | np.int64, divisor: int) -> I64:
    return np.asarray(-(-value // divisor))
