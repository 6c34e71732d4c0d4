"""Finds mappings of one physical memory: a program may map what `cuMemCreate` gave at several addresses, at once or in
turn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

Key = tuple[int, int]
"""A handle, and how many memories had it before: the driver gives handles out again."""


@dataclass(slots=True)
class Physical:
    """The memories of a process that are mapped more than once. What other processes gave it counts by its handle."""

    shared: dict[Key, tuple[int, int]]
    """Number and bytes of each."""
    _created: Counter[int] = field(default_factory=Counter)
    _exported: dict[int, Key] = field(default_factory=dict)
    """Exported memory by the number of the file."""
    _imported: dict[Key, Key] = field(default_factory=dict)

    @classmethod
    def of(cls, events: Iterable[dict[str, Any]]) -> Physical:
        """Return the allocations that the events of a process map several times."""
        now, ends, mappings = cls({}), Counter[Key](), Counter[Key]()
        for event in events:
            if event["e"] == "map":
                key = now._key(event)
                mappings[key] += 1
                ends[key] = max(ends[key], event["offset"] + event["bytes"])
            else:
                now.follow(event)
        several = [key for key, count in mappings.items() if count > 1]
        return cls({key: (number, ends[key]) for number, key in enumerate(several)})

    def follow(self, event: dict[str, Any]) -> None:
        """Note what handles mean from now on; other events say nothing."""
        if event["e"] == "physical":
            self._created[event["handle"]] += 1
        elif event["e"] == "exported":
            self._exported[event["file"]] = self._key(event)
        elif event["e"] == "imported" and event["file"] in self._exported:
            self._created[event["handle"]] += 1
            self._imported[event["handle"], self._created[event["handle"]]] = self._exported[event["file"]]

    def mapped(self, event: dict[str, Any]) -> tuple[int, int] | None:
        """Return number and bytes of the memory of a mapping; None where it has no other."""
        return self.shared.get(self._key(event))

    def _key(self, event: dict[str, Any]) -> Key:
        key = event["handle"], self._created[event["handle"]]
        return self._imported.get(key, key)
