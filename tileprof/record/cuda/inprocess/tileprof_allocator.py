# ruff: noqa: INP001, PTH118, PTH123, SLF001 - runs inside other programs: a script that imports little, and late
"""The history of PyTorch's caching allocator, written as JSON rows when the program ends.

Writes ``$TILEPROF_RAW/process-<pid>/allocator.json``: ``[action, address, bytes, microseconds since 1970]``. Where only
marked regions are recorded, a history is kept inside them alone, and each begins with a row of all that is allocated
then: ``["live", [[address, bytes], ...], 0, microseconds]``. An allocator that keeps no history
(``backend:cudaMallocAsync``) is done without: the driver reports what it hands out.
"""

from __future__ import annotations

import atexit
import inspect
import json
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

_MOST_ALLOCATIONS = 4_000_000
_RECORDED_ACTIONS = frozenset({"alloc", "free_completed"})


class History:
    """The allocator's history of one process. Nothing here may end the program: a refusal of the allocator is printed
    once.
    """

    def __init__(self, torch: Any, folder: str, complain: Callable[[str], None]) -> None:
        self.cuda = torch.cuda
        self.folder = folder
        self.complain = complain
        self.rows: list[list[Any]] = []
        self.enabled = self.keeping = self.refused = False
        self.since = 0

    def from_the_start(self) -> None:
        """Keep a history as soon as the program uses CUDA."""
        self.enabled = True
        self.cuda._lazy_call(self.begin)

    def region(self, active: bool) -> None:
        """A captured region has begun or is about to end."""
        self.enabled = active
        if active:
            self.cuda._lazy_call(self.begin)
        else:
            self.end()

    def begin(self) -> None:
        """Note what is allocated, and keep a history from now on."""
        if self.enabled and not self.keeping:
            if not self.rows:
                atexit.register(self.write)
            self.since = int(time.time() * 1e6)
            self.rows.append(["live", self.live(), 0, self.since])
            self.keeping = self.tried(lambda: self.record("all"))

    def end(self) -> None:
        """Keep none any more, but take over what there is."""
        if self.keeping:
            self.tried(self.take)
            self.tried(lambda: self.record(None))
            self.keeping = False

    def record(self, enabled: str | None) -> None:
        record = self.cuda.memory._record_memory_history
        options = {"context": None, "stacks": "python", "max_entries": _MOST_ALLOCATIONS}
        if "global_record_annotations" in inspect.signature(record).parameters:
            # A region may end in another thread. Without this PyTorch looks for its callback in that thread alone,
            # warns on stderr that there is none, and leaves it in the first.
            options["global_record_annotations"] = True
        record(enabled=enabled, **options)

    def take(self) -> None:
        for trace in self.cuda.memory._snapshot()["device_traces"]:
            for e in trace:
                if e["action"] in _RECORDED_ACTIONS and e["time_us"] >= self.since:
                    self.rows.append([e["action"], e["addr"], e["size"], e["time_us"]])

    def live(self) -> list[tuple[int, int]]:
        """Return address and size of everything that is allocated now."""
        blocks: list[tuple[int, int]] = []
        self.tried(lambda: blocks.extend(_blocks(self.cuda.memory._snapshot()["segments"])))
        return blocks

    def write(self) -> None:
        if self.keeping:
            self.tried(self.take)
        with open(os.path.join(self.folder, "allocator.json"), "w", encoding="utf-8") as file:
            json.dump(self.rows, file)

    def tried(self, action: Callable[[], None]) -> bool:
        """Return whether it worked. What did not is a sentence in the trace, once."""
        if self.refused:
            return False
        try:
            action()
        except Exception as error:  # noqa: BLE001 - whatever another version answers, the program continues
            self.refused = True
            self.complain(f"PyTorch's allocator keeps no history ({error}): tensors are what the driver hands out")
            return False
        return True


def _blocks(segments: list[dict[str, Any]]) -> Iterator[tuple[int, int]]:
    for segment in segments:
        address = segment["address"]
        for block in segment["blocks"]:
            if block["state"] == "active_allocated":
                yield address, block.get("requested_size", block["size"])
            address += block["size"]
