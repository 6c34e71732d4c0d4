"""The rules by which `tileprof run --scheduler acs` places launches, for the simulator.

They are those of tileprof/runtime/acs/native/order/window.cpp.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Placement:
    """A launch on a lane (stream): launches of other lanes whose events it awaits, those among them whose event had to
    be recorded for it, the launch before it on its lane, -1 for none, and how many other lanes hold launches that may
    run beside it.
    """

    lane: int
    awaited: tuple[int, ...]
    recorded: int
    before: int
    beside: int


@dataclass(slots=True)
class Lanes:
    """Places launches in issue order. Every launch waits for those that it conflicts with among the last ``window``,
    and for all that have left the window.
    """

    lanes: int
    window: int
    _items: deque[tuple[int, int, tuple[int, ...]]] = field(default_factory=deque)
    _clocks: list[list[int]] = field(default_factory=list)
    _tails: list[int] = field(default_factory=list)
    _evicted: list[int] = field(default_factory=list)
    _barrier: int = -1
    _events: set[int] = field(default_factory=set)
    _clock_of: dict[int, tuple[int, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._clocks = [[-1] * self.lanes for _ in range(self.lanes)]
        self._tails = [-1] * self.lanes
        self._evicted = [-1] * self.lanes

    def barrier(self, launch: int) -> Placement:
        """Return the next launch, of which nothing is known: it goes to lane 0, behind everything, and everything waits
        for it.
        """
        placement = self._append(launch, 0, self._tails)
        self._items.clear()
        self._barrier = launch
        self._evicted = [launch if lane == 0 else -1 for lane in range(self.lanes)]
        return placement

    def place(self, launch: int, conflicts: AbstractSet[int]) -> Placement:
        """Return the next launch; ``conflicts``: earlier launches that it must wait for."""
        needs, closure = list(self._evicted), list(self._evicted)
        newest, newest_launch = -1, -1
        for earlier, lane, clock in reversed(self._items):
            if closure[lane] >= earlier or earlier not in conflicts:
                continue
            needs[lane] = max(needs[lane], earlier)
            closure = [max(a, b) for a, b in zip(closure, clock, strict=True)]
            if self._tails[lane] == earlier and earlier > newest_launch:
                newest, newest_launch = lane, earlier
        if newest < 0 and self._barrier >= 0 and self._tails[0] == self._barrier:
            newest = 0  # it follows on the last barrier, which no other launch does there
        placement = self._append(launch, newest if newest >= 0 else self._free(closure), needs)
        self._items.append((launch, placement.lane, self._clock_of[launch]))
        if len(self._items) > self.window:
            evicted, its_lane, _ = self._items.popleft()
            self._evicted[its_lane] = evicted
        return placement

    def _append(self, launch: int, lane: int, needs: list[int]) -> Placement:
        """Return the launch on a lane, where it waits for all up to ``needs`` of each other lane."""
        own, awaited_launches, recorded = self._clocks[lane], [], 0
        for other in range(self.lanes):
            if other != lane and needs[other] > own[other]:
                awaited_launches.append(needs[other])
                recorded += needs[other] not in self._events
                self._events.add(needs[other])
                clock = self._clock_of[needs[other]]
                own[:] = [max(a, b) for a, b in zip(own, clock, strict=True)]
        before = self._tails[lane]
        self._tails[lane] = own[lane] = launch
        self._clock_of[launch] = tuple(own)
        beside = sum(tail > own_tail for tail, own_tail in zip(self._tails, own, strict=True))
        return Placement(lane, tuple(awaited_launches), recorded, before, beside)

    def _free(self, closure: list[int]) -> int:
        """Return a lane whose launches are all ordered before anyway, else the one that was used longest ago."""
        finished_lanes = [lane for lane in range(self.lanes) if self._tails[lane] <= closure[lane]]
        return finished_lanes[0] if finished_lanes else min(range(self.lanes), key=self._tails.__getitem__)
