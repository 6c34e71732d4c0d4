"""The bits of a Bloom filter that stand for a granule of memory: those of ``record/source/native/filter.h``."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tileprof.arrays import I64


def filter_bits(granules: I64, bits: int, hashes: int) -> I64:
    """Return ``[granules, hashes]`` bits: two hashes give them all (Kirsch and Mitzenmacher, 2006)."""
    first, second = _mixed(granules, 0x9E3779B97F4A7C15), _mixed(granules, 0xD1B54A32D192ED03)
    steps = np.arange(hashes, dtype=np.uint64)
    return ((first[:, None] + steps * (second[:, None] | np.uint64(1))) % np.uint64(bits)).astype(np.int64)


def _mixed(values: I64, seed: int) -> NDArray[np.uint64]:
    """Return the finaliser of splitmix64 (Steele, Lea and Flood, 2014)."""
    x = values.astype(np.uint64) + np.uint64(seed)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(x ^ (x >> np.uint64(31)), dtype=np.uint64)
