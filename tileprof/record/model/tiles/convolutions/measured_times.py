"""Finds the duration of a launch that was measured for a problem like this one.

A measured time ``t`` of an entry is carried over by the work of the two problems::

    t' = START + (t - START) * work' / work        work = max(FLOPs / rate, bytes / bandwidth), of the whole call

``START`` is what a small kernel takes, whatever its work. An exact entry has the same work, so its own time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from tileprof.record.model.tiles.convolutions.convolution_key import costs
from tileprof.record.model.tiles.convolutions.library_kernels import MAINS, parse_name
from tileprof.record.model.tiles.convolutions.problem import operand_sizes

if TYPE_CHECKING:
    from tileprof.record.model.tiles.convolutions.problem import MeasuredLaunch

_START_NS: Final = 1200.0
_RATES: Final = (350e12, 45e12, 600e12, 600e12)
"""FLOPs per second of TF32, FP32, FP16 and BF16 that large convolutions were measured at, about (H200)."""
_BYTES_PER_S: Final = 3.5e12


def scaled_ns(launch: MeasuredLaunch, key: tuple[int, ...], measured: tuple[int, ...]) -> float:
    """Return the time for a call of a launch that was measured for another."""
    ns = max(1.0, launch.ns)
    if key == measured:
        return ns
    start = min(ns, _START_NS)
    arithmetic = parse_name(launch.name).role in MAINS
    own, other = (work_s(one, arithmetic=arithmetic) for one in (key, measured))
    return start + (ns - start) * own / other


def work_s(key: tuple[int, ...], *, arithmetic: bool) -> float:
    """Return what a call takes at full rates; without ``arithmetic`` only the bytes count."""
    itemsize = 4 if key[1] < len(_RATES) // 2 else 2
    memory_s = itemsize * float(sum(np.prod(shape, dtype=np.float64) for shape in operand_sizes(key))) / _BYTES_PER_S
    if not arithmetic:
        return memory_s
    flops, _ = costs(np.array(key[3:], np.int64))
    return max(memory_s, float(flops) / _RATES[key[1]])
