"""Chains of launches that one kernel could do: each tile needs the same tile of launches before it and nothing else of
them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from tileprof.analysis.reporting.gains import common_name

if TYPE_CHECKING:
    from tileprof.analysis.dependencies.graph import TileGraph

_MOST_NAMED = 4
DEVICE_TO_HOST: Final = "memcpy<device to host>"
_HOST_COPIES = (DEVICE_TO_HOST, "memcpy<host to device>")


@dataclass(frozen=True, slots=True)
class Chain:
    """Consecutive launches ``first`` to ``last``, found ``times`` times; ``saves_ns`` over all of them.

    The saving is an estimate: the fused kernel takes as long as the longest launch of the chain, and the launch gaps of
    a CUDA graph between them are gone.
    """

    first: int
    last: int
    times: int
    saves_ns: float
    operators: str
    module: str


def chains(graph: TileGraph, gap_ns: float) -> list[Chain]:
    """Return fusible chains, copies folded, the largest saving first. ``gap_ns``: between two launches of a
    CUDA graph.
    """
    launches = graph.launches
    fusible, foreign = _pairs(graph)
    stream = launches["stream"].to_numpy(np.int64)
    # Dependencies that are supersets prove nothing, and no kernel copies between host and device.
    copied = launches["kernel"].astype(str).isin(_HOST_COPIES)
    alone = ((launches["coverage"] == "conservative") | copied).to_numpy(bool)
    spans: list[tuple[int, int]] = []
    at = 0
    while at < len(launches):
        end = at
        while end + 1 < len(launches) and not alone[at] and _joins(end + 1, at, fusible, foreign):
            if alone[end + 1] or stream[end + 1] != stream[at]:
                break
            end += 1
        if end > at:
            spans.append((at, end))
        at = end + 1
    return _chains_of_pairs(graph, spans, gap_ns)


def _pairs(graph: TileGraph) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
    """Return producers of each launch: those that it needs tile by tile, and the others."""
    pairs = graph.pairs
    fusible: dict[int, list[int]] = {}
    foreign: dict[int, list[int]] = {}
    alike = (pairs["pattern"] == "one_to_one").to_numpy(bool)
    real = ~pairs["reuse_only"].to_numpy(bool)
    for p, c, same, has_data in zip(pairs["producer"], pairs["consumer"], alike, real, strict=True):
        if has_data:
            (fusible if same else foreign).setdefault(int(c), []).append(int(p))
    return fusible, foreign


def _joins(launch: int, first: int, fusible: dict[int, list[int]], foreign: dict[int, list[int]]) -> bool:
    inside = any(p >= first for p in fusible.get(launch, ()))
    return inside and not any(p >= first for p in foreign.get(launch, ()))


def _chains_of_pairs(graph: TileGraph, spans: list[tuple[int, int]], gap_ns: float) -> list[Chain]:
    launches = graph.launches
    took = launches["duration_ns"].to_numpy(np.float64)
    operators = launches["op"].astype(str).str.removeprefix("aten::").str.partition(".")[0].tolist()
    kernels, modules = launches["kernel"].astype(str).tolist(), launches["module"].astype(str).tolist()
    alike: dict[tuple[str, ...], list[tuple[int, int]]] = {}
    for first, last in spans:
        names = tuple(operators[i] or kernels[i] for i in range(first, last + 1))
        alike.setdefault(names, []).append((first, last))
    chains_of_pairs = []
    for names, copies in alike.items():
        saved = sum(_saving_ns(took[a : b + 1], gap_ns) for a, b in copies)
        first, last = copies[len(copies) // 2]
        places = [modules[a] for a, _ in copies]
        module = common_name(places) if len({re.sub(r"\d+", "*", place) for place in places}) == 1 else ""
        chains_of_pairs.append(Chain(first, last, len(copies), saved, _list_of_names(names), module))
    return sorted(chains_of_pairs, key=lambda chain: -chain.saves_ns)


def _saving_ns(took: np.ndarray[tuple[int], np.dtype[np.float64]], gap_ns: float) -> float:
    return float(took.sum() - took.max()) + gap_ns * (len(took) - 1)


def _list_of_names(names: tuple[str, ...]) -> str:
    first_names = ", ".join(names[:_MOST_NAMED])
    return f"{first_names} and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else first_names
