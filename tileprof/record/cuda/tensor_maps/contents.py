"""Tensor maps that kernels change: what each load's map held.

A grouped product writes the map of its next group over that of the last one. The device names what a map outside of the
kernel's parameters holds at each load (`MAP_NAME` and four `MAP_CONTENTS`, adjacent, once per contents). Maps are
identified by address where they held one thing all the time, else by ``-1 - name``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tileprof.arrays import I64
from tileprof.record.cuda.records import raw

Words = NDArray[np.uint32]

_PARTS = 4
"""Entries of 16 bytes that hold a map."""


def parameter_words(entries: raw.Entries) -> dict[int, Words]:
    """Return what lies at the address of each map that was loaded through, as first seen."""
    parts = entries[(raw.kinds(entries) == raw.MAP) & (entries["block"] == raw.MAP_LOADED)]
    slots: dict[int, Words] = {}
    for address, payload in zip(raw.low(parts).tolist(), parts["payload"], strict=True):
        slot = address // 64 * 64
        words = slots.setdefault(slot, np.zeros(4 * _PARTS, np.uint32))
        words[(address - slot) // 4 : (address - slot) // 4 + 4] = payload
    return slots


def map_contents(entries: raw.Entries) -> dict[int, tuple[int, Words]]:
    """Return the address and words of each named contents; names of which parts are missing are left out."""
    parts = entries[(raw.kinds(entries) == raw.MAP) & (entries["block"] >= raw.MAP_CONTENTS)]
    out: dict[int, tuple[int, Words]] = {}
    for at in np.flatnonzero(parts["block"] == raw.MAP_NAME).tolist():
        head, four = parts[at], parts[at + 1 : at + 1 + _PARTS]
        address = int(head["payload"][0]) | int(head["payload"][1]) << 32
        whole = (four["block"] == raw.MAP_CONTENTS).all() and np.array_equal(
            raw.low(four), address + 16 * np.arange(_PARTS)
        )
        if whole:
            out[int(raw.low(parts[at : at + 1])[0])] = address, four["payload"].ravel().astype(np.uint32)
    return out


def identified(entries: raw.Entries, address: I64, name: I64) -> I64:
    """Return what identifies the map of each load, of which the heads say ``address`` and the tails ``name``."""
    changing = name != address
    if not changing.any():
        return address
    pairs = np.unique(np.column_stack([address, name])[changing], axis=0)
    contents_of, slots = map_contents(entries), parameter_words(entries)
    same = np.full(len(address), fill_value=False)
    for place in np.unique(pairs[:, 0]).tolist():
        names = pairs[pairs[:, 0] == place, 1].tolist()
        one = len(names) == 1 and names[0] in contents_of and place in slots
        if one and np.array_equal(contents_of[names[0]][1], slots[place]):
            same |= address == place
    return np.where(changing & ~same, -1 - name, address)


def unnamed(entries: raw.Entries) -> set[int]:
    """Return addresses of maps that were loaded through without a look at what they held then."""
    kind = raw.kinds(entries)
    head, tail = raw.low(entries[kind == raw.TENSOR]), raw.low(entries[kind == raw.TENSOR_TAIL])
    return set(np.unique(head[head == tail]).tolist()) if len(head) == len(tail) else set(head.tolist())
