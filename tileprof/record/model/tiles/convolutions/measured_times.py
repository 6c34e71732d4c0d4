"""Finds the duration of a launch that was measured for a problem like this one.

A measured time ``t`` of an entry is carried over by the work of the two problems::

    t' = START + (t - START) * work' / work

``START`` is what a small kernel takes, whatever its work. An exact entry has the same work, so its own time. The work
of a kernel that computes is the larger of two times: of all bytes of the call at full bandwidth, and of the FLOPs of
its blocks, where fewer blocks than the GPU has SMs take as long as one for each SM. That of copies and fills is the
first of them. Entries of the same kernels count, the more the closer they are in `traits`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from tileprof.record.model.tiles.convolutions.convolution_key import Pass, costs
from tileprof.record.model.tiles.convolutions.library_kernels import MAINS, NamedKernel, parse_name
from tileprof.record.model.tiles.convolutions.problem import operand_sizes, product_of_group

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tileprof.record.model.tiles.convolutions.problem import MeasuredLaunch

Grid = tuple[int, int, int]

_START_NS: Final = 1200.0
_RATES: Final = (350e12, 45e12, 600e12, 600e12)
"""FLOPs per second of TF32, FP32, FP16 and BF16 that large convolutions were measured at, about (H200)."""
_BYTES_PER_S: Final = 3.5e12
_SMS: Final = 132
TRAITS: Final = 4
_TRAIT_WEIGHTS: Final = np.array([0.5, 1.0, 0.6, 0.1])
"""The best of five sets of weights, judged by 1,500 timed calls, each without the entries of its weight."""


def scaled_ns(launch: MeasuredLaunch, grid: Grid, key: tuple[int, ...], measured: tuple[int, ...]) -> float:
    """Return the time for a call, in which it has ``grid``, of a launch that was measured for another."""
    ns = max(1.0, launch.ns)
    if key == measured:
        return ns
    start = min(ns, _START_NS)
    kernel = parse_name(launch.name)
    return start + (ns - start) * _work_s(key, kernel, grid) / _work_s(measured, kernel, launch.grid)


def _work_s(key: tuple[int, ...], kernel: NamedKernel, grid: Grid) -> float:
    """Return what a call takes at full rates."""
    memory_s = _bytes(key) / _BYTES_PER_S
    if kernel.role not in MAINS:
        return memory_s
    blocks = max(1, int(np.prod(grid)))
    flops = float(costs(np.array(key[3:], np.int64))[0])
    if kernel.tile[0]:
        flops = max(flops, 2.0 * kernel.tile[0] * kernel.tile[1] * blocks * _depth(key, kernel, blocks))
    return max(memory_s, flops / _RATES[key[1]] * max(1.0, _SMS / blocks))


def traits(key: tuple[int, ...], launch: MeasuredLaunch, grid: Grid) -> tuple[float, ...]:
    """Return logarithms of the blocks of a launch that computes, the depth of each, and bytes of the call; and its
    type.
    """
    blocks = max(1, int(np.prod(grid)))
    numbers = (blocks, _depth(key, parse_name(launch.name), blocks), _bytes(key))
    return (*np.log(numbers).tolist(), float(key[1]))


def apart(entries: NDArray[np.float64], own: Sequence[float]) -> NDArray[np.float64]:
    """Return how far entries ``[entries, traits]`` are from a call."""
    differences = np.abs(entries - np.array(own))
    differences[:, -1] = differences[:, -1] > 0
    return np.asarray(differences @ _TRAIT_WEIGHTS)


def _bytes(key: tuple[int, ...]) -> float:
    itemsize = 4 if key[1] < len(_RATES) // 2 else 2
    return itemsize * float(sum(np.prod(shape, dtype=np.float64) for shape in operand_sizes(key)))


def _depth(key: tuple[int, ...], kernel: NamedKernel, blocks: int) -> float:
    """Return how many products a block adds up for an element of its tile."""
    _, rows, columns = product_of_group(key)
    groups, inside, outside = key[5], key[7], key[8]
    if key[0] == Pass.WEIGHT_GRADIENT:
        first = operand_sizes(key)[0]
        depth = first[0] * int(np.prod(first[2:]))
    else:
        depth = (inside if key[0] == Pass.FORWARD else outside) // groups * int(np.prod(key[12:15]))
    high, wide = kernel.tile[:2]
    if not high:
        return max(1.0, depth)
    tiles = groups * min(-(-rows // a) * -(-columns // b) for a, b in ((high, wide), (wide, high)))
    return max(1.0, depth / max(1, round(blocks / tiles)))
