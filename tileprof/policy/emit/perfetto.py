"""Launches and their tiles on SM lanes as a Chrome JSON trace, which Perfetto (ui.perfetto.dev) opens.

Process 0 holds a track a stream with the launches, process 1 a track a resident slot of an SM with the tiles. Arrows go from the
tile that wrote to the tile that reads; only some are drawn, for a browser draws a few thousand. Simulated schedules get two processes
each, beside one another, without arrows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from tileprof.analysis.bounds import Machine
from tileprof.analysis.bounds.durations import tile_durations
from tileprof.analysis.bounds.machine import product
from tileprof.analysis.timeline import Lanes, dispatch, recorded
from tileprof.errors import UserError

if TYPE_CHECKING:
    from tileprof.analysis import TileGraph
    from tileprof.analysis.simulate import Schedule

PERFETTO = "perfetto.json"
MOST_TILES: Final = 500_000
"""About 60 MB of JSON."""

MOST_ARROWS: Final = 2000

_LAUNCHES, _TILES = 0, 1
_SLOTS: Final = 64
"""Tracks kept for an SM: more than blocks fit on any."""


def perfetto_files(graph: TileGraph, launches: Sequence[int] | None = None) -> dict[str, str]:
    """Texts by file name; ``launches`` keeps those alone. Raises `UserError` for more than `MOST_TILES` tiles."""
    chosen = list(range(len(graph.launches))) if launches is None else sorted(launches)
    tiles = int(np.diff(graph.tile_base)[chosen].sum())
    if tiles > MOST_TILES:
        raise UserError(
            f"{tiles:,} tiles are more than the {MOST_TILES:,} that a browser shows; choose launches: --launches, --pair or --module"
        )
    begin_ns = _begins(graph)
    lanes = _lanes(graph, chosen)
    events = _tracks(graph, chosen, lanes)
    for launch in chosen:
        events += _launch_events(graph, launch, begin_ns[launch], lanes[launch])
    events += _arrows(graph, chosen, begin_ns, lanes)
    return {PERFETTO: json.dumps({"traceEvents": events, "displayTimeUnit": "ns"}, separators=(",", ":")) + "\n"}


def perfetto_of_schedules(graph: TileGraph, schedules: Mapping[str, Schedule]) -> str:
    """The text of a trace with every schedule, by the name it is shown under. Raises `UserError` for more than `MOST_TILES` tiles in all,
    and for a schedule that never ends.
    """
    tiles = int(graph.tile_base[-1]) * len(schedules)
    if tiles > MOST_TILES:
        raise UserError(
            f"{len(schedules)} schedules of {int(graph.tile_base[-1]):,} tiles are more than the {MOST_TILES:,} that a browser shows; choose some with "
            "--scheduler"
        )
    events: list[dict[str, Any]] = []
    for number, (name, schedule) in enumerate(schedules.items()):
        if schedule.deadlock:
            raise UserError(f"{name} has no timeline: {schedule.deadlock}; leave it out of --scheduler")
        events += _schedule_events(graph, name, schedule, 2 * number)
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ns"}, separators=(",", ":")) + "\n"


def _schedule_events(graph: TileGraph, name: str, schedule: Schedule, process: int) -> list[dict[str, Any]]:
    lanes = recorded(schedule.sm, schedule.begin_ns, schedule.end_ns)
    base, full = graph.tile_base, np.flatnonzero(np.diff(graph.tile_base))
    begin = np.minimum.reduceat(schedule.begin_ns, base[full]) if len(full) else np.zeros(0)
    end = np.maximum.reduceat(schedule.end_ns, base[full]) if len(full) else np.zeros(0)
    rows = recorded(np.zeros(len(full), np.int32), begin, end).slot  # launches that overlap lie below each other
    pairs = np.unique(np.stack([lanes.sm, lanes.slot], axis=1), axis=0)
    events = [
        _name("process_name", process, 0, f"{name}: launches"),
        _name("process_name", process + 1, 0, f"{name}: SMs"),
    ]
    events += [_name("thread_name", process + 1, sm * _SLOTS + slot, f"SM {sm}.{slot}") for sm, slot in pairs.tolist()]
    for place, launch in enumerate(full.tolist()):
        row = graph.launches.iloc[launch]
        title = str(row["module"]) or str(row["op"]) or str(row["kernel"])
        facts = {"launch": launch, "kernel": str(row["kernel"]), "op": str(row["op"]), "timing": "simulated"}
        events.append(_slice(title, "launch", process, int(rows[place]), begin[place], end[place], facts))
        tiles = slice(int(base[launch]), int(base[launch + 1]))
        columns = (lanes.sm[tiles], lanes.slot[tiles], lanes.begin_ns[tiles], lanes.end_ns[tiles])
        for tile, (sm, slot, starts, stops) in enumerate(zip(*(c.tolist() for c in columns), strict=True)):
            args = {"launch": launch, "tile": tile}
            events.append(_slice(f"{title} {tile}", "tile", process + 1, sm * _SLOTS + slot, starts, stops, args))
    return events


def _slice(
    name: str, kind: str, process: int, track: int, begin_ns: float, end_ns: float, args: dict[str, Any]
) -> dict[str, Any]:
    return {
        "ph": "X", "name": name, "cat": kind, "pid": process, "tid": track, "ts": float(begin_ns) / 1000,
        "dur": float(end_ns - begin_ns) / 1000, "args": args,
    }  # fmt: skip


def _begins(graph: TileGraph) -> NDArray[np.float64]:
    """As recorded; one after the other where nothing was."""
    begin = graph.launches["begin_ns"].to_numpy(np.float64)
    if begin.any():
        return begin
    took = graph.launches["duration_ns"].to_numpy(np.float64)
    return np.concatenate([np.zeros(1), np.cumsum(took + graph.trace.device.graph_gap_ns)])[: len(took)]


def _lanes(graph: TileGraph, chosen: list[int]) -> dict[int, Lanes]:
    trace, launches = graph.trace, graph.launches
    occupancy = np.maximum(launches["blocks_per_sm"].to_numpy(np.int64), 1)
    cluster, slots = product(launches, "cluster"), Machine(trace.device).slots(launches)
    lives = tile_durations(trace, slots)
    times = trace.times
    found = {}
    for launch in chosen:
        rows = times[times["launch"] == launch] if len(times) else times
        if len(rows):
            rows = rows.sort_values("tile")
            found[launch] = recorded(rows["sm"], rows["begin_ns"], rows["end_ns"])
        else:
            count = int(graph.tile_base[launch + 1] - graph.tile_base[launch])
            found[launch] = dispatch(
                lives.of(launch, count), sms=trace.device.sms, blocks_per_sm=int(occupancy[launch]), cluster=int(cluster[launch]),
                most=int(slots[launch]),
            )  # fmt: skip
    return found


def _tracks(graph: TileGraph, chosen: list[int], lanes: dict[int, Lanes]) -> list[dict[str, Any]]:
    streams = sorted({int(graph.launches["stream"].iloc[n]) for n in chosen})
    pairs = np.unique(np.concatenate([np.stack([lanes[n].sm, lanes[n].slot], axis=1) for n in chosen]), axis=0)
    events = [_name("process_name", _LAUNCHES, 0, "launches"), _name("process_name", _TILES, 0, "SMs")]
    events += [_name("thread_name", _LAUNCHES, stream, f"stream {stream}") for stream in streams]
    events += [_name("thread_name", _TILES, sm * _SLOTS + slot, f"SM {sm}.{slot}") for sm, slot in pairs.tolist()]
    return events


def _name(what: str, process: int, track: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": process, "tid": track, "args": {"name": name}}


def _launch_events(graph: TileGraph, launch: int, begin_ns: float, lanes: Lanes) -> list[dict[str, Any]]:
    row = graph.launches.iloc[launch]
    title = str(row["module"]) or str(row["op"])
    facts = {"launch": launch, "kernel": str(row["kernel"]), "op": str(row["op"]), "timing": str(row["timing"])}
    end_ns = begin_ns + float(row["duration_ns"])
    events = [_slice(title, "launch", _LAUNCHES, int(row["stream"]), begin_ns, end_ns, facts)]
    columns = (lanes.sm, lanes.slot, lanes.begin_ns, lanes.end_ns)
    for tile, (sm, slot, begin, end) in enumerate(zip(*(c.tolist() for c in columns), strict=True)):
        args = {"launch": launch, "tile": tile}
        events.append(
            _slice(f"{title} {tile}", "tile", _TILES, sm * _SLOTS + slot, begin_ns + begin, begin_ns + end, args)
        )
    return events


def _arrows(
    graph: TileGraph, chosen: list[int], begin_ns: NDArray[np.float64], lanes: dict[int, Lanes]
) -> list[dict[str, Any]]:
    """The same share of every pair's dependencies, evenly over its tiles."""
    links = graph.links[~graph.links["reuse"] & (graph.links["hazard"] == "RAW")]
    links = links[links["producer"].isin(chosen) & links["consumer"].isin(chosen)]
    share = max(1, MOST_ARROWS // max(1, len(links)))
    events: list[dict[str, Any]] = []
    for producer, consumer, number in (
        links[["producer", "consumer", "block"]].head(MOST_ARROWS).itertuples(index=False)
    ):
        parent, child, _ = graph.blocks[number].edges()
        shown = np.unique(np.linspace(0, len(parent) - 1, min(share, len(parent))).astype(np.int64))
        for p, c in zip(parent[shown].tolist(), child[shown].tolist(), strict=True):
            ends = (("s", producer, p, lanes[producer].end_ns), ("f", consumer, c, lanes[consumer].begin_ns))
            for phase, launch, tile, at in ends:
                place = lanes[launch]
                event = {
                    "ph": phase, "name": "dependency", "cat": "dependency", "id": len(events) // 2, "pid": _TILES,
                    "tid": int(place.sm[tile]) * _SLOTS + int(place.slot[tile]), "ts": (begin_ns[launch] + float(at[tile])) / 1000,
                }  # fmt: skip
                events.append(event | ({"bp": "e"} if phase == "f" else {}))
    return events
