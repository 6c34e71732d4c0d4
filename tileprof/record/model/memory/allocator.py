"""Addresses as PyTorch's CUDA caching allocator would hand them out.

A model of ``c10/cuda/CUDACachingAllocator.cpp`` (PyTorch 2.13, default settings, one stream): sizes rounded to
512 bytes; requests up to 1 MiB from segments of 2 MiB, up to 10 MiB from segments of 20 MiB, larger ones from
segments of their own, rounded to 2 MiB; the smallest free block that fits, the lowest address among equals; the
rest split off when at least 512 bytes (small segments) or more than 1 MiB (large ones) remain; freed
blocks merge with free neighbours. Not modelled: the release of segments when the GPU is full.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass
from typing import Final

_KIB, _MIB = 1 << 10, 1 << 20
GRANULE_BYTES: Final = 512
_SMALL_BYTES: Final = _MIB
_SMALL_SEGMENT_BYTES: Final = 2 * _MIB
_MIDDLE_BYTES: Final = 10 * _MIB
_MIDDLE_SEGMENT_BYTES: Final = 20 * _MIB
_SEGMENT_ROUND_BYTES: Final = 2 * _MIB
_FIRST_SEGMENT: Final = 0x7F00_0000_0000
"""Start of the modelled device memory; any multiple of 2 MiB would do."""


@dataclass(slots=True)
class _Block:
    """A piece of a segment; ``before`` and ``after`` are its neighbours' bases, -1 at the segment's ends."""

    base: int
    bytes: int
    small: bool
    free: bool
    before: int = -1
    after: int = -1


class CachingAllocator:
    """Hands out addresses; never runs out, `reserved_bytes` says what the GPU would have needed."""

    def __init__(self) -> None:
        self.reserved_bytes = 0
        self._blocks: dict[int, _Block] = {}
        self._free: dict[bool, list[tuple[int, int]]] = {True: [], False: []}
        self._end = _FIRST_SEGMENT

    def allocate(self, wanted_bytes: int) -> int:
        """Return the address of a new allocation of ``wanted_bytes`` > 0."""
        size = max(_round_up(wanted_bytes, GRANULE_BYTES), GRANULE_BYTES)
        small = size <= _SMALL_BYTES
        block = self._best_fit(size, small) or self._segment(size, small)
        rest = block.bytes - size
        if rest >= GRANULE_BYTES if small else rest > _SMALL_BYTES:
            self._split(block, size)
        block.free = False
        return block.base

    def free(self, base: int) -> None:
        """Free the allocation at ``base``."""
        block = self._blocks[base]
        for other in (self._blocks.get(block.before), self._blocks.get(block.after)):
            if other is not None and other.free:
                self._forget_free(other)
                block = self._merge(block, other) if block.base < other.base else self._merge(other, block)
        self._offer(block)

    def _best_fit(self, size: int, small: bool) -> _Block | None:
        free = self._free[small]
        place = bisect_left(free, (size, 0))
        return self._blocks[free.pop(place)[1]] if place < len(free) else None

    def _segment(self, size: int, small: bool) -> _Block:
        if small:
            length = _SMALL_SEGMENT_BYTES
        elif size < _MIDDLE_BYTES:
            length = _MIDDLE_SEGMENT_BYTES
        else:
            length = _round_up(size, _SEGMENT_ROUND_BYTES)
        block = self._blocks[self._end] = _Block(self._end, length, small, free=True)
        self._end += _round_up(length, _SEGMENT_ROUND_BYTES)
        self.reserved_bytes += length
        return block

    def _split(self, block: _Block, size: int) -> None:
        rest = _Block(block.base + size, block.bytes - size, block.small, True, block.base, block.after)
        if block.after in self._blocks:
            self._blocks[block.after].before = rest.base
        block.bytes, block.after = size, rest.base
        self._blocks[rest.base] = rest
        self._offer(rest)

    def _merge(self, low: _Block, high: _Block) -> _Block:
        low.bytes += high.bytes
        low.after = high.after
        if high.after in self._blocks:
            self._blocks[high.after].before = low.base
        del self._blocks[high.base]
        return low

    def _offer(self, block: _Block) -> None:
        block.free = True
        insort(self._free[block.small], (block.bytes, block.base))

    def _forget_free(self, block: _Block) -> None:
        free = self._free[block.small]
        del free[bisect_left(free, (block.bytes, block.base))]


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
