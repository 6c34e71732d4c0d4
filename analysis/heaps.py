"""Binary heaps in arrays, for compiled code: of (key, item) pairs, and of whole numbers. The caller keeps the size."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tileprof.analysis.bounds.compiled import internal


@internal
def push(keys: NDArray[np.float64], items: NDArray[np.int64], size: int, key: float, item: int) -> None:
    """Push (key, item) into a heap of ``size`` pairs whose least comes first; ties by item. The arrays have room for
    one more.
    """
    at = size
    while at > 0:
        above = (at - 1) // 2
        if keys[above] < key or (keys[above] == key and items[above] < item):
            break
        keys[at], items[at] = keys[above], items[above]
        at = above
    keys[at], items[at] = key, item


@internal
def pop(keys: NDArray[np.float64], items: NDArray[np.int64], size: int) -> None:
    """Drop the least of a heap of ``size``; its last element takes the hole."""
    key, item = keys[size - 1], items[size - 1]
    at = 0
    while True:
        child = 2 * at + 1
        if child >= size - 1:
            break
        other = child + 1
        if other < size - 1 and (
            keys[other] < keys[child] or (keys[other] == keys[child] and items[other] < items[child])
        ):
            child = other
        if key < keys[child] or (key == keys[child] and item < items[child]):
            break
        keys[at], items[at] = keys[child], items[child]
        at = child
    keys[at], items[at] = key, item


@internal
def push_tile(heap: NDArray[np.int64], size: int, tile: int) -> None:
    """Push into a heap of ``size`` whole numbers whose least comes first; the array has room for one more."""
    at = size
    while at > 0:
        above = (at - 1) // 2
        if heap[above] < tile:
            break
        heap[at] = heap[above]
        at = above
    heap[at] = tile


@internal
def pop_tile(heap: NDArray[np.int64], size: int) -> None:
    """Drop the least of a heap of ``size``."""
    tile = heap[size - 1]
    at = 0
    while True:
        child = 2 * at + 1
        if child >= size - 1:
            break
        if child + 1 < size - 1 and heap[child + 1] < heap[child]:
            child += 1
        if tile < heap[child]:
            break
        heap[at] = heap[child]
        at = child
    heap[at] = tile
