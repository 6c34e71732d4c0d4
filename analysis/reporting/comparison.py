"""Two traces side by side: facts of the programs, and their launches matched by module and operator."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pandas as pd

from tileprof.trace.sources import ShapeSource

if TYPE_CHECKING:
    from tileprof.analysis.dependencies.graph import TileGraph
    from tileprof.analysis.reporting.report import Report

SCHEMA: Final = "tileprof diff"
VERSION: Final = 1

UNITS: Final = {
    "time": "ns", "gap": "share", "launches": "count", "tiles": "count", "pairs": "count", "idle": "share",
    "bound": "ns", "list": "ns", "conservative": "share",
}  # fmt: skip
"""Facts of a program (`facts`) and what they are measured in."""


@dataclass(frozen=True, slots=True)
class Row:
    """Launches of one module and operator in both programs; times in nanoseconds, 0 where a program has none."""

    module: str
    operator: str
    launches: tuple[int, int]
    time_ns: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Program A against B; ``facts`` as `facts`, ``patterns`` pairs per pattern, ``kernels`` modelled launches per
    source of their kernels, ``rows`` the largest change of time first.
    """

    facts: dict[str, tuple[float | None, float | None]]
    patterns: dict[str, tuple[int, int]]
    kernels: dict[str, tuple[int, int]]
    rows: tuple[Row, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the value as JSON types; of each pair of numbers the first is of A."""
        lists = {
            "facts": {name: list(pair) for name, pair in self.facts.items()},
            "patterns": {name: list(pair) for name, pair in self.patterns.items()},
            "kernels": {name: list(pair) for name, pair in self.kernels.items()},
        }
        rows = [asdict(row) | {"launches": list(row.launches), "time_ns": list(row.time_ns)} for row in self.rows]
        return {"schema": SCHEMA, "version": VERSION, "units": UNITS, **lists, "rows": rows}

    def heuristics_of_one(self) -> tuple[int, int] | None:
        """Return the launches of both whose kernels a library's heuristics chose, where one modelled program alone has
        such launches; else None.
        """
        own = self.kernels.get(ShapeSource.HEURISTIC, (0, 0))
        modelled = [sum(side) for side in zip(*self.kernels.values(), strict=True)]
        return own if bool(own[0]) != bool(own[1]) and all(modelled) else None


def facts(report: Report) -> dict[str, float | None]:
    """Return what a condition can ask of a program, by the names of `UNITS`; None where the trace does not say.

    ``gap``: share of the recorded time in which no kernel runs; ``idle``: share of slot-time without a tile while
    launches run; ``conservative``: share of launches whose accesses are a superset; ``pairs`` that only recycled memory
    makes do not count.
    """
    p, bounds = report.program, report.bounds
    real = ~report.pairs["reuse_only"].to_numpy(bool) if len(report.pairs) else np.zeros(0, bool)
    return {
        "time": p.recorded_ns,
        "gap": p.gap_ns / p.recorded_ns if p.recorded_ns > 0 else None,
        "launches": float(p.launches),
        "tiles": float(p.tiles),
        "pairs": float(real.sum()),
        "idle": p.idle,
        "bound": bounds.bound_ns if report.dependencies_known else None,
        "list": bounds.listed_ns,
        "conservative": float(report.conservative["launches"].sum()) / p.launches if p.launches else 0.0,
    }


def compare(first: tuple[TileGraph, Report], second: tuple[TileGraph, Report]) -> Comparison:
    """Return a against B; numbers in modules stand for each other, so that traces of other depths match."""
    sides = [facts(report) for _, report in (first, second)]
    counts = [_patterns(report) for _, report in (first, second)]
    sources = [report.program.shape_sources for _, report in (first, second)]
    times = [_times(graph) for graph, _ in (first, second)]
    rows = [
        Row(
            module=key[0],
            operator=key[1],
            launches=(times[0].get(key, (0, 0.0))[0], times[1].get(key, (0, 0.0))[0]),
            time_ns=(times[0].get(key, (0, 0.0))[1], times[1].get(key, (0, 0.0))[1]),
        )
        for key in dict.fromkeys([*times[0], *times[1]])
    ]
    return Comparison(
        facts={name: (sides[0][name], sides[1][name]) for name in UNITS},
        patterns=_both(*counts),
        kernels=_both(*sources),
        rows=tuple(sorted(rows, key=lambda row: -abs(row.time_ns[1] - row.time_ns[0]))),
    )


def _both(first: dict[str, int], second: dict[str, int]) -> dict[str, tuple[int, int]]:
    return {name: (first.get(name, 0), second.get(name, 0)) for name in sorted({*first, *second})}


def _patterns(report: Report) -> dict[str, int]:
    pairs = report.pairs
    if not len(pairs):
        return {}
    real = pairs[~pairs["reuse_only"].to_numpy(bool)]
    return {str(name): int(count) for name, count in real["pattern"].astype(str).value_counts().items()}


def _times(graph: TileGraph) -> dict[tuple[str, str], tuple[int, float]]:
    launches = graph.launches
    names = launches["op"].astype(str).str.replace("aten::", "")
    frame = pd.DataFrame(
        {
            "module": launches["module"].astype(str).str.replace(r"\d+", "*", regex=True).to_numpy(),
            "operator": names.where(names != "", launches["kernel"].astype(str)).to_numpy(),
            "ns": launches["duration_ns"].to_numpy(np.float64),
        }
    )
    sums = frame.groupby(["module", "operator"], sort=False)["ns"].agg(["size", "sum"])
    keys = [(str(module), str(operator)) for module, operator in sums.index.tolist()]
    return {
        key: (int(size), float(total))
        for key, size, total in zip(keys, sums["size"].tolist(), sums["sum"].tolist(), strict=True)
    }
