"""Lanes: which tile ran, or would run, on which SM slot, when.

A lane is one resident slot of one SM. Recorded tiles bring their SM and their times; modelled tiles are handed out
in dispatch order, each to the slot that falls free first, which is what the hardware's block scheduler does for
the blocks of one kernel.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True, slots=True)
class Lanes:
    """Tiles on lanes: columns ``[tiles]`` of SM, slot within the SM, begin and end from the launch's begin.

    ``slots`` is the number of lanes an SM has. A tile in a cluster of ``cluster`` blocks holds as many lanes: its own
    and the ones that follow in the order of `dispatch` (the same slot of the next SMs, after the last SM the next slot
    of the first).
    """

    sm: NDArray[np.int32]
    slot: NDArray[np.int32]
    begin_ns: NDArray[np.float64]
    end_ns: NDArray[np.float64]
    slots: int
    cluster: int = 1


def dispatch(tile_ns: ArrayLike, *, sms: int, blocks_per_sm: int, cluster: int = 1, most: int = 0) -> Lanes:
    """Hand tiles out in order over ``sms * blocks_per_sm`` slots, breadth first over the SMs.

    ``tile_ns`` ``[tiles]`` is each tile's life in ns; ``cluster``: blocks of a tile, each in a slot; ``most`` (0: as
    many as fit): tiles at a time (see `Machine.slots`).
    """
    durations = np.asarray(tile_ns, dtype=np.float64)
    if sms < 1 or blocks_per_sm < 1:
        raise ValueError(f"a device with {sms} SMs and {blocks_per_sm} blocks per SM runs nothing")
    slots = max(sms * blocks_per_sm // cluster, 1)
    slots = min(slots, most) if most else slots
    if len(durations) == 0 or np.all(durations == durations[0]):
        index = np.arange(len(durations))
        lane, begin = index % slots, index // slots * (durations[0] if len(durations) else 0.0)
    else:
        lane, begin = _first_free(durations, slots)
    first = lane * cluster
    sm, slot = (first % sms).astype(np.int32), (first // sms).astype(np.int32)
    return Lanes(
        sm, slot, begin.astype(np.float64), begin + durations, blocks_per_sm, min(cluster, sms * blocks_per_sm)
    )


def blocks_of(lanes: Lanes, sms: int) -> Lanes:
    """Return one row per block instead of one per tile: the lanes that clusters hold, block after block of
    all tiles.
    """
    if lanes.cluster == 1:
        return lanes
    lane = lanes.sm.astype(np.int64) + np.arange(lanes.cluster)[:, None]
    begin, end = (np.tile(ns, lanes.cluster) for ns in (lanes.begin_ns, lanes.end_ns))
    slot = lanes.slot + lane // sms
    return Lanes((lane % sms).ravel().astype(np.int32), slot.ravel().astype(np.int32), begin, end, lanes.slots)


def recorded_lanes(sm: ArrayLike, begin_ns: ArrayLike, end_ns: ArrayLike) -> Lanes:
    """Return lanes of measured tiles: on each SM, a tile takes the lowest slot that is free when it begins."""
    sms, begin, end = np.asarray(sm, np.int32), np.asarray(begin_ns, np.float64), np.asarray(end_ns, np.float64)
    slot = np.zeros(len(sms), np.int32)
    busy: dict[int, list[tuple[float, int]]] = {}
    free: dict[int, list[int]] = {}
    opened: dict[int, int] = {}
    for tile in np.lexsort((end, begin, sms)).tolist():
        key = int(sms[tile])
        running, idle = busy.setdefault(key, []), free.setdefault(key, [])
        while running and running[0][0] <= begin[tile]:
            heapq.heappush(idle, heapq.heappop(running)[1])
        if not idle:
            idle.append(opened.get(key, 0))
            opened[key] = idle[0] + 1
        slot[tile] = heapq.heappop(idle)
        heapq.heappush(running, (float(end[tile]), int(slot[tile])))
    return Lanes(sms, slot, begin, end, max(opened.values(), default=1))


def busy_share(lanes: Lanes, *, sms: int, bins: int, weight: ArrayLike = 1.0) -> NDArray[np.float64]:
    """Return how full each SM is over time, ``[sms, bins]``: slot-time in use over slot-time there is, 0 to 1.

    ``weight`` (of all tiles, or ``[tiles]``): slots that a tile holds.
    """
    share = np.zeros((sms, bins))
    span = float(lanes.end_ns.max()) if len(lanes.end_ns) else 0.0
    if span <= 0:
        return share
    begin, end = lanes.begin_ns / span * bins, lanes.end_ns / span * bins
    # Slot-time before each bin's right edge, as a piecewise linear function of the edge: slopes are differenced.
    slot_time = np.zeros((sms, bins + 1))
    slope = np.zeros((sms, bins + 2))
    weights = np.broadcast_to(np.asarray(weight, np.float64), begin.shape)
    for sign, at in ((weights, begin), (-weights, end)):
        whole = np.minimum(at.astype(np.int64), bins)
        np.add.at(slot_time, (lanes.sm, whole), sign * (whole + 1 - at))
        np.add.at(slope, (lanes.sm, whole + 1), sign)
    share = slot_time[:, :bins] + np.cumsum(slope, axis=1)[:, :bins]
    return np.clip(share / lanes.slots, 0.0, 1.0)


def _first_free(durations: NDArray[np.float64], slots: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    lane = np.empty(len(durations), np.int64)
    begin = np.empty(len(durations))
    free = [(0.0, slot) for slot in range(slots)]
    for tile, duration in enumerate(durations.tolist()):
        at, slot = free[0]
        lane[tile], begin[tile] = slot, at
        heapq.heapreplace(free, (at + duration, slot))
    return lane, begin
