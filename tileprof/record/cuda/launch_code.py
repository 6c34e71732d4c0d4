"""The part of a launch's machine code that it reaches with the parameters that its records hold (`machine_code`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from tileprof.record.cuda.machine_code import Kernels
from tileprof.record.cuda.records import raw
from tileprof.record.cuda.tensor_maps import tensormap
from tileprof.record.cuda.tensor_maps.tensormap import TensorMap

BEGIN_BYTES: Final = 16
"""Parameters begin so far behind a multiple of 64."""
PART_BYTES: Final = 16
"""Bytes of parameters per entry that holds some of them."""


def parameters(entries: raw.Entries) -> bytes:
    """Return a launch's parameters as the device copied them; nothing where it did not find their bounds."""
    parts = entries[(raw.kinds(entries) == raw.MAP) & (entries["block"] == raw.MAP_BESIDE)]
    address, index = np.unique(raw.low(parts), return_index=True)
    if not len(address) or address[0] % 64 != BEGIN_BYTES or (np.diff(address) != PART_BYTES).any():
        return b""
    words: bytes = parts["payload"][index].astype("<u4").tobytes()
    return words


def constants(block: bytes, begin: int, live: Sequence[tuple[int, int]]) -> dict[int, int]:
    """Return the parameters' words by their offsets in the constant bank, where the first is at ``begin``.

    What points into memory is left out: where buffers lie decides nothing, and launches that differ in that alone
    are alike.
    """
    words = np.frombuffer(block, "<u8")
    low, high = (np.array([r[i] for r in live], np.uint64) for i in (0, 1))
    inside = ((words[:, None] >= low) & (words[:, None] < high)).any(axis=1)
    halves = np.frombuffer(block, "<u4").reshape(-1, 2)
    return {begin + 8 * n + 4 * half: int(halves[n, half]) for n in np.flatnonzero(~inside).tolist() for half in (0, 1)}


def stores(
    kernels: Kernels, event: dict[str, Any], kernel: dict[str, Any], entries: raw.Entries, live: list[tuple[int, int]]
) -> list[TensorMap] | None:
    """Return the maps that a launch may store through; None where that is unknown."""
    block = kernels.parameters(event["launch"]) or parameters(entries)
    block = block[: len(block) // PART_BYTES * PART_BYTES]
    if event["graph"] >= 0 or not block or len(block) < kernel["parameters"][1] // PART_BYTES * PART_BYTES:
        return None
    reach = kernels.reached(event["kernel"], constants(block, kernel["parameters"][0], live))
    if reach is None or reach.maps is None:
        return None
    map_words = [block[at : at + 64] for at in sorted(reach.maps)]
    maps = [tensormap.decode(np.frombuffer(words, "<u4"), loaded=True) for words in map_words if len(words) == 64]
    maps_read = [m for m in maps if m is not None]
    return maps_read if len(maps_read) == len(reach.maps) else None
