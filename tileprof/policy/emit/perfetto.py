"""Launches and their tiles on SM lanes as a Chrome JSON trace, which Perfetto (ui.perfetto.dev) opens.

Process 0 holds a track per stream with the launches, nested in slices of their modules; process 1 a track per resident
slot of an SM with the tiles. Arrows go from the tile that wrote to the tile that reads; only some are drawn, for a
browser draws a few thousand. Simulated schedules get two processes each, beside one another, without arrows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tileprof.analysis.lanes import LaneSource
from tileprof.analysis.timeline import Lanes, recorded_lanes
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
"""Tracks per SM: more than blocks fit on any."""


@dataclass(frozen=True, slots=True)
class _Shown:
    """All launches with their times; by launch that is shown, where its tiles ran and which of them have a place at
    all.
    """

    launches: pd.DataFrame
    lanes: dict[int, Lanes]
    is_placed: dict[int, NDArray[np.bool_]]

    def begin_ns(self, launch: int) -> float:
        return float(self.launches["begin_ns"].iloc[launch])


def perfetto_files(graph: TileGraph, launches: Sequence[int] | None = None) -> dict[str, str]:
    """Return texts by file name; ``launches`` keeps those alone. Raises `UserError` for more than
    `MOST_TILES` tiles.
    """
    launch_numbers = list(range(len(graph.launches))) if launches is None else sorted(launches)
    tiles = int(np.diff(graph.tile_base)[launch_numbers].sum())
    if tiles > MOST_TILES:
        raise UserError(
            f"{tiles:,} tiles are more than the {MOST_TILES:,} that a browser can show; choose launches: --launches, "
            "--pair or --module"
        )
    source = LaneSource(graph.recording, graph.launches)
    timeline = _Shown(
        source.timed(graph.launches),
        {n: source.of(n) for n in launch_numbers},
        {n: source.placed(n) for n in launch_numbers},
    )
    events = _tracks(timeline) + _module_events(timeline)
    for launch in launch_numbers:
        events += _launch_events(timeline, launch)
    events += _arrows(graph, timeline)
    return {PERFETTO: json.dumps({"traceEvents": events, "displayTimeUnit": "ns"}, separators=(",", ":")) + "\n"}


def perfetto_of_schedules(graph: TileGraph, schedules: Mapping[str, Schedule]) -> str:
    """Return the text of a trace with every schedule, by the name it is shown under. Raises `UserError` for more than
    `MOST_TILES` tiles in all, and for a schedule that never ends.
    """
    tiles = int(graph.tile_base[-1]) * len(schedules)
    if tiles > MOST_TILES:
        raise UserError(
            f"{len(schedules)} schedules of {int(graph.tile_base[-1]):,} tiles are more than the {MOST_TILES:,} that a "
            "browser shows; choose some with "
            "--scheduler"
        )
    events: list[dict[str, Any]] = []
    for number, (name, schedule) in enumerate(schedules.items()):
        if schedule.deadlock:
            raise UserError(f"{name} has no timeline: {schedule.deadlock}; leave it out of --scheduler")
        events += _schedule_events(graph, name, schedule, 2 * number)
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ns"}, separators=(",", ":")) + "\n"


def _schedule_events(graph: TileGraph, name: str, schedule: Schedule, process: int) -> list[dict[str, Any]]:
    lanes = recorded_lanes(schedule.sm, schedule.begin_ns, schedule.end_ns)
    base, full = graph.tile_base, np.flatnonzero(np.diff(graph.tile_base))
    begin = np.minimum.reduceat(schedule.begin_ns, base[full]) if len(full) else np.zeros(0)
    end = np.maximum.reduceat(schedule.end_ns, base[full]) if len(full) else np.zeros(0)
    rows = recorded_lanes(np.zeros(len(full), np.int32), begin, end).slot  # launches that overlap lie below each other
    pairs = np.unique(np.stack([lanes.sm, lanes.slot], axis=1), axis=0)
    events = [
        _name("process_name", process, 0, f"{name}: launches"),
        _name("process_name", process + 1, 0, f"{name}: SMs"),
    ]
    events += [_name("thread_name", process + 1, sm * _SLOTS + slot, f"SM {sm}.{slot}") for sm, slot in pairs.tolist()]
    for place, launch in enumerate(full.tolist()):
        row = graph.launches.iloc[launch]
        title, facts = _title(row), _facts(row, launch, "simulated")
        events.append(_slice(_with_kernel(row), "launch", process, int(rows[place]), begin[place], end[place], facts))
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


def _tracks(timeline: _Shown) -> list[dict[str, Any]]:
    streams = sorted({int(timeline.launches["stream"].iloc[n]) for n in timeline.lanes})
    places = [np.stack([lanes.sm, lanes.slot], axis=1)[timeline.is_placed[n]] for n, lanes in timeline.lanes.items()]
    pairs = np.unique(np.concatenate(places), axis=0)
    events = [_name("process_name", _LAUNCHES, 0, "launches"), _name("process_name", _TILES, 0, "SMs")]
    events += [_name("thread_name", _LAUNCHES, stream, f"stream {stream}") for stream in streams]
    events += [_name("thread_name", _TILES, sm * _SLOTS + slot, f"SM {sm}.{slot}") for sm, slot in pairs.tolist()]
    return events


def _name(what: str, process: int, track: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": process, "tid": track, "args": {"name": name}}


def _launch_events(timeline: _Shown, launch: int) -> list[dict[str, Any]]:
    row, lanes, begin_ns = timeline.launches.iloc[launch], timeline.lanes[launch], timeline.begin_ns(launch)
    title, facts = _title(row), _facts(row, launch, str(row["timing"]))
    end_ns = begin_ns + float(row["duration_ns"])
    events = [_slice(_with_kernel(row), "launch", _LAUNCHES, int(row["stream"]), begin_ns, end_ns, facts)]
    for tile in np.flatnonzero(timeline.is_placed[launch]).tolist():
        track = int(lanes.sm[tile]) * _SLOTS + int(lanes.slot[tile])
        begin, end = begin_ns + float(lanes.begin_ns[tile]), begin_ns + float(lanes.end_ns[tile])
        events.append(_slice(f"{title} {tile}", "tile", _TILES, track, begin, end, {"launch": launch, "tile": tile}))
    return events


def _title(row: Any) -> str:
    """Return what a launch is called: its operator without namespace and overload, else its kernel."""
    ops = [op.rpartition("::")[2].split(".", 1)[0] for op in str(row["op"]).split("+")]
    return "+".join(ops) or str(row["kernel"])


def _with_kernel(row: Any) -> str:
    """Return ``op · kernel``."""
    return " · ".join(dict.fromkeys((_title(row), str(row["kernel"]))))


def _facts(row: Any, launch: int, timing: str) -> dict[str, Any]:
    names = {name: str(row[name]) for name in ("kernel", "op", "module")}
    return {"launch": launch, **names, "timing": timing}


def _module_events(timeline: _Shown) -> list[dict[str, Any]]:
    """Return a slice for each stretch of a stream's launches inside of one module, around those of the
    modules in it.
    """
    events: list[dict[str, Any]] = []
    shown_launches = timeline.launches.iloc[list(timeline.lanes)]
    for stream in sorted({int(number) for number in shown_launches["stream"]}):
        rows = shown_launches[shown_launches["stream"] == stream]
        begin = rows["begin_ns"].to_numpy(np.float64)
        end = begin + rows["duration_ns"].to_numpy(np.float64)
        paths = [_levels(str(module)) for module in rows["module"]]
        for level in range(max(map(len, paths), default=0)):
            prefixes = [path[: level + 1] if len(path) > level else None for path in paths]
            first = 0
            for at in range(1, len(prefixes) + 1):
                if at < len(prefixes) and prefixes[at] == prefixes[first]:
                    continue
                if (prefix := prefixes[first]) is not None:
                    facts = {"module": ".".join(prefix), "launches": at - first}
                    last = float(end[first:at].max())
                    events.append(_slice(prefix[-1], "module", _LAUNCHES, stream, begin[first], last, facts))
                first = at
    return events


def _levels(module: str) -> tuple[str, ...]:
    """Return ``model.layers.3.mlp`` as model, layers.3, mlp: a number belongs to the name before it."""
    levels: list[str] = []
    for part in module.split(".") if module else []:
        if part.isdecimal() and levels:
            levels[-1] += f".{part}"
        else:
            levels.append(part)
    return tuple(levels)


def _arrows(graph: TileGraph, timeline: _Shown) -> list[dict[str, Any]]:
    """Return the same share of every pair's dependencies, evenly over its tiles; none at a tile that has no place."""
    lanes, is_placed = timeline.lanes, timeline.is_placed
    links = graph.links[~graph.links["reuse"] & (graph.links["hazard"] == "RAW")]
    links = links[links["producer"].isin(lanes) & links["consumer"].isin(lanes)]
    share = max(1, MOST_ARROWS // max(1, len(links)))
    events: list[dict[str, Any]] = []
    for producer, consumer, number in (
        links[["producer", "consumer", "block"]].head(MOST_ARROWS).itertuples(index=False)
    ):
        parent, child, _ = graph.blocks[number].edges()
        visible = is_placed[producer][parent] & is_placed[consumer][child]
        parent, child = parent[visible], child[visible]
        samples = np.unique(np.linspace(0, len(parent) - 1, min(share, len(parent))).astype(np.int64))
        for p, c in zip(parent[samples].tolist(), child[samples].tolist(), strict=True):
            ends = (("s", producer, p, lanes[producer].end_ns), ("f", consumer, c, lanes[consumer].begin_ns))
            for phase, launch, tile, at in ends:
                place = lanes[launch]
                event = {
                    "ph": phase,
                    "name": "dependency",
                    "cat": "dependency",
                    "id": len(events) // 2,
                    "pid": _TILES,
                    "tid": int(place.sm[tile]) * _SLOTS + int(place.slot[tile]),
                    "ts": (timeline.begin_ns(launch) + float(at[tile])) / 1000,
                }
                events.append(event | ({"bp": "e"} if phase == "f" else {}))
    return events
