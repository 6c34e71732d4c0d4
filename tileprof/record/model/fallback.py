"""The conservative launch: an operator without a tile model reads and writes everything, in every tile."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tileprof.record.model import linear_algebra_times
from tileprof.record.model.tile_model import Call, Kernel, distinct
from tileprof.record.model.tiles.foundations.regions import whole
from tileprof.trace.footprint import READ, WRITE, Boxes, Footprint

if TYPE_CHECKING:
    from collections.abc import Collection

    from tileprof.devices import Device
    from tileprof.record.model.tile_model import Operand

_ELEMENTS_A_TILE = 1024
"""Elements per tile, as in a pointwise kernel's block; only the number of tiles depends on it, not what they touch."""


def conservative(call: Call, device: Device, written: Collection[int], note: str) -> list[Kernel]:
    """Model one launch in which each tile reads all inputs and writes all outputs.

    ``written`` are refs of inputs that the operator writes to. At most one tile per SM: more would
    only repeat the same boxes. A superset is sound: a write that did not happen stands between a true
    writer and a reader, and depends on the former.
    """
    operands = distinct(o for o in call.tensors if o.numel)
    outputs = {o.ref for o in call.outputs}
    if not operands:
        return []
    produced = (o.numel for o in operands if o.ref in outputs or o.ref in written)
    largest = max(produced, default=1)  # without outputs it tells the host something
    tiles = min(-(-largest // _ELEMENTS_A_TILE), device.sms)
    parts: list[Boxes] = []
    for slot, operand in enumerate(operands):
        if operand.ref not in outputs:
            parts.append(_all(operand, slot, READ, tiles))
        if operand.ref in outputs or operand.ref in written:
            parts.append(_all(operand, slot, WRITE, tiles))
    block = np.zeros((tiles, 3), np.int32)
    block[:, 0] = np.arange(tiles)
    return [
        Kernel(
            name=f"conservative_{call.op.partition('::')[2]}",
            footprint=Footprint(block, Boxes.concat(parts)),
            operands=operands,
            grid=(tiles, 1, 1),
            coverage="conservative",
            note=note,
            chain_ns=linear_algebra_times.chain_ns(call),
        )
    ]


def _all(operand: Operand, slot: int, mode: int, tiles: int) -> Boxes:
    return whole(operand, slot, mode, np.arange(tiles))
