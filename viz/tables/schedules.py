"""Schedules and bounds on their way into a page: where the time goes, and which tile runs where, when."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tileprof.analysis.timeline import Lanes, busy_share
from tileprof.viz.comparisons import finite, plain
from tileprof.viz.tables.page_values import pack, packed_bytes, printable

if TYPE_CHECKING:
    from tileprof.analysis import TileGraph
    from tileprof.analysis.reporting.report import Report
    from tileprof.analysis.simulate import Schedule
    from tileprof.viz.comparisons import Study

_TOO_MANY = 400_000
"""Tiles of a schedule that are not drawn one by one: the browser places each in its SM."""

_BINS = 1_000
"""Columns of an aggregated schedule."""

_KERNELS = 5
"""Kernels of an aggregated schedule that are told apart."""

_SHARES = 1_000
"""Steps of a share of the GPU's slots."""


def gain_tables(
    graph: TileGraph, report: Report | None, study: Study, *, budget: int, notes: list[str]
) -> dict[str, Any]:
    """Return ``gain`` (the bracket, and where recorded time goes), ``schedules`` and ``sizes`` of a page, at most
    ``budget`` bytes.
    """
    schedules, coarse = [], 0
    work_ns = _work_ns(study)
    for schedule in study.schedules:
        lanes = {} if schedule.deadlock else _lanes(graph, schedule, len(schedule.end_ns) > _TOO_MANY)
        if _bytes(lanes) > budget:
            lanes = _lanes(graph, schedule, coarse=True)
        if _bytes(lanes) > budget:
            lanes = {}
        coarse += "share" in lanes
        budget -= _bytes(lanes)
        schedules.append(_parts(schedule, work_ns) | {"lanes": lanes})
    if coarse:
        notes.append(
            f"Simulated lanes of {coarse:,} schedulers are aggregated: shares of busy slots, not single tiles."
        )
    notes += [printable(f"Not simulated, {reason}") for reason in study.refused]
    return {
        "gain": _gain(report, work_ns),
        "schedules": schedules,
        "skipped": list(study.skipped),
        "sizes": [plain(size) for size in study.sizes],
    }


def schedule_value(graph: TileGraph, schedule: Schedule, study: Study | None) -> dict[str, Any]:
    """Return one schedule as those of a page, whatever its size."""
    lanes = {} if schedule.deadlock else _lanes(graph, schedule, len(schedule.end_ns) > _TOO_MANY)
    return _parts(schedule, _work_ns(study) if study else 0.0) | {"lanes": lanes}


def _bytes(lanes: dict[str, Any]) -> int:
    return sum(packed_bytes(v) for v in lanes.values() if isinstance(v, dict)) + 200


def _work_ns(study: Study) -> float:
    """Return slot-time of all tiles over all slots, of stream order, in which no tile waits inside."""
    return next((s.busy * s.time_ns for s in study.schedules if s.scheduler == "stream" and not s.deadlock), 0.0)


def _parts(schedule: Schedule, work_ns: float) -> dict[str, Any]:
    """Return the time of a schedule as parts of the whole GPU's: tiles at work, tiles that hold slots and wait or
    signal, slots that are empty while some tile runs, and time in which none runs.
    """
    value = {"name": schedule.scheduler, "deadlock": printable(schedule.deadlock), "time_ns": finite(schedule.time_ns)}
    if schedule.deadlock:
        return value
    slot_ns = schedule.busy * schedule.time_ns
    work = min(work_ns, slot_ns) if work_ns else slot_ns
    idle = max(0.0, schedule.time_ns - schedule.gap_ns - slot_ns)
    return value | {"work_ns": work, "wait_ns": slot_ns - work, "idle_ns": idle, "gap_ns": schedule.gap_ns}


def _gain(report: Report | None, work_ns: float) -> dict[str, Any]:
    """Return the recorded time in parts, and every bound. Empty without a report, or where dependencies are unknown.

    ``gap_ns`` is the recorded time in which no kernel ran: launch gaps, and waits for the host.
    """
    if report is None or not report.program.launches or not report.dependencies_known:
        return {}
    program, bounds = report.program, report.bounds
    waves = report.launch_waves
    alone = waves["alone_ns"].to_numpy(np.float64)
    idle = float((alone * waves["idle"].to_numpy(np.float64)).sum())
    return {
        "recorded_ns": program.recorded_ns,
        "gap_ns": max(0.0, program.gap_ns),
        "beside_ns": program.launch_ns - program.alone_ns,
        "idle_ns": idle,
        "work_ns": work_ns or float(alone.sum()) - idle,
        "bounds": dict(bounds.ns),
        "binding": bounds.binding,
        "bound_ns": bounds.bound_ns,
        "ready_ns": bounds.ready_ns,
        "listed_ns": bounds.listed_ns,
    }


def _lanes(graph: TileGraph, schedule: Schedule, coarse: bool) -> dict[str, Any]:
    """Begin of each launch, and of each tile after it, in whole ns; how long the tile holds its slot; its SM."""
    counts = np.diff(graph.tile_base)
    begin, end = (np.rint(ns).astype(np.int64) for ns in (schedule.begin_ns, schedule.end_ns))
    if coarse:
        return _aggregated(graph, begin, end)
    some = counts > 0
    opened = np.zeros(len(counts), np.int64)
    opened[some] = np.minimum.reduceat(begin, graph.tile_base[:-1][some]) if some.any() else 0
    return {
        "open": pack(opened, delta=True),
        "begin": pack(begin - np.repeat(opened, counts)),
        "life": pack(end - begin, delta=True),
        "sm": pack(schedule.sm, delta=True),
    }


def _aggregated(graph: TileGraph, begin: NDArray[np.int64], end: NDArray[np.int64]) -> dict[str, Any]:
    """Return how much of the GPU's slots each kernel holds over time: those with most slot-time first, the rest in one
    row.
    """
    launches = graph.launches
    tiles = np.diff(graph.tile_base)
    blocks = np.maximum(launches["blocks_per_sm"].to_numpy(np.float64), 1) * graph.device.sms
    weight = np.repeat(1.0 / blocks, tiles)
    kernel, names = pd.factorize(launches["kernel"].astype(str))
    of_tile = np.repeat(kernel, tiles)
    slot_ns = np.bincount(of_tile, weight * (end - begin), minlength=len(names))
    first = np.argsort(-slot_ns, kind="stable")[:_KERNELS]
    row = np.full(len(names), len(first))
    row[first] = np.arange(len(first))
    rows = len(first) + 1
    lanes = Lanes(row[of_tile], np.zeros_like(of_tile), begin.astype(np.float64), end.astype(np.float64), 1)
    share = busy_share(lanes, sms=rows, bins=_BINS, weight=weight)
    return {
        "rows": rows,
        "bins": _BINS,
        "end": float(end.max(initial=0)),
        "kernels": [printable(str(name)) for name in names[first]],
        "share": pack(np.rint(share * _SHARES).astype(np.int64).ravel()),
    }
