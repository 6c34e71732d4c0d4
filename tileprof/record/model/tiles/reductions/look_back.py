"""Single-pass scans: a block waits inside the launch for the results of all blocks before it.

Source: D. Merrill, M. Garland, "Single-pass Parallel Prefix Scan with Decoupled Look-back", NVIDIA NVR-2016-002;
CUB's ``DeviceScan`` and ``DeviceSelect`` work this way. A block reads its own part of the input, and its result depends
on all earlier parts, which other blocks read. The trace has no order between tiles of one launch, so each tile gets a
read of everything before its part (`Sketch.awaits`), and the launch is ``inferred``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from tileprof.arrays import I64
from tileprof.record.model.tile_model import Operand
from tileprof.record.model.tiles.foundations.sketch import Sketch, Span

LOOK_BACK: Final = "one pass: a block waits inside the launch for the blocks before it, so it needs all earlier input"

GROUPS: Final = 256
"""Distinct prefixes per launch at most. With more tiles than that, neighbours share the longest prefix of their group:
a superset, so that dependencies grow with tiles and not with their square."""


def look_back(sketch: Sketch, operands: Sequence[Operand], tile: I64, low: I64) -> None:
    """Tile ``tile[i]`` needs all elements of ``operands`` before ``low[i]``, in row-major order."""
    if len(tile) <= 1:
        return
    size = -(-len(tile) // GROUPS)
    last = np.minimum(np.arange(len(tile)) // size * size + size - 1, len(tile) - 1)
    for operand in operands:
        span = Span(tuple(range(len(operand.shape))), np.zeros_like(low), low[last])
        sketch.awaits(operand, tile, span)
