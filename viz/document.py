"""The content of a page as one JSON value: the program, its launches, dependent pairs, tile relations and lanes.

Whatever the trace, the value stays under `PAGE_BYTES`. What does not fit is aggregated or left out, largest and
least important first, and ``document["notes"]`` says so in the page's own words.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tileprof.analysis.bounds import ROOFLINE, Machine
from tileprof.analysis.lanes import LaneSource
from tileprof.trace.schema import COVERAGES, TIMINGS
from tileprof.viz.comparisons import Study
from tileprof.viz.tables.boxes import box_tables
from tileprof.viz.tables.buffer_uses import use_tables
from tileprof.viz.tables.fold import fold_launches
from tileprof.viz.tables.lanes import lane_tables
from tileprof.viz.tables.page_values import Packed, pack, packed_bytes, printable
from tileprof.viz.tables.policy_overlay import Overlay, overlay_table
from tileprof.viz.tables.relations import relation_tables
from tileprof.viz.tables.schedules import gain_tables
from tileprof.viz.variants import Variant, variant_tables

if TYPE_CHECKING:
    from tileprof.analysis import TileGraph
    from tileprof.analysis.guidance import Guidance
    from tileprof.analysis.reporting.report import Report

PAGE_BYTES = 18_000_000
"""Bytes of data in a page, so that with its own code it can be mailed (20 MB)."""

MOST_LAUNCHES = 20_000
MOST_PAIRS = 60_000
_MOST_SHARES = 40

_NUMBERS = (
    "footprint", "stream", "graph", "grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z",
    "registers", "shared_bytes", "blocks_per_sm", "tiles", "begin_ns", "duration_ns", "flops",
)  # fmt: skip
_TEXTS = ("kernel", "op", "module", "note")


@dataclass(slots=True)
class Strings:
    """Each text once, made printable; columns hold its place."""

    texts: list[str] = field(default_factory=list)
    place: dict[str, int] = field(default_factory=dict)

    def codes(self, values: Iterable[Any]) -> list[int]:
        return [self.code("" if v is None or v is pd.NA else str(v)) for v in values]

    def code(self, text: str) -> int:
        if text not in self.place:
            self.place[text] = len(self.texts)
            self.texts.append(printable(text))
        return self.place[text]


def document(
    graph: TileGraph,
    report: Report | None = None,
    study: Study | None = None,
    policy: Overlay | None = None,
    variants: tuple[Variant, ...] = (),
    guidance: Guidance | None = None,
) -> dict[str, Any]:
    """Return everything a page shows of a tile graph.

    ``report`` adds its gains where it has them, ``study`` schedules and other GPU sizes, ``policy`` what its waits
    cover, ``variants`` what the sliders of the what-if view move through, ``guidance`` the card that the page opens
    with.
    """
    launches = graph.launches
    notes: list[str] = []
    strings = Strings()
    source = LaneSource(graph.recording, launches)
    shown_launches = source.timed(launches).head(MOST_LAUNCHES)
    notes += _timing_notes(launches, source.lives.source)
    if len(shown_launches) < len(launches):
        notes.append(f"Only the first {len(shown_launches):,} of {len(launches):,} launches are in this page.")
    pairs = _important_pairs(graph.pairs, len(shown_launches), notes)
    value: dict[str, Any] = {
        "summary": _summary(graph, source.timed(launches)) | _bounds(report),
        "launches": _launches(shown_launches, strings) | {"slots": pack(Machine(graph.device).slots(shown_launches))},
        "fold": fold_launches(shown_launches),
        "pairs": _pairs(pairs, strings, report),
        "groups": _groups(report),
        "strings": strings.texts,
        "notes": notes,
        "guidance": None if guidance is None else _guidance(guidance),
    }
    value |= use_tables(graph.recording, shown_launches, strings.codes, notes) | variant_tables(
        variants if report is None or report.dependencies_known else ()
    )
    room = PAGE_BYTES - _size(value)
    if report is not None and not report.dependencies_known:
        notes.append(
            "The trace has no accesses: which launches depend on each other is unknown, so there are no gains."
        )
        study = None
    value |= gain_tables(graph, report, study or Study((), (), ()), budget=room // 4, notes=notes)
    if policy is not None:
        tiles = np.diff(graph.tile_base).tolist()
        room = PAGE_BYTES - _size(value)
        value["policy"] = overlay_table(policy, pairs, tiles, budget=room // 3, notes=notes)
    value |= lane_tables(graph.recording, shown_launches, budget=(PAGE_BYTES - _size(value)) // 2, notes=notes)
    value |= box_tables(graph.recording, shown_launches, budget=(PAGE_BYTES - _size(value)) // 4, notes=notes)
    return value | relation_tables(graph, pairs, budget=PAGE_BYTES - _size(value), notes=notes)


def _guidance(guidance: Guidance) -> dict[str, Any]:
    """Return guidance without its long tails, its names made printable."""
    advice = guidance.to_json()
    for name in ("operators", "modules"):
        advice[name] = advice[name][:_MOST_SHARES]
    return dict(_printable(advice))


def _printable(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _printable(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_printable(part) for part in value]
    return printable(value) if isinstance(value, str) else value


def _timing_notes(launches: pd.DataFrame, sources: list[str]) -> list[str]:
    """Return what `LaneSource.timed` had to assume."""
    notes = []
    if len(launches) > 1 and not launches["begin_ns"].to_numpy().any():
        notes.append("The trace does not say when its launches began: they are drawn one after another, without gaps.")
    if unknown := sources.count(ROOFLINE):
        notes.append(
            f"{unknown:,} of {len(launches):,} launches have no durations: their times are modelled by a roofline "
            "(FLOPs or bytes "
            "at the rates that the GPU sustains), and so are gains."
        )
    return notes


def _size(value: Any) -> int:
    """Return about how many bytes of page a value takes."""
    if isinstance(value, dict):
        if "data" in value and "type" in value:
            return packed_bytes(value)
        return sum(len(k) + 4 + _size(v) for k, v in value.items())
    if isinstance(value, list):
        return sum(_size(v) + 1 for v in value)
    return len(value.encode("ascii", "backslashreplace")) + 2 if isinstance(value, str) else 8


def _summary(graph: TileGraph, launches: pd.DataFrame) -> dict[str, Any]:
    trace = graph.recording
    manifest, device = trace.manifest, trace.device
    coverage = launches["coverage"].value_counts()
    timing = launches["timing"].value_counts()
    begin, duration = launches["begin_ns"].to_numpy(), launches["duration_ns"].to_numpy()
    links = graph.links
    return {
        "command": printable(" ".join(str(word) for word in manifest.get("command", []))),
        "recorder": printable(str(manifest.get("recorder", ""))),
        "device": printable(device.name),
        "sms": device.sms,
        "granule": int(manifest.get("granule", 1)),
        "complete": bool(trace.complete),
        "reasons": [printable(str(note)) for note in manifest.get("notes", [])],
        "launches": len(launches),
        "tiles": int(launches["tiles"].sum()),
        "pairs": len(graph.pairs),
        "edges": int(links["edges"].sum()) if len(links) else 0,
        "busy_ns": int(duration.sum()),
        "span_ns": int((begin + duration).max() - begin.min()) if len(launches) else 0,
        "timing": {name: int(timing.get(name, 0)) for name in TIMINGS},
        "coverage": {name: int(coverage.get(name, 0)) for name in COVERAGES},
        "measured_tiles": len(trace.times),
        "accesses": len(trace.accesses),
    }


def _launches(launches: pd.DataFrame, strings: Strings) -> dict[str, Packed]:
    table = {name: pack(launches[name].to_numpy(), delta=True) for name in _NUMBERS}
    table |= {name: pack(strings.codes(launches[name])) for name in _TEXTS}
    table["timing"] = pack(_codes(launches["timing"], TIMINGS))
    table["coverage"] = pack(_codes(launches["coverage"], COVERAGES))
    return table


def _codes(column: pd.Series[Any], values: tuple[str, ...]) -> NDArray[np.int64]:
    return np.array([values.index(str(v)) for v in column], dtype=np.int64)


def _important_pairs(pairs: pd.DataFrame, launches: int, notes: list[str]) -> pd.DataFrame:
    nearby_pairs = pairs[(pairs["consumer"] < launches) & (pairs["producer"] < launches)]
    if len(nearby_pairs) > MOST_PAIRS:
        first = nearby_pairs.assign(real=~nearby_pairs["reuse_only"].astype(bool)).sort_values(
            ["real", "bytes"], ascending=False
        )
        nearby_pairs = first.head(MOST_PAIRS).drop(columns="real").sort_index()
        notes.append(
            f"Only the {MOST_PAIRS:,} pairs of launches with most dependent bytes, of {len(pairs):,}, are in this page."
        )
    return nearby_pairs


def _pairs(pairs: pd.DataFrame, strings: Strings, report: Report | None) -> dict[str, Packed]:
    numbers = ("producer", "consumer", "edges", "bytes", "raw", "war", "waw")
    table = {name: pack(pairs[name].to_numpy(), delta=name in {"producer", "consumer"}) for name in numbers}
    table["pattern"] = pack(strings.codes(pairs["pattern"]))
    table["map"] = pack(strings.codes(pairs["map"]))
    table["tightness"] = pack(pairs["tightness"].to_numpy(np.float64))
    table["reuse_only"] = pack(pairs["reuse_only"].to_numpy(np.int64))
    return table | _gains(pairs, report)


def _gains(pairs: pd.DataFrame, report: Report | None) -> dict[str, Packed]:
    """Return what the report says of each pair: gain in ns, share of tiles that could start early (NaN unknown),
    direct.
    """
    if report is None:
        unknown = np.full(len(pairs), np.nan)
        alone = np.full(len(pairs), -1)
        direct = np.ones(len(pairs), np.int64)
        return {"gain_ns": pack(unknown), "early": pack(unknown), "direct": pack(direct), "group": pack(alone)}
    keys = ["producer", "consumer"]
    of_report = pairs[keys].merge(report.pairs[[*keys, "gain_ns", "early", "direct"]], how="left", on=keys)
    groups = enumerate(zip(report.groups["producers"], report.groups["consumers"], strict=True))
    group_of = {pair: number for number, sides in groups for pair in zip(*sides, strict=True)}
    group_numbers = [
        group_of.get(pair, -1) for pair in zip(pairs["producer"].tolist(), pairs["consumer"].tolist(), strict=True)
    ]
    return {
        "group": pack(np.array(group_numbers, np.int64)),
        "gain_ns": pack(of_report["gain_ns"].to_numpy(np.float64)),
        "early": pack(of_report["early"].to_numpy(np.float64)),
        "direct": pack(of_report["direct"].to_numpy(bool).astype(np.int64)),
    }


def _groups(report: Report | None) -> dict[str, Packed]:
    """Return the pairs to look at first, in the order of `fold`, which the report prints too: ``pairs.group`` is a
    pair's place here. What overlap of all copies could gain, what list scheduling saves beyond the launch gap, and how
    many copies there are.
    """
    if report is None:
        return {}
    numbers = {name: report.groups[name].to_numpy(np.float64) for name in ("gain_ns", "overlap_ns", "times")}
    return {name: pack(values) for name, values in numbers.items()}


def _bounds(report: Report | None) -> dict[str, Any]:
    """Return the program's bracket: no schedule is faster than ``bound_ns``, list scheduling reaches ``listed_ns``."""
    if report is None:
        return {}
    bounds, recorded = report.bounds, report.dependencies_known
    if not recorded:
        return {"recorded_ns": report.program.recorded_ns, "dependencies_known": recorded}
    return {
        "recorded_ns": report.program.recorded_ns,
        "bound_ns": bounds.bound_ns,
        "listed_ns": bounds.listed_ns,
        "dependencies_known": recorded,
    }
