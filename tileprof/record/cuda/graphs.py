"""Kernel nodes of CUDA graphs, which share their records' launch id: how far they can be told apart.

A node's records carry how many nodes had ended when they were made. That is the node's place as long as nodes run one
after another. Where they do not, a place holds the blocks of several nodes, or of none: from there on the nodes of that
graph launch cannot be told apart.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from tileprof.record.cuda import raw
from tileprof.record.cuda.tiles import Geometry


class Graphs:
    """The graph launches of a process."""

    def __init__(self, process: raw.Process) -> None:
        self._process = process
        self._nodes: dict[int, list[dict[str, Any]]] = defaultdict(list)
        for event in process.events:
            if event["e"] == "launch" and event["graph"] >= 0:
                self._nodes[event["launch"]].append(event)
        self._clear: dict[int, int] = {}

    def entries(self, event: dict[str, Any]) -> tuple[raw.Entries, bool]:
        """The entries of a launch, and whether they are its own: if not, they are those of all nodes that may be it."""
        launch, place = event["launch"], event["generation"]
        if event["graph"] < 0:
            return self._process.of(launch, 0), True
        if launch not in self._clear:
            self._clear[launch] = self._told_apart(launch)
        clear = self._clear[launch]
        if place < clear:
            return self._process.of(launch, place), True
        return np.concatenate([self._process.of(launch, g) for g in range(clear, raw.LAST_GENERATION + 1)]), False

    def _told_apart(self, launch: int) -> int:
        """The first place that is not one node's own; beyond the last place when every node has its own."""
        entry_of: dict[int, set[int]] = defaultdict(set)
        for event in self._nodes[launch]:
            place = int(event["generation"])
            entries = self._process.of(launch, place)
            enter = entries[raw.kinds(entries) == raw.BLOCK]
            blocks = np.sort(enter["block"])
            gx, gy, gz = Geometry.of(event).grid
            entry_of[event["kernel"]] |= set(np.unique(raw.low(enter) >> raw.SM_BITS).tolist())
            whole = np.array_equal(blocks, np.arange(gx * gy * gz))
            if not whole or len(entry_of[event["kernel"]]) != 1 or place >= raw.LAST_GENERATION:
                return place
        return raw.LAST_GENERATION + 1
