"""A policy laid over the tile relations of a page: the verdict, what is awaited and what is missed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pandas as pd

from tileprof.viz.tables.page_values import pack, printable
from tileprof.viz.tables.relations import fitted

if TYPE_CHECKING:
    from tileprof.analysis import EdgeBlock


@dataclass(frozen=True, slots=True)
class PairOverlay:
    """Two launches of the trace: tiles that the policy's waits await, and dependencies that no wait covers; None for
    none.
    """

    producer: int
    consumer: int
    awaited: EdgeBlock | None
    missing: EdgeBlock | None


@dataclass(frozen=True, slots=True)
class Overlay:
    """The page's view of a policy.

    - ``reasons``: sentences on what else is unsound
    - ``needed``, ``missing``: numbers of dependencies
    - ``waits``: number of waits of tiles on semaphores
    - ``excess``: pairs of tiles of which one awaits the other without need
    - ``stream_ns``, ``policy_ns``: predicted time of its launches alone, one after the other and under the policy
    - ``refused``: why the policy cannot belong to this trace; nothing else is known then
    """

    name: str
    sound: bool
    reasons: Sequence[str]
    launches: Sequence[int]
    needed: int
    missing: int
    waits: int
    excess: int
    stream_ns: float
    policy_ns: float
    pairs: Sequence[PairOverlay]
    refused: str = ""

    @classmethod
    def foreign(cls, name: str, why: str) -> Overlay:
        """Return a policy of another trace."""
        return cls(name, False, (), (), 0, 0, 0, 0, 0.0, 0.0, (), why)


def overlay_table(
    overlay: Overlay, pairs: pd.DataFrame, tiles: Sequence[int], *, budget: int, notes: list[str]
) -> dict[str, Any]:
    """Return ``policy`` of the page: the verdict, and ``pairs`` of ``{"pair", "awaited", "missing"}`` with relations in
    `blocks`' form.

    ``pair`` is a place in ``pairs`` (the page's). Waits between launches that do not depend on each other have no
    matrix to stand in, and are counted.
    """
    keys = zip(pairs["producer"].tolist(), pairs["consumer"].tolist(), strict=True)
    place = {key: i for i, key in enumerate(keys)}
    rows, aside = [], 0
    for pair in overlay.pairs:
        if (pair.producer, pair.consumer) not in place:
            aside += 1
            continue
        row: dict[str, Any] = {"pair": place[pair.producer, pair.consumer]}
        for name, block in (("awaited", pair.awaited), ("missing", pair.missing)):
            row[name], size = fitted(block, int(tiles[pair.producer]), budget) if block is not None else (None, 0)
            budget -= size
        rows.append(row)
    if aside:
        notes.append(f"The policy also orders {aside:,} pairs of launches between which the trace has no dependencies.")
    return {
        "name": printable(overlay.name),
        "sound": overlay.sound,
        "refused": printable(overlay.refused),
        "reasons": [printable(reason) for reason in overlay.reasons],
        "launches": pack(list(overlay.launches)),
        **{name: getattr(overlay, name) for name in ("needed", "missing", "waits", "excess", "stream_ns", "policy_ns")},
        "pairs": rows,
    }
