"""Kernel nodes of CUDA graphs, which share their records' launch id: how far they can be told apart.

A node's records carry how many nodes had ended when they were made. That is the node's place as long as nodes run one
after another. Where they do not, a place holds the blocks of several nodes, or of none, or of another kernel than it
should: from there on the nodes of that graph launch cannot be distinguished. The device's own counts are compared with
the nodes that were launched: where threads are left over or nodes missing, nothing of that graph launch is trusted.
"""

from __future__ import annotations

from collections import defaultdict
from enum import Enum
from math import prod
from typing import Any, Final

import numpy as np

from tileprof.record.cuda.records import raw
from tileprof.record.cuda.records.tiles import Geometry

_PLACES: Final = raw.LAST_GENERATION + 1
_PC_MASK: Final = (1 << 36) - 1
"""A block's record keeps these 36 bits of a kernel's entry, >> 4."""


class Attribution(Enum):
    """The owner of a launch's entries: the launch; any node of a graph that may be the launch; or an incomplete set of
    its own.
    """

    EXACT = 0
    AMBIGUOUS = 1
    INCOMPLETE = 2


class Graphs:
    """The graph launches of a process."""

    def __init__(self, process: raw.Process) -> None:
        self._process = process
        self._nodes: dict[int, list[dict[str, Any]]] = defaultdict(list)
        self._launched: dict[int, int] = {}
        self._ended: dict[int, tuple[int, int]] = {}
        self._code: dict[int, tuple[int, int]] = {}
        # Blocks of grids that a kernel launched stand among its launch's.
        launching = {e["id"] for e in process.events if e["e"] == "kernel" and e.get("launches")}
        evidence = []
        for event in process.events:
            if event["e"] == "launch" and event["graph"] >= 0:
                if event.get("counted", 1):
                    self._nodes[event["launch"]].append(event)
            elif event["e"] in {"launch", "learn"}:
                evidence += [event] if event["kernel"] not in launching else []
            elif event["e"] == "graph_end":
                self._launched[event["launch"]] = event["nodes"]
            elif event["e"] == "nodes":
                self._ended[event["launch"]] = event["ended"], event["threads"]
            elif event["e"] == "kernel" and event.get("code", [0, 0])[1]:
                self._code[event["id"]] = event["code"][0], event["code"][1]
        # Whether blocks enter where the library says that their kernels lie is seen where a launch has an id of its
        # own.
        if any(not self._is_at_home(e, process.of(e["launch"], 0)) for e in evidence):
            self._code = {}
        self._clear: dict[int, int] = {}
        self._unfinished = {e["launch"] for e in process.events if e["e"] == "unfinished"}
        self._spinning = {e["launch"] for e in process.events if e["e"] == "spinning" and "graph" in e}

    def entries(self, event: dict[str, Any]) -> tuple[raw.Entries, Attribution]:
        """Return the entries of a launch, and what they are."""
        launch, place = event["launch"], event["generation"]
        if event.get("aside"):
            return self._process.entries[:0], Attribution.EXACT
        if event["graph"] < 0:
            # a launch during which another thread drained may have lost late records
            return self._process.of(
                launch, 0
            ), Attribution.INCOMPLETE if launch in self._unfinished else Attribution.EXACT
        if launch in self._spinning:  # it was not waited for: other launches may have had its nodes' data
            return self._process.entries[:0], Attribution.INCOMPLETE
        if launch not in self._clear:
            self._clear[launch] = self._told_apart(launch)
        clear = self._clear[launch]
        if place < clear:
            return self._process.of(launch, place), Attribution.EXACT
        shared = np.concatenate([self._process.of(launch, g) for g in range(clear, _PLACES)])
        return shared, Attribution.INCOMPLETE if self._is_lost(launch) else Attribution.AMBIGUOUS

    def _told_apart(self, launch: int) -> int:
        """Return the first place that is not one node's own; beyond the last place when every node has its own."""
        if not self._adds_up(launch):
            return 0
        entry_of: dict[int, set[int]] = defaultdict(set)
        for event in self._nodes[launch]:
            place = int(event["generation"])
            entries = self._process.of(launch, place)
            enter = entries[raw.kinds(entries) == raw.BLOCK]
            gx, gy, gz = Geometry.of(event).grid
            entry_of[event["kernel"]] |= set(np.unique(raw.low(enter) >> raw.SM_BITS).tolist())
            whole = np.array_equal(np.sort(enter["block"]), np.arange(gx * gy * gz))
            here = len(entry_of[event["kernel"]]) == 1 and self._is_at_home(event, entries)
            if not whole or not here or place >= raw.LAST_GENERATION:
                return place
        return _PLACES

    def _adds_up(self, launch: int) -> bool:
        """Return whether as many nodes ended as were launched and no thread's end is left over. Older records
        do not say.
        """
        if launch not in self._launched or launch not in self._ended:
            return True
        node_count, threads = self._ended[launch]
        return threads == 0 and node_count == min(self._launched[launch], raw.LAST_GENERATION)

    def _is_lost(self, launch: int) -> bool:
        """Return whether nodes that never ended under this launch's id may have written records under another."""
        if not self._adds_up(launch):
            return self._ended[launch][0] < min(self._launched[launch], raw.LAST_GENERATION)
        if launch in self._ended:
            return False
        # Without a header on the device there are no counts: then the blocks that entered are all that can be counted.
        entered = sum(int((raw.kinds(self._process.of(launch, g)) == raw.BLOCK).sum()) for g in range(_PLACES))
        return entered < sum(prod(Geometry.of(event).grid) for event in self._nodes[launch])

    def _is_at_home(self, event: dict[str, Any], entries: raw.Entries) -> bool:
        """Return whether all blocks entered inside their kernel's code, where that is known."""
        if event["kernel"] not in self._code:
            return True
        start, size = self._code[event["kernel"]]
        enter = raw.low(entries[raw.kinds(entries) == raw.BLOCK]) >> raw.SM_BITS
        into = (enter - (start >> 4)) & _PC_MASK
        return bool((into < max(1, size >> 4)).all())
