"""Repeated layers and steps: stretches of the program that do the same with other parameters, or again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tileprof.analysis.bounds.bounder import Bounder, Bounds

STEP: Final = "step of a loop"
"""Name of a `Layer` that is a step: the same launches of the same modules again, as in training or decoding."""

_SHORTEST_STEP: Final = 2
_MOST_COMPARED: Final = 200_000_000
"""Launches times lengths of a step that are tried: a second of work."""


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer, or a step of a loop (named `STEP`), that occurs ``times`` times.

    ``first`` and ``last`` are the launches of the occurrence that stands for all, and ``bounds`` are those of this one
    in isolation.
    """

    name: str
    times: int
    first: int
    last: int
    bounds: Bounds


def repeated_layers(bounder: Bounder) -> list[Layer]:
    """Return steps of a loop, and layers that occur at least twice; the one with the most recorded time over all
    occurrences first, steps before all.

    A layer is a stretch of consecutive launches whose modules share their path up to its first number
    (``transformer.h.3``); two are alike when they have the same footprints in the same order under the same path with
    another number. The occurrence in the middle stands for all.
    """
    launches = bounder.graph.launches
    footprints = launches["footprint"].to_numpy(np.int64)
    alike: dict[tuple[str, bytes], list[tuple[str, int, int]]] = {}
    for path, number, first, last in _stretches(launches["module"].astype(str).tolist()):
        alike.setdefault((path, footprints[first : last + 1].tobytes()), []).append((number, first, last))
    layers = [
        _standing(bounder, path, [(first, last) for _, first, last in stretches])
        for (path, _), stretches in alike.items()
        if len({number for number, _, _ in stretches}) > 1
    ]
    steps = [_standing(bounder, STEP, spans)] if (spans := loop_steps(launches)) else []
    return steps + sorted(layers, key=lambda layer: -layer.times * layer.bounds.recorded_ns)


def _standing(bounder: Bounder, name: str, spans: list[tuple[int, int]]) -> Layer:
    first, last = spans[len(spans) // 2]
    recorded = _recorded_ns(bounder, bounder.graph.launches, first, last)
    return Layer(name, len(spans), first, last, bounder.of(recorded, range(first, last + 1)))


def loop_steps(launches: pd.DataFrame, *, same_footprints: bool = True) -> list[tuple[int, int]]:
    """Return first and last launch of the steps that cover most launches, in order; empty where less than half is
    steps.

    Steps launch the same kernels of the same operators and modules, with ``same_footprints`` on the same bytes.
    """
    names = ["kernel", "op", "module", *(["footprint"] if same_footprints else [])]
    keys = launches.groupby(names, sort=False, observed=True).ngroup().to_numpy(np.int64)
    count = len(keys)
    best = (
        0,
        0,
        0,
    )  # launches covered, less the length of a step: of equal covers, the shortest step; its first launch
    for length in range(_SHORTEST_STEP, min(count // 2, _MOST_COMPARED // max(count, 1)) + 1):
        begin, run = _longest_run(keys[:-length] == keys[length:])
        covered = (run // length + 1) * length
        if run >= length and len(np.unique(keys[begin : begin + length])) > 1:
            best = max(best, (covered, -length, begin))
    covered, length, begin = best[0], -best[1], best[2]
    if not covered or 2 * covered < count:
        return []
    return [(at, at + length - 1) for at in range(begin, begin + covered, length)]


def _longest_run(same: NDArray[np.bool_]) -> tuple[int, int]:
    """Return where the longest run of true begins, and how long it is."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], same, [False]))))
    if not len(edges):
        return 0, 0
    begins, ends = edges[::2], edges[1::2]
    longest = int(np.argmax(ends - begins))
    return int(begins[longest]), int(ends[longest] - begins[longest])


def _stretches(modules: list[str]) -> Iterator[tuple[str, str, int, int]]:
    """Yield (path with ``*`` for its first number, that number, first launch, last launch) of each stretch in a
    numbered module.
    """
    at = 0
    for layer, members in groupby(map(_layer_of, modules)):
        count = len(list(members))
        if layer is not None:
            yield *layer, at, at + count - 1
        at += count


def _layer_of(module: str) -> tuple[str, str] | None:
    parts = module.split(".")
    number = next((i for i, part in enumerate(parts) if part.isdigit()), None)
    return None if number is None else (".".join([*parts[:number], "*"]), parts[number])


def _recorded_ns(bounder: Bounder, launches: pd.DataFrame, first: int, last: int) -> float:
    took = bounder.launch_ns[first : last + 1]
    begin = launches["begin_ns"].to_numpy(np.float64)[first : last + 1]
    if bounder.replayed or not begin.any():
        return float(took.sum())
    return float((begin + took).max() - begin.min())
