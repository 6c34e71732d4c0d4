"""One launch, run as often as it takes: plain for its duration, with block times, and with every access logged."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tileprof.errors import UserError
from tileprof.record.filter_settings import FilterSettings
from tileprof.record.source import layout
from tileprof.record.source.layout import BLOCK, ENTRY, Blocks, Entries
from tileprof.record.source.machine import Machine, Place

_TIMED_RUNS: Final = 2  # the first loads the code
_TRIES: Final = 3  # of a log that proves too small: a kernel that is not repeatable may ask for more each time

Go = Callable[[], "float | None"]


@dataclass(frozen=True, slots=True)
class Issue:
    """The ways to run a launch: ``attach`` gives it a log, ``go`` runs it; ``plain`` runs it as it is without the
    header.
    """

    place: Place
    attach: Callable[[bytes], None]
    go: Go
    plain: Go | None = None


@dataclass(frozen=True, slots=True)
class Captured:
    """The remains of a launch: its log, how many entries it asked for, and the memory ``before`` it (None: not kept).

    ``times`` are blocks of a run that logged no accesses, where there was one; ``duration_ns`` is the plain run's.
    """

    entries: Entries
    requested_entries: int
    blocks: Blocks
    times: Blocks
    duration_ns: float | None
    before: list[NDArray[np.uint8]] | None
    filters: NDArray[np.uint32] | None = None
    """``[blocks, 2, words]`` what each block put into its filters in the run whose accesses were logged."""
    filtered_times: Blocks | None = None
    """Blocks of a run that filled filters and logged nothing, where there was one."""

    @property
    def lost(self) -> int:
        """Entries that found no room."""
        return self.requested_entries - len(self.entries)


class Capture:
    """Keeps a log on the machine from launch to launch; it grows when a launch needs more, up to ``largest_bytes``."""

    def __init__(
        self,
        machine: Machine,
        log_bytes: int,
        largest_bytes: int,
        *,
        copies: bool,
        filters: FilterSettings | None = None,
    ) -> None:
        self._machine = machine
        self._largest = largest_bytes // ENTRY.itemsize
        self._copies = copies
        self._filters = filters
        self._capacity = 0
        self._log = 0
        self._log_entries = max(log_bytes // ENTRY.itemsize, 1)

    def run(self, issue: Issue, memory: list[tuple[int, int]]) -> Captured:
        """Run a launch that may change ``memory`` (address, bytes); it is as after one run when this returns."""
        saved = self._save(memory) if self._copies else []
        try:
            return self._run(issue, memory, saved)
        finally:
            self._free(*saved)

    def close(self) -> None:
        """Free the log."""
        if self._capacity:
            self._free(self._log)
            self._capacity = 0

    def _run(self, issue: Issue, memory: list[tuple[int, int]], saved: list[int]) -> Captured:
        duration, times, filtered_times = None, None, None
        again = bool(saved) or not memory
        if again and self._machine.measures:
            for _ in range(_TIMED_RUNS if issue.plain else 0):
                assert issue.plain is not None
                duration = issue.plain()
                self._restore(memory, saved)
            times = self._logged(issue, accesses=False).blocks
            self._restore(memory, saved)
            if self._filters is not None:
                filtered_times = self._logged(issue, accesses=False, filters=self._filters).blocks
                self._restore(memory, saved)
        for _ in range(_TRIES):
            logged = self._logged(issue, accesses=True, filters=self._filters)
            if logged.requested_entries <= self._capacity or not again or self._capacity >= self._largest:
                break
            self._restore(memory, saved)
            self._log_entries = logged.requested_entries + logged.requested_entries // 8
        before = [self._machine.read(a, size) for a, (_, size) in zip(saved, memory, strict=True)] if saved else None
        return replace(
            logged,
            times=logged.blocks if times is None else times,
            duration_ns=duration,
            before=before,
            filtered_times=filtered_times,
        )

    def _logged(self, issue: Issue, *, accesses: bool, filters: FilterSettings | None = None) -> Captured:
        machine = self._machine
        if accesses:
            self._grow()
        blocks = layout.fresh_blocks(issue.place.blocks)
        head = machine.allocate(blocks.nbytes + 8)  # the count lies behind the blocks
        shape = filters.shape(issue.place.blocks) if filters else (0, 0, 0)
        words = np.zeros(shape, np.uint32)
        filter_memory = machine.allocate(words.nbytes) if filters else 0
        try:
            if filters:
                machine.write(filter_memory, words.ravel())
            machine.write(head, np.append(blocks.view(np.uint8), np.zeros(8, np.uint8)))
            count = head + blocks.nbytes
            log_at, capacity = (self._log, self._capacity) if accesses else (0, 0)
            issue.attach(layout.log(log_at, head, count, capacity, filter_memory, filters))
            issue.go()
            # Whatever runs this kernel outside a recording must find no log.
            issue.attach(layout.log(0, 0, 0, 0))
            log = machine.read(head, blocks.nbytes + 8)
            if filters:
                words = machine.read(filter_memory, words.nbytes).view(np.uint32).reshape(shape)
        finally:
            self._free(head, *([filter_memory] if filters else []))
        requests = int(log[-8:].view("<u8")[0])
        entry_count = min(requests, self._capacity) if accesses else 0
        entries = (
            machine.read(self._log, entry_count * ENTRY.itemsize).view(ENTRY) if entry_count else np.empty(0, ENTRY)
        )
        lives = log[:-8].view(BLOCK)
        return Captured(entries, requests, lives, lives, None, None, words if filters else None)

    def _free(self, *addresses: int) -> None:
        # After a fault nothing can be freed, and the fault is what the user is to hear of.
        with suppress(UserError):
            for address in addresses:
                self._machine.free(address)

    def _grow(self) -> None:
        entry_count = min(self._log_entries, self._largest)
        if entry_count > self._capacity:
            self.close()
            self._log = self._machine.allocate(entry_count * ENTRY.itemsize)
            self._capacity = entry_count

    def _save(self, memory: list[tuple[int, int]]) -> list[int]:
        saved = []
        for address, size in memory:
            saved.append(self._machine.allocate(size))
            self._machine.copy(saved[-1], address, size)
        return saved

    def _restore(self, memory: list[tuple[int, int]], saved: list[int]) -> None:
        for copy, (address, size) in zip(saved, memory, strict=True):
            self._machine.copy(address, copy, size)
