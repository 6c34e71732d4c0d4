"""The bytes that a stage of the runtime touches, as boxes of a trace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from tileprof.trace import Boxes

if TYPE_CHECKING:
    from tileprof.runtime.executor.touches import Touches

ALIGNED_BYTES: Final = 512
"""Buffers of a trace that has no addresses of its own begin at multiples of this."""


def boxes_by_slot(touches: Touches) -> tuple[tuple[tuple[int, int], ...], Boxes]:
    """Return operand slots, each the number of a buffer and offset 0, and the boxes that the tiles touch in them."""
    slots = np.unique(touches.buffer)
    boxes = Boxes.of(
        tile=touches.tile,
        operand=np.searchsorted(slots, touches.buffer),
        mode=touches.mode,
        offset=touches.offset,
        length=touches.length,
        count_0=touches.count_0,
        stride_0=touches.stride_0,
        count_1=touches.count_1,
        stride_1=touches.stride_1,
    )
    return tuple((int(slot), 0) for slot in slots), boxes
