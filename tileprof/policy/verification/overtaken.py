"""Launches that a set of stages would overtake."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tileprof.analysis import TileGraph


def overtaken_launches(graph: TileGraph, launches: Sequence[int], *, renamed: bool = True) -> list[int]:
    """Return launches that are not among ``launches``, depend on one of them and are needed by a later one, in order.

    Directly or through others; hazards of recycled memory aside where stages have memory of their own (``renamed``).
    """
    links = graph.links[~graph.links["reuse"]] if renamed else graph.links
    pairs = list(zip(links["producer"].tolist(), links["consumer"].tolist(), strict=True))
    after, before = set(launches), set(launches)
    for producer, consumer in sorted(pairs, key=lambda pair: pair[1]):
        if producer in after:
            after.add(consumer)
    for producer, consumer in sorted(pairs, reverse=True):
        if consumer in before:
            before.add(producer)
    return sorted((after & before) - set(launches))
