"""PyTorch's caching allocator: its own history, put among a process's events where it belongs in time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def merged(events: list[dict[str, Any]], folder: Path) -> list[dict[str, Any]]:
    """Return the events with "tensor", "untensor" and "live" ones among them, from ``allocator.json`` in ``folder`` if
    it is there.

    Both clocks count from 1970, the allocator's in microseconds. A launch, seen through its callbacks, takes longer
    than that, so an allocation of the same microsecond came before it.
    """
    path = folder / "allocator.json"
    if not path.exists():
        return events
    rows = sorted(json.loads(path.read_text(encoding="utf-8")), key=lambda r: r[3])
    history = [_event(action, address, size) for action, address, size, _ in rows]
    stamps = [int(row[3]) * 1000 for row in rows]
    out: list[dict[str, Any]] = []
    at = 0
    for event in events:
        t = event.get("t")
        while t is not None and at < len(history) and stamps[at] <= t:
            out.append(history[at])
            at += 1
        out.append(event)
    return out


def _event(action: str, address: Any, size: int) -> dict[str, Any]:
    if action == "live":
        return {"e": "live", "tensors": address}
    if action == "alloc":
        return {"e": "tensor", "address": address, "bytes": size, "kind": "activation"}
    return {"e": "untensor", "address": address}
