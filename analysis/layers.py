"""Repeated layers: stretches of the program that do the same with other parameters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import pandas as pd

from tileprof.analysis.bounds.bounder import Bounder, Bounds


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer that occurs ``times`` times; ``first`` and ``last`` are the launches of the occurrence that stands for
    all, and ``bounds`` are those of this one in isolation.
    """

    name: str
    times: int
    first: int
    last: int
    bounds: Bounds


def repeated_layers(bounder: Bounder) -> list[Layer]:
    """Layers that occur at least twice, the one with the most recorded time over all occurrences first.

    A layer is a stretch of consecutive launches whose modules share their path up to its first number
    (``transformer.h.3``); two are alike when they have the same footprints in the same order under the same path with
    another number. The occurrence in the middle stands for all.
    """
    launches = bounder.graph.launches
    footprints = launches["footprint"].to_numpy(np.int64)
    alike: dict[tuple[str, bytes], list[tuple[int, int]]] = {}
    for path, first, last in _stretches(launches["module"].astype(str).tolist()):
        alike.setdefault((path, footprints[first : last + 1].tobytes()), []).append((first, last))
    found = []
    for (path, _), stretches in alike.items():
        if len(stretches) > 1:
            first, last = stretches[len(stretches) // 2]
            recorded = _recorded_ns(bounder, launches, first, last)
            found.append(Layer(path, len(stretches), first, last, bounder.of(recorded, range(first, last + 1))))
    return sorted(found, key=lambda layer: -layer.times * layer.bounds.recorded_ns)


def _stretches(modules: list[str]) -> Iterator[tuple[str, int, int]]:
    """(path with ``*`` for its first number, first launch, last launch) of each stretch inside a numbered module."""
    at = 0
    for layer, members in groupby(map(_layer_of, modules)):
        count = len(list(members))
        if layer is not None:
            yield layer[0], at, at + count - 1
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
